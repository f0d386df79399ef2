"""Tiny custom ODE solvers for pre-trained diffusion and flow models.

After Shaul et al. 2023, "Bespoke Solvers for Generative Flow Models"; equation numbers here are that paper's.
"""

__version__ = "0.1.0"

import importlib
from typing import TYPE_CHECKING, Any

from bespoke_solvers import reference, schedules, toy
from bespoke_solvers.bank import Bank
from bespoke_solvers.fitting import fit
from bespoke_solvers.solver import Solver, load
from bespoke_solvers.table import Table
from bespoke_solvers.velocity import Model

if TYPE_CHECKING:
    from bespoke_solvers.adapters.scheduler import BespokeScheduler

__all__ = [
    "Bank",
    "BespokeScheduler",
    "Model",
    "Solver",
    "Table",
    "__version__",
    "fit",
    "load",
    "reference",
    "schedules",
    "toy",
]


def __getattr__(name: str) -> Any:
    """Modules, once they are asked for, and `BespokeScheduler`, with which diffusers is imported; it looks here for its
    `SchedulerMixin`, too."""
    if name in ("models", "zoo"):
        return importlib.import_module(f"{__name__}.{name}")
    if name in ("BespokeScheduler", "SchedulerMixin"):
        from bespoke_solvers.adapters import scheduler

        return getattr(scheduler, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
