"""The best that other solvers can do on a model: each method on the time grid that suits it best."""

from collections.abc import Sequence
from typing import NamedTuple

from bespoke_solvers import dedicated
from bespoke_solvers.evaluation import HeldOut, Quality
from bespoke_solvers.schedules import DiscreteVP
from bespoke_solvers.table import Table
from bespoke_solvers.velocity import Model

GRIDS = (
    *("uniform", "quadratic", "straight:1:1.4", "straight:1.5:2", "straight:2:2"),
    *("log-snr", "log-snr:0.01", "log-snr:0.03", "log-snr:0.05", "karras", "karras:0.01", "karras:0.03", "karras:0.05"),
)


class Candidate(NamedTuple):
    """A method on a grid (`dpmpp-2m@karras`), its table on the model, and how good it is on the choosing set."""

    name: str
    table: Table
    quality: Quality


def variants(method: str, nfe: int, model: Model) -> dict[str, Table]:
    """The method's tables on all the grids it can have here; none where it cannot have so many evaluations."""
    if not dedicated.possible(method, nfe):
        return {}
    if method not in dedicated.METHODS:  # a Runge-Kutta method, or one whose grid is named
        return {method: dedicated.baseline(method, nfe, model)}
    grids = (*GRIDS, "trailing") if isinstance(model.schedule, DiscreteVP) else GRIDS
    found = {}
    for grid in grids:
        try:
            found[f"{method}@{grid}"] = dedicated.baseline(f"{method}@{grid}", nfe, model)
        except ValueError:  # the grid has no such times in this domain
            continue
    return found


def best(methods: Sequence[str], nfe: int, model: Model, choose: HeldOut) -> Candidate | None:
    """The one that is best on the choosing set; None where no method can have so many evaluations."""
    tables = {name: table for method in methods for name, table in variants(method, nfe, model).items()}
    rated = [Candidate(name, table, choose.quality(table, model)) for name, table in tables.items()]
    return max(rated, key=lambda candidate: candidate.quality.score, default=None)
