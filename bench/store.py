"""The cells of the benchmarks: one for each (model, method, NFE, seed, budget, samples, tolerance)."""

import functools
import shlex
import sys
from pathlib import Path

from bespoke_solvers import cells
from bespoke_solvers.cells import name_only, table_of

KEY = ("model", "method", "nfe", "seed", "budget", "samples", "tolerance")

__all__ = ["KEY", "Store", "command", "table_of"]


def command() -> str:
    """What was typed, without the folders of this machine."""
    return shlex.join(["python", "-m", f"bench.{Path(sys.argv[0]).stem}", *map(name_only, sys.argv[1:])])


class Store(cells.Store):
    """Those of a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, KEY, command(), functools.partial(print, flush=True))
