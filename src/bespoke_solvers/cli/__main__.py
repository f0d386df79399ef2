"""`python -m bespoke_solvers.cli`, for a source tree that is not installed."""

from bespoke_solvers.cli import main

main()
