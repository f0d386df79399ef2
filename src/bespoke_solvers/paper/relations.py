"""Expected against got: what the paper says of its solvers, and whether it held here, case by case."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations

from bespoke_solvers.paper import plan
from bespoke_solvers.paper.plan import (
    DPM2,
    EDM,
    RK1,
    RK1_BESPOKE,
    RK2,
    RK2_BESPOKE,
    SCALE,
    TIME,
)
from bespoke_solvers.paper.results import Results

SIMILAR = 2.0  # the largest ratio of errors that counts as similar
WITHIN = 1.1  # and of FID to that of the exact samples
LOW_NFE = 20  # below it, the paper says, scale improves RMSE
NATIVE, RATIO = "native", "ratio"


@dataclass(frozen=True)
class Case:
    """One comparison: where, at how many evaluations, the figures by their names, and whether the relation held.

    clear: whether what decides it differs by more than twice its standard error. The noise is the same for all methods,
    which makes a difference surer than that.
    """

    where: str
    nfe: int
    figures: Mapping[str, float]
    held: bool
    clear: bool = True


@dataclass(frozen=True)
class Relation:
    """A statement of the paper, where it is made, and the cases in which it was checked here."""

    claim: str
    label: str
    cases: tuple[Case, ...]

    @property
    def held(self) -> int:
        """In how many cases."""
        return sum(case.held for case in self.cases)

    @property
    def verdict(self) -> str:
        """`held`, `did not hold`, or `not measured`."""
        if not self.cases:
            return "not measured"
        return "held" if self.held == len(self.cases) else "did not hold"


def relations(results: Results) -> list[Relation]:
    """All statements, with their cases in the order of models and NFE."""
    below = [
        ("RK2-Bespoke has a lower RMSE than RK2 at every NFE", "fig:nfe_vs_fid_main", RK2_BESPOKE, RK2, "rmse"),
        (
            "RK2-Bespoke has a lower RMSE than RK1-Bespoke at every NFE",
            "fig:euler_vs_midpoint",
            RK2_BESPOKE,
            RK1_BESPOKE,
            "rmse",
        ),
        ("RK2 has a lower RMSE than RK1 at every NFE", "fig:euler_vs_midpoint", RK2, RK1, "rmse"),
        ("RK2-Bespoke has a lower RMSE than DPM-2 at every NFE", "fig:nfe_vs_fid_main", RK2_BESPOKE, DPM2, "rmse"),
        (
            "Time matters more than scale: learned alone, time has the lower RMSE",
            "fig_a:scale_time_ablation",
            TIME,
            SCALE,
            "rmse",
        ),
        ("RK2-Bespoke has a lower FID than RK2 at every NFE", "fig:nfe_vs_fid_main", RK2_BESPOKE, RK2, "fid"),
    ]
    found = [
        Relation(claim, label, tuple(_below(results, own, other, figure))) for claim, label, own, other, figure in below
    ]
    found[5:5] = [
        Relation(
            f"Scale helps where NFE is low: below {LOW_NFE}, time and scale have a lower RMSE than time alone",
            "fig_a:scale_time_ablation",
            tuple(case for case in _below(results, RK2_BESPOKE, TIME, "rmse") if case.nfe < LOW_NFE),
        ),
        Relation(
            "A transferred solver lies between RK2 and the native one in RMSE",
            "fig_a:transferred_ablation",
            tuple(_transfers(results)),
        ),
        Relation(
            "RK2-Bespoke takes all parameterisations to similar RMSE: the largest is at most "
            f"{SIMILAR:g} times the smallest",
            "fig:nfe_vs_fid_main",
            tuple(_similar(results)),
        ),
        Relation(
            "On eps-VP, RK2-Bespoke has a lower RMSE than EDM with one evaluation more",
            "fig:bes_vs_edm",
            tuple(_edm(results, "rmse")),
        ),
    ]
    found += [
        Relation(
            "On eps-VP, RK2-Bespoke has a lower FID than EDM with one evaluation more",
            "fig:bes_vs_edm",
            tuple(_edm(results, "fid")),
        ),
        Relation(
            f"With {LOW_NFE} NFE, the FID of RK2-Bespoke is within {100 * (WITHIN - 1):.0f} % of the exact samples'",
            "tab:cifar10_a",
            tuple(_near_exact(results)),
        ),
    ]
    return found


def _below(results: Results, own: str, other: str, figure: str) -> Iterator[Case]:
    for model in results.models:
        for nfe in results.counts.nfe:
            values = {name: results.value(model, name, nfe, figure) for name in (own, other)}
            if known := _known(values):
                yield Case(
                    model, nfe, known, known[own] < known[other], _clear(results, model, nfe, own, other, figure)
                )


def _transfers(results: Results) -> Iterator[Case]:
    for source, model in permutations(results.models, 2):
        method = plan.transferred(source)
        for nfe in results.counts.nfe:
            names = {NATIVE: RK2_BESPOKE, "transferred": method, RK2: RK2}
            if known := _known({name: results.value(model, own, nfe) for name, own in names.items()}):
                native, moved, base = known.values()
                other = RK2 if native <= moved else RK2_BESPOKE
                clear = _clear(results, model, nfe, method, other)
                yield Case(f"{source} to {model}", nfe, known, native <= moved < base, clear)


def _similar(results: Results) -> Iterator[Case]:
    """Among models of the same shape and guidance that differ in their path; the figures are those of RK2-Bespoke."""
    groups: dict[tuple[str, ...], dict[str, str]] = {}
    for model in results.models:
        described = results.about(model)["model_is"]
        alike = (str(described["shape"]), str(described["guidance"]))
        groups.setdefault(alike, {}).setdefault(results.parameterisation(model), model)
    for group in groups.values():
        for nfe in results.counts.nfe if len(group) > 1 else ():
            values = {path: results.value(model, RK2_BESPOKE, nfe) for path, model in group.items()}
            if known := _known(values):
                ratio = max(known.values()) / min(known.values())
                yield Case(", ".join(group.values()), nfe, known | {RATIO: ratio}, ratio <= SIMILAR)


def _edm(results: Results, figure: str) -> Iterator[Case]:
    for model in results.models:
        for nfe in results.counts.nfe:
            more = nfe + 1 - nfe % 2
            values = {
                RK2_BESPOKE: results.value(model, RK2_BESPOKE, nfe, figure),
                f"{EDM}, one more": results.value(model, EDM, more, figure),
            }
            if known := _known(values):
                own, other = known.values()
                yield Case(model, nfe, known, own < other)


def _near_exact(results: Results) -> Iterator[Case]:
    for model in results.models:
        exact = results.record(model, "fid", "exact", 0)
        values = {
            RK2_BESPOKE: results.value(model, RK2_BESPOKE, LOW_NFE, "fid"),
            "exact": exact["fid"] if exact else None,
        }
        if known := _known(values):
            own, other = known.values()
            yield Case(model, LOW_NFE, known, own <= WITHIN * other)


def _clear(results: Results, model: str, nfe: int, one: str, other: str, figure: str = "rmse") -> bool:
    """Whether two errors lie further apart than twice the standard error of their difference; of FID none is known."""
    values = [results.value(model, name, nfe) for name in (one, other)]
    spread = [results.value(model, name, nfe, "rmse_se") for name in (one, other)]
    numbers = [number for number in (*values, *spread) if number is not None and math.isfinite(number)]
    if figure != "rmse" or len(numbers) < 4:
        return True
    a, b, *errors = numbers
    return abs(a - b) > 2 * math.hypot(*errors)


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    """The figures, if all were measured."""
    known = {name: value for name, value in values.items() if value is not None}
    return known if len(known) == len(values) else {}
