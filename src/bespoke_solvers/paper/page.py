"""The report of a run, drawn from its cells alone."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from bespoke_solvers import eval_report, gallery
from bespoke_solvers.cells import Record
from bespoke_solvers.judge import in_words
from bespoke_solvers.paper import plan
from bespoke_solvers.paper.lab import EXACT
from bespoke_solvers.paper.plan import NS, OWN, RK2, RK2_BESPOKE, Experiment
from bespoke_solvers.paper.printed import edm
from bespoke_solvers.paper.relations import OURS, RATIO, RK2_RATIO, Relation
from bespoke_solvers.paper.results import Results
from bespoke_solvers.paper.tables import printed_tables
from bespoke_solvers.pictures import NFE
from bespoke_solvers.report import (
    Cell,
    Chart,
    Check,
    Checks,
    Choice,
    Curves,
    Headline,
    Learned,
    Note,
    Provenance,
    Section,
    Viewer,
    page,
    significant,
)

TITLE = "The experiments of “Bespoke Solvers for Generative Flow Models”, measured again"
TEXTS = {
    plan.RK1_VS_RK2: "Euler's method, the midpoint method, and their Bespoke versions.",
    plan.AGAINST_NFE: "RK2-Bespoke against solvers that are not fitted (DPM-2 on the time grid that is best for it on "
    "other samples), and NS, this library's default.",
    plan.AGAINST_EDM: "RK2-Bespoke against EDM's discretisation, which has an odd number of evaluations. The paper, on "
    "EDM's own CIFAR10 model: "
    + ", ".join(f"{name} FID {fid:.2f} with {nfe} NFE" for name, (nfe, fid) in edm().items())
    + ".",
    plan.ABLATION: "RK2-Bespoke with both learned, time alone (s = 1), and scale alone (t = r).",
    plan.TRANSFER: "RK2-Bespoke fitted to this model, and fitted to the others and used on this one. The paper does so "
    "between models on one path; between different ones it is done here by Theorem 2.3.",
}


def report(results: Results, found: Sequence[Relation], command: str) -> str:
    """The page as HTML; command: what was typed."""
    return page(TITLE, sections(results, found, command))


def sections(results: Results, found: Sequence[Relation], command: str) -> list[Section]:
    """The headline, what was expected against what was got, the experiments, and how it was made."""
    drawn: list[Section] = [headline(results, found), checks(found)]
    makers: dict[Experiment, Callable[[Results], Section | None]] = {
        plan.SAMPLES: samples,
        plan.PATHS: paths,
        plan.ITERATIONS: iterations,
        plan.THETA: theta,
        **{each: partial(curves, experiment=each) for each in TEXTS},
    }
    left_out = []
    for experiment in results.experiments:
        if experiment is plan.TABLES:
            drawn += printed_tables(results)
        elif can_be_drawn(results, experiment) and (section := makers[experiment](results)) is not None:
            drawn.append(section)
        else:
            left_out.append(f"{experiment.name}: {'; '.join(results.missing(experiment)) or 'what it draws'}.")
    if left_out:
        text = "These experiments are not drawn; after each, what it needs and what was not measured. "
        drawn.append(Note("Not measured", text + " ".join(left_out)))
    return [*drawn, provenance(results, command)]


def can_be_drawn(results: Results, experiment: Experiment) -> bool:
    """Whether all that an experiment is about was measured for some model; errors against NFE say what was not."""
    return experiment is plan.AGAINST_NFE or not results.missing(experiment)


def in_paper(experiment: Experiment, text: str) -> str:
    """A text, and where the paper has the experiment."""
    more = " and others" if len(experiment.labels) > 4 else ""
    return f"{text} In the paper: {', '.join(experiment.labels[:4])}{more}."


def headline(results: Results, found: Sequence[Relation]) -> Headline:
    """How many times fewer evaluations a sample takes, what that costs, and how many statements held."""
    nfe = _nfe(results)
    times = sorted(results.about(model)["reference_evaluations"] / nfe for model in results.models)
    most = f" to {times[-1]:.0f}" if f"{times[0]:.0f}" != f"{times[-1]:.0f}" else ""
    several = f"{len(results.models)} models" if len(results.models) > 1 else results.models[0]
    sentence = f"The paper's experiments, measured again on {several}."
    for whose, own in (("the paper's", False), ("our own", True)):
        relations = [each for each in found if each.label.startswith(OURS) is own]
        checked = [each for each in relations if each.cases]
        failed = [each for each in checked if each.held < len(each.cases)]
        counted = {
            "held in every case": sum(each.verdict == "held" for each in checked),
            "held as far as measured": sum(each.verdict == "held as far as measured" for each in checked),
            "did not hold": len(failed),
            "could not be checked": len(relations) - len(checked),
        }
        told = ", ".join(f"{count} {what}" for what, count in counted.items() if count)
        sentence += f" Of {whose} {len(relations)} statements, {told}."
        if close := [each for each in checked if any(case.clear is False for case in each.decisive)]:
            sentence += (
                f" {len(close)} of these verdicts rest{'s' * (len(close) == 1)} on differences within the noise."
            )
    return Headline("In short", f"{times[0]:.0f}{most} times fewer evaluations", sentence, _in_words(results, nfe))


def _nfe(results: Results) -> int:
    """The evaluations that the headline is of: 10, or the fewest measured."""
    return 10 if 10 in results.counts.nfe else min(results.counts.nfe)


def _in_words(results: Results, nfe: int) -> list[str]:
    """A sentence for each model: what the solvers reach."""
    lines = []
    for model in results.models:
        values = {name: results.value(model, name, nfe) for name in (RK2_BESPOKE, NS, RK2)}
        told = ", ".join(f"{name} {significant(value)}" for name, value in values.items() if value is not None)
        if told:
            path, exact = results.parameterisation(model), results.about(model)["reference_evaluations"]
            lines.append(f"{model} ({path}), RMSE with {nfe} evaluations instead of {exact:.0f}: {told}.")
    return lines


def checks(found: Sequence[Relation]) -> Checks:
    """Expected against got, with the figures of every case."""
    text = (
        "What the paper says of its solvers, and whether it held here. A statement holds if it holds in every case: "
        "each model, each number of evaluations. What is marked as ours the paper does not say. The figures are RMSE, "
        "or FID where the statement says so. A case is within the noise if its two RMSE differ by less than twice the "
        "standard error of their difference. That takes their errors as independent; they are of the same noise, which "
        "as a rule makes a difference surer than that. Of FID, and of ratios, no such error is known. Models of one "
        "shape and guidance that differ in path or prediction are taken to be of the same data. The time of a fit is "
        "by the clock, whatever else the processor did."
    )
    if absent := [relation.claim for relation in found if not relation.cases]:
        text += f" Not checked, for want of measurements or of samples: {'; '.join(absent)}."
    return Checks("Expected against got", text, [_check(relation) for relation in found if relation.cases])


def _check(relation: Relation) -> Check:
    names = list(dict.fromkeys(name for case in relation.cases for name in case.figures))
    rows = [
        [
            case.where + (" (within the noise)" if case.clear is False else ""),
            str(case.nfe),
            *(_figure(name, case.figures.get(name)) for name in names),
        ]
        for case in relation.cases
    ]
    held = [case.held for case in relation.cases]
    return Check(relation.claim, relation.label, _verdict(relation), ["model", "NFE", *names], rows, held)


def _verdict(relation: Relation) -> str:
    """`did not hold in 2 of 9 cases, 1 within the noise`; `held in all 3 cases measured (of 9)`."""
    count, failed = len(relation.cases), len(relation.cases) - relation.held
    some, every = (f"{failed} of {count} cases", f"all {count} cases") if count > 1 else ("the one case",) * 2
    verdict = f"did not hold in {some}" if failed else f"held in {every}"
    if relation.missing:
        verdict += f" measured (of {count + relation.missing})"
    if close := sum(case.clear is False for case in relation.decisive):
        verdict += f", {'all' if close == len(relation.decisive) else close} within the noise"
    return verdict


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if value == float("inf"):
        return "astray"
    return f"{value:.2f}" if name in (RATIO, RK2_RATIO) else f"{value:.1f}" if "%" in name else significant(value)


def _choice(results: Results, experiment: Experiment, part: Callable[[str], Section | None]) -> Section | None:
    """A part for each model that has one."""
    parts = {model: part(model) for model in results.models if results.applies(model, experiment)}
    there = {f"{m} ({results.parameterisation(m)})": section for m, section in parts.items() if section is not None}
    return Choice(experiment.name, there) if there else None


def curves(results: Results, experiment: Experiment) -> Section | None:
    """RMSE, PSNR and, where it was measured, FID of an experiment's methods against NFE."""

    def part(model: str) -> Section | None:
        methods = results.methods(model, experiment)
        rmse, psnr, fid = (results.series(model, methods, figure) for figure in ("rmse", "psnr", "fid"))
        text = TEXTS[experiment]
        if absent := [name for name in methods if not results.measured(model, name)]:
            text += f" Not measured for this model: {'; '.join(absent)}."
        charts = [Chart("RMSE", NFE, rmse, log=True), Chart("PSNR, dB", NFE, psnr, decimals=1)]
        exact = results.record(model, "fid", EXACT, 0)
        if fid and exact and experiment.fid:
            ends = [point[0] for points in fid.values() for point in points]
            dotted = {"exact samples": [[min(ends), exact["fid"]], [max(ends), exact["fid"]]]}
            charts.append(Chart("FID", NFE, fid, dotted, log=True, decimals=2))
            text += f" FID is of {results.counts.fid_samples:,} samples; dotted: that of exact ones, {in_words(exact)}."
        return Curves("", in_paper(experiment, text), charts, OWN) if rmse and model in shown else None

    shown = results.shown(experiment)
    return _choice(results, experiment, part)


def samples(results: Results) -> Section | None:
    """The viewer of each model's samples."""

    def part(model: str) -> Section | None:
        exact, found = results.samples(model)
        if exact is None or not found:
            return None
        cells = [Cell(*at, shown["pictures"], eval_report.quality(row)) for at, (shown, row) in found.items()]
        layout = gallery.Layout(*(exact[name] for name in gallery.Layout._fields))
        text = in_paper(plan.SAMPLES, gallery.text_of(layout, exact["height"]))
        start = RK2_BESPOKE if any(cell.method == RK2_BESPOKE for cell in cells) else cells[0].method
        return Viewer("", text, exact["pictures"], cells, layout.shown, layout.columns, start)

    return _choice(results, plan.SAMPLES, part)


def paths(results: Results) -> Section | None:
    """Sampling paths in the plane of their principal components."""
    shown = {}
    for model in results.models:
        charts = [
            Chart(
                f"Sample {i + 1}",
                "first principal component",
                {name: track for name, track in tracks.items() if name != EXACT},
                {EXACT: tracks[EXACT]},
            )
            for i, tracks in enumerate(results.planes(model))
        ]
        if charts:
            shown[f"{model} ({results.parameterisation(model)})"] = {"charts": charts}
    text = (
        "The steps of RK2 and RK2-Bespoke from the same noise, and the exact path (dotted), in the plane of their two "
        "principal components."
    )
    return Learned(plan.PATHS.name, in_paper(plan.PATHS, text), shown, "Model") if shown else None


def iterations(results: Results) -> Section | None:
    """RMSE on the choosing set during the fits."""

    def part(model: str) -> Section | None:
        fits = dict(results.fits(model))
        series = {
            f"n = {nfe // 2}, {nfe} NFE": [[i, error] for i, _, error in record["history"] if error is not None]
            for nfe, record in fits.items()
        }
        text = (
            f"RK2-Bespoke on the {results.counts.choose} samples by which its best iteration is chosen; at iteration 0 "
            "it is RK2."
        )
        chart = Chart("RMSE", "iteration", series, log=True)
        return Curves("", in_paper(plan.ITERATIONS, text), [chart]) if series else None

    return _choice(results, plan.ITERATIONS, part)


def theta(results: Results) -> Section | None:
    """The learned time and scale of RK2-Bespoke."""
    shown = {f"{m}, {each.nfe} NFE": eval_report.plots(each) for m in results.models for each in results.solvers(m)}
    text = "Time t_r and scale s_r of RK2-Bespoke at its nodes r, with their slopes, and the table that they make."
    return Learned(plan.THETA.name, in_paper(plan.THETA, text), shown) if shown else None


def provenance(results: Results, command: str) -> Provenance:
    """What one needs to know to repeat or to doubt the figures."""
    counts, cells = results.counts, results.cells()
    measured = {
        "samples": f"{counts.samples:,} from noise that no fit and no choice has seen, seed {results.seed}",
        "fits": f"RK1- and RK2-Bespoke: the paper's loss, Adam, {counts.iterations:,} iterations at "
        f"{counts.learning_rate:g} on {counts.paths:,} paths that are kept; the iteration with the lowest RMSE on "
        f"{counts.choose:,} further samples (the paper: new paths each time, the iteration with the best FID for FID)",
        NS: f"the library's default: a non-stationary table, fitted to the ends of the same {counts.paths:,} paths",
        "exact samples": f"dopri5, tolerance {counts.tolerance:g}",
        **({"samples for FID": f"{counts.fid_samples:,}"} if any("fid" in cell for cell in cells) else {}),
        "on": _devices(cells),
        "with": _distinct(
            ", ".join(f"{name.replace('_', '-')} {version}" for name, version in cell["versions"].items())
            for cell in cells
        ),
        "dates": _distinct(cell["date"] for cell in cells),
    }
    groups = {"Measured": measured} | {model: _facts(results.about(model)) for model in results.models}
    commands = list(dict.fromkeys(cell["command"] for cell in cells))
    return Provenance("Provenance", commands or [command], groups)


def _facts(about: Record) -> dict[str, str]:
    facts = {name: eval_report.in_text(value) for name, value in about["model_is"].items() if value is not None}
    cost, error = about["reference_evaluations"], about["reference_error"]
    return facts | {"exact samples": f"{cost:.0f} evaluations each, exact to RMSE {error:.0e}"}


def _devices(cells: Sequence[Record]) -> str:
    """Each with how many cells it measured, and of which methods where it did not measure most."""
    by_device: dict[str, list[Record]] = {}
    for cell in cells:
        by_device.setdefault(cell["device"], []).append(cell)
    told = list[str]()
    for device, own in sorted(by_device.items(), key=lambda pair: -len(pair[1])):
        methods = ", ".join(dict.fromkeys(cell["method"] for cell in own))
        told.append(device if not told else f"{device} ({len(own)} of {len(cells)} cells: {methods})")
    return "; ".join(told)


def _distinct(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(values))
