"""Expected against got: what the paper says of its solvers, and whether it held here, case by case."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, permutations
from operator import lt

from bespoke_solvers.evaluation import margin
from bespoke_solvers.paper import plan, printed
from bespoke_solvers.paper.lab import EXACT
from bespoke_solvers.paper.plan import DPM2, EDM, RK1, RK1_BESPOKE, RK2, RK2_BESPOKE, RK4, SCALE, TIME
from bespoke_solvers.paper.results import Results
from bespoke_solvers.paper.statements import Case, Statement

SIMILAR = 2.0  # the largest ratio of errors that counts as similar
LOW_NFE = 20  # below it, the paper says, scale improves RMSE
MOVED_NFE = 16  # from it on, the paper says, a transferred solver improves FID
NATIVE, RATIO = "native", "ratio"
PERCENT = "% of it"
FID_NOISE = 0.01  # of an FID: within it two do not differ, of 10,000 samples each
OURS = "ours, after "  # before the label of an experiment of which the paper does not say this


Found = Iterable[Case | None]  # None: a case that was to be measured and was not


def relations(results: Results) -> list[Statement]:
    """All statements, with their cases in the order of models and NFE."""
    against_nfe, rk1_vs_rk2, ablation = "fig:nfe_vs_fid_main", "fig:euler_vs_midpoint", "fig_a:scale_time_ablation"
    against_edm, transfer = "fig:bes_vs_edm", "fig_a:transferred_ablation"
    low, high = (printed.edm()[name][0] for name in (RK2_BESPOKE, EDM))
    rivals = f"{RK1}, {RK4} and {DPM2}"
    found: list[tuple[str, str, Found]] = [
        ("RK2-Bespoke has a lower RMSE than RK2 at every NFE", against_nfe, _below(results, RK2_BESPOKE, RK2)),
        (
            "RK2-Bespoke has a lower RMSE than RK1-Bespoke at every NFE",
            rk1_vs_rk2,
            _below(results, RK2_BESPOKE, RK1_BESPOKE),
        ),
        ("RK2 has a lower RMSE than RK1 at every NFE", rk1_vs_rk2, _below(results, RK2, RK1)),
        (
            f"RK2-Bespoke has a lower RMSE than {rivals} at every NFE",
            against_nfe,
            chain.from_iterable(_below(results, RK2_BESPOKE, other) for other in (RK1, RK4, DPM2)),
        ),
        (
            "Time matters more than scale: learned alone, time has the lower RMSE",
            ablation,
            _below(results, TIME, SCALE),
        ),
        (
            f"Scale helps where NFE is low: below {LOW_NFE}, time and scale have a lower RMSE than time alone",
            ablation,
            _below(results, RK2_BESPOKE, TIME, before=LOW_NFE),
        ),
        (
            "A solver transferred to another model on the same path lies between RK2 and the native one in RMSE",
            transfer,
            _transfers(results, same_path=True),
        ),
        (
            "A solver transferred across paths by Theorem 2.3 lies between RK2 and the native one in RMSE",
            OURS + transfer,
            _transfers(results, same_path=False),
        ),
        (
            f"RK2-Bespoke takes all parameterisations to similar RMSE: the largest is at most {SIMILAR:g} times the "
            "smallest",
            against_nfe,
            _similar(results),
        ),
        (
            "On VP paths, RK2-Bespoke has a lower RMSE than EDM with one evaluation more",
            OURS + against_edm,
            _edm(results, "rmse"),
        ),
        ("RK2-Bespoke has a lower FID than RK2 at every NFE", against_nfe, _below(results, RK2_BESPOKE, RK2, "fid")),
        (
            f"RK2-Bespoke has a lower FID than {rivals} at every NFE",
            against_nfe,
            chain.from_iterable(_below(results, RK2_BESPOKE, other, "fid") for other in (RK1, RK4, DPM2)),
        ),
        (
            "Scale helps FID at every NFE: time and scale have a lower one than time alone",
            ablation,
            _below(results, RK2_BESPOKE, TIME, "fid"),
        ),
        (
            f"From {MOVED_NFE} NFE on, a solver transferred to another model on the same path improves the FID of RK2",
            transfer,
            _transferred_fid(results),
        ),
        (
            f"On VP paths, RK2-Bespoke with {low} NFE has at most the FID of EDM with {high}",
            against_edm,
            _edm_as_printed(results, low, high),
        ),
        (
            "On VP paths, RK2-Bespoke has a lower FID than EDM with one evaluation more",
            OURS + against_edm,
            _edm(results, "fid"),
        ),
        *_of_tables(results),
    ]
    return [_statement(claim, label, list(cases)) for claim, label, cases in found]


def _of_tables(results: Results) -> Iterator[tuple[str, str, Found]]:
    """What the paper's tables of RK2-Bespoke say, of models with pictures of the size of each data set's."""
    for data, lines in printed.by_data().items():
        models = [model for model in results.models if results.like(model) == data]
        if not models and data != printed.CIFAR10:
            continue
        most = within(lines)
        share = max(line.percent_time for line in lines)
        where, label = ("", "tab:cifar10_a") if data == printed.CIFAR10 else (f", {data}", "tab:imagenet_64_and_128")
        yield (
            f"With {LOW_NFE} NFE, the FID of RK2-Bespoke is within "
            + ", ".join(f"{percent} % ({name}{where})" for name, percent in most.items())
            + " of the exact samples', in whole percent",
            label,
            _near_exact(results, models, most),
        )
        yield (
            f"A fit of RK2-Bespoke takes at most {share:g} % of the time of the model's training{where}",
            label,
            _shares(results, models, share),
        )


def within(lines: Sequence[printed.Printed]) -> dict[str, int]:
    """How far FID is from the exact samples' with `LOW_NFE` evaluations, by parameterisation, in percent."""
    return {line.model: line.percent - 100 for line in lines if line.nfe == LOW_NFE}


def _statement(claim: str, label: str, cases: list[Case | None]) -> Statement:
    measured = tuple(case for case in cases if case is not None)
    return Statement(claim, label, measured, len(cases) - len(measured))


def _below(
    results: Results, own: str, other: str, figure: str = "rmse", before: float = math.inf
) -> Iterator[Case | None]:
    """Where one method is to have the lower figure: at the evaluations that both can have, if fewer than `before`."""
    possible = (plan.evaluations(method, results.counts.nfe) for method in (own, other))
    shared = sorted(nfe for nfe in set.intersection(*map(set, possible)) if nfe < before)
    for model in results.comparable(figure):
        for nfe in shared:
            values = {name: results.value(model, name, nfe, figure) for name in (own, other)}
            yield _case(model, nfe, values, lt, _clear(results, model, figure, (own, nfe), (other, nfe)))


def _pairs(results: Results, same_path: bool, figure: str) -> Iterator[tuple[str, str]]:
    """Models of one guidance, on one path or on two: whose solver, and on which one it is used."""
    for source, model in permutations(results.comparable(figure), 2):
        one, other = (results.about(name)["model_is"] for name in (source, model))
        if one["guidance"] == other["guidance"] and (one["schedule"] == other["schedule"]) == same_path:
            yield source, model


def _transferred_fid(results: Results) -> Iterator[Case | None]:
    for source, model in _pairs(results, True, "fid"):
        method = plan.transferred(source)
        for nfe in plan.evaluations(RK2_BESPOKE, results.counts.nfe):
            if nfe >= MOVED_NFE:
                names = {"transferred": method, RK2: RK2}
                values = {name: results.value(model, own, nfe, "fid") for name, own in names.items()}
                yield _case(f"{source} to {model}", nfe, values, lt, _apart(*values.values()))


def _transfers(results: Results, same_path: bool) -> Iterator[Case | None]:
    for source, model in _pairs(results, same_path, "rmse"):
        method = plan.transferred(source)
        for nfe in plan.evaluations(RK2_BESPOKE, results.counts.nfe):
            names = {NATIVE: RK2_BESPOKE, "transferred": method, RK2: RK2}
            values = {name: results.value(model, own, nfe) for name, own in names.items()}
            case = _case(f"{source} to {model}", nfe, values, lambda native, moved, base: native <= moved < base)
            yield case and _between(results, model, method, case)


def _between(results: Results, model: str, method: str, case: Case) -> Case:
    """The case of a transferred solver, clear if both of its bounds are; where it did not hold, if one is clearly
    passed."""
    native, moved, base = case.figures.values()
    kept = {NATIVE: (RK2_BESPOKE, native <= moved), RK2: (RK2, moved < base)}
    found = {
        name: _clear(results, model, "rmse", (method, case.nfe), (bound, case.nfe))
        for name, (bound, holds) in kept.items()
        if holds is case.held
    }
    if None in found.values():
        return case
    clear = all(found.values()) if case.held else any(found.values())
    close = () if clear else tuple(name for name in found if not found[name])
    return replace(case, clear=clear, close=close)


def _similar(results: Results) -> Iterator[Case | None]:
    """Among models of one shape and guidance with two parameterisations or more; taken to be of the same data."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for model in results.comparable("rmse"):
        described = results.about(model)["model_is"]
        groups.setdefault((str(described["shape"]), str(described["guidance"])), []).append(model)
    for group in groups.values():
        if len({results.parameterisation(model) for model in group}) < 2:
            continue
        where = ", ".join(results.title(model) for model in group)
        for nfe in plan.evaluations(RK2_BESPOKE, results.counts.nfe):
            own, base = (_range([results.value(model, name, nfe) for model in group]) for name in (RK2_BESPOKE, RK2))
            known = {f"{RATIO} of {RK2}": base[RATIO]} if base else {}
            yield None if own is None else Case(where, nfe, own | known, own[RATIO] <= SIMILAR)


def _range(errors: Sequence[float | None]) -> dict[str, float] | None:
    """The smallest and the largest, and their ratio, if all were measured."""
    known = sorted(error for error in errors if error is not None)
    if len(known) < len(errors):
        return None
    ratio = known[-1] / known[0] if math.isfinite(known[-1]) else math.inf
    return {"smallest": known[0], "largest": known[-1], RATIO: ratio}


def _edm(results: Results, figure: str) -> Iterator[Case | None]:
    for model in _on_vp(results, figure):
        for nfe in plan.evaluations(RK2_BESPOKE, results.counts.nfe):
            own, other = (RK2_BESPOKE, nfe), (EDM, nfe + 1 - nfe % 2)
            values = {
                RK2_BESPOKE: results.value(model, *own, figure),
                f"{EDM}, one more": results.value(model, *other, figure),
            }
            yield _case(model, nfe, values, lt, _clear(results, model, figure, own, other))


def _edm_as_printed(results: Results, nfe: int, edm_nfe: int) -> Iterator[Case | None]:
    for model in _on_vp(results, "fid") if nfe in results.counts.nfe else ():
        values = {
            RK2_BESPOKE: results.value(model, RK2_BESPOKE, nfe, "fid"),
            f"{EDM}, {edm_nfe} NFE": results.value(model, EDM, edm_nfe, "fid"),
        }
        clear = _apart(*values.values())
        yield _case(model, nfe, values, lambda own, other: math.isfinite(own) and own <= other, clear)


def _near_exact(results: Results, models: Sequence[str], bounds: Mapping[str, int]) -> Iterator[Case | None]:
    for model in results.comparable("fid") if LOW_NFE in results.counts.nfe else ():
        most = bounds.get(results.parameterisation(model))
        if model in models and most is not None:
            own, exact = (results.value(model, *at, "fid") for at in ((RK2_BESPOKE, LOW_NFE), (EXACT, 0)))
            percent = None if own is None or exact is None else 100 * own / exact
            values = {RK2_BESPOKE: own, EXACT: exact, PERCENT: percent}
            clear = None if percent is None else abs(abs(percent - 100) - most - 0.5) > 100 * FID_NOISE
            yield _case(model, LOW_NFE, values, lambda *found, most=most: is_within(found[-1], most), clear)


def is_within(percent: float, most: int) -> bool:
    """Whether an FID is at most so many percent off the exact samples', rounded as the paper does: 108.27 is 8 off."""
    return abs(percent - 100) < most + 0.5


def _shares(results: Results, models: Sequence[str], most: float) -> Iterator[Case | None]:
    """Of the models whose training is known, by the clock."""
    for model in models:
        for nfe, fitted in results.fits(model) if model in results.training else ():
            share = 100 * fitted["seconds"] / results.training[model]
            yield Case(model, nfe, {"% of the time": share}, share <= most)


def _on_vp(results: Results, figure: str) -> list[str]:
    return [model for model in results.comparable(figure) if results.applies(model, plan.AGAINST_EDM)]


def _case(
    where: str, nfe: int, values: Mapping[str, float | None], holds: Callable[..., bool], clear: bool | None = None
) -> Case | None:
    """The case, if all its figures were measured; it is the last one that may be close."""
    known = {name: value for name, value in values.items() if value is not None}
    if len(known) < len(values):
        return None
    return Case(where, nfe, known, holds(*known.values()), clear, (*known,)[-1:] if clear is False else ())


def _apart(*fids: float | None) -> bool | None:
    known = [fid for fid in fids if fid is not None]
    if len(known) < len(fids):
        return None
    return math.inf in known or abs(known[0] - known[1]) > FID_NOISE * max(known)


def _clear(results: Results, model: str, figure: str, one: tuple[str, int], other: tuple[str, int]) -> bool | None:
    """Whether the RMSE of two methods with their NFE are further apart than twice the standard error of the difference,
    and than the exact samples' own error; their FID, than `FID_NOISE`."""
    values = [results.value(model, *at, figure) for at in (one, other)]
    if None in values:
        return None
    if figure == "fid":
        return _apart(*values)
    if math.inf in values:
        return True
    numbers = [*values, *(results.value(model, *at, "rmse_se") for at in (one, other))]
    a, b, *errors = (math.inf if number is None else number for number in numbers)
    if not math.isfinite(sum(errors)):
        return None
    return bool(abs(a - b) > margin(errors, results.about(model)["reference_error"]))
