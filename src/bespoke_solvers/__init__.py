"""Tiny custom ODE solvers for pre-trained diffusion and flow models.

After Shaul et al. 2023, "Bespoke Solvers for Generative Flow Models"; equation numbers here are that paper's.
"""

__version__ = "0.1.0"

from bespoke_solvers import reference, schedules, toy
from bespoke_solvers.fitting import fit
from bespoke_solvers.solver import Solver, load
from bespoke_solvers.table import Table
from bespoke_solvers.velocity import Model

__all__ = ["Model", "Solver", "Table", "__version__", "fit", "load", "reference", "schedules", "toy"]
