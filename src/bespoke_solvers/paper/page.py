"""The report of a run, drawn from its cells alone."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from bespoke_solvers import eval_report, gallery
from bespoke_solvers.cells import Record
from bespoke_solvers.judge import in_words
from bespoke_solvers.paper import plan
from bespoke_solvers.paper.lab import EXACT
from bespoke_solvers.paper.plan import NS, OWN, RK2_BESPOKE, Experiment
from bespoke_solvers.paper.printed import edm
from bespoke_solvers.paper.results import Results
from bespoke_solvers.paper.statements import Statement
from bespoke_solvers.paper.tables import comparison, printed_tables
from bespoke_solvers.paper.verdicts import checks, headline
from bespoke_solvers.pictures import NFE
from bespoke_solvers.report import (
    Cell,
    Chart,
    Choice,
    Curves,
    Learned,
    Note,
    Provenance,
    Section,
    Viewer,
    page,
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


def report(results: Results, found: Sequence[Statement], command: str) -> str:
    """The page as HTML; command: what was typed."""
    return page(TITLE, sections(results, found, command))


def sections(results: Results, found: Sequence[Statement], command: str) -> list[Section]:
    """The headline, what was expected against what was got, the experiments, and how it was made."""
    drawn: list[Section] = [headline(results, found), checks(found)]
    makers: dict[Experiment, Callable[[Results], Section | None]] = {
        plan.SAMPLES: samples,
        plan.PATHS: paths,
        plan.ITERATIONS: iterations,
        plan.THETA: theta,
        **{each: partial(curves, experiment=each) for each in TEXTS},
    }
    left_out, lacking = list[str](), list[str]()
    for experiment in results.experiments:
        if experiment is plan.TABLES:
            drawn += printed_tables(results)
        elif can_be_drawn(results, experiment) and (section := makers[experiment](results)) is not None:
            drawn.append(section)
            if without := results.without(experiment):
                lacking.append(f"{experiment.name}: {', '.join(map(results.title, without))}.")
        else:
            left_out.append(f"{experiment.name}: {'; '.join(results.missing(experiment)) or 'what it draws'}.")
    if (table := comparison(results)) is not None:
        drawn.append(table)
    told = {
        "What failed in this run:": [f"{each}." for each in results.failed],
        "Experiments that are not drawn, with what they lack:": left_out,
        "Models of which an experiment has nothing:": lacking,
        "Models of which all experiments lack something:": gaps(results),
    }
    if lists := {what: each for what, each in told.items() if each}:
        drawn.append(Note("Not measured", lists=lists))
    return [*drawn, provenance(results, command)]


def gaps(results: Results) -> list[str]:
    """Of each model the NFE at which RK2-Bespoke was not measured, and whether its FID was not, where others' was."""
    judged = {model: any("fid" in cell for cell in results.cells(model)) for model in results.models}
    found = []
    for model in results.models:
        possible = plan.evaluations(RK2_BESPOKE, results.counts.nfe)
        absent = [str(nfe) for nfe in possible if results.value(model, RK2_BESPOKE, nfe) is None]
        lacks = [f"{' and '.join(absent)} NFE"] if absent else []
        lacks += ["FID"] if any(judged.values()) and not judged[model] else []
        found += [f"{results.title(model)}: {', '.join(lacks)}."] if lacks else []
    return found


def can_be_drawn(results: Results, experiment: Experiment) -> bool:
    """Whether all that an experiment is about was measured for some model; errors against NFE say what was not."""
    return experiment is plan.AGAINST_NFE or not results.missing(experiment)


def in_paper(experiment: Experiment, text: str) -> str:
    """A text, and where the paper has the experiment."""
    more = " and others" if len(experiment.labels) > 4 else ""
    return f"{text} In the paper: {', '.join(experiment.labels[:4])}{more}."


def _choice(results: Results, experiment: Experiment, part: Callable[[str], Section | None]) -> Section | None:
    """A part for each model that has one."""
    parts = {model: part(model) for model in results.models if results.applies(model, experiment)}
    there = {results.title(m): section for m, section in parts.items() if section is not None}
    return Choice(experiment.name, there) if there else None


def curves(results: Results, experiment: Experiment) -> Section | None:
    """RMSE, PSNR and, where it was measured, FID of an experiment's methods against NFE."""

    def part(model: str) -> Section | None:
        methods = results.methods(model, experiment)
        rmse, psnr, fid = (results.series(model, methods, figure) for figure in ("rmse", "psnr", "fid"))
        fid = fid if model in judged else {}
        text = TEXTS[experiment]
        if absent := [name for name in methods if not results.measured(model, name)]:
            text += f" Not measured for this model: {'; '.join(absent)}."
        charts = [Chart("RMSE", NFE, rmse, log=True), Chart("PSNR, dB", NFE, psnr, decimals=1)]
        exact = results.record(model, "fid", EXACT, 0)
        if fid:
            ends, dotted = [point[0] for points in fid.values() for point in points], {}
            text += f" FID is of {results.counts.fid_samples:,} samples"
            if exact:
                dotted = {"exact samples": [[min(ends), exact["fid"]], [max(ends), exact["fid"]]]}
                text += f"; dotted: that of exact ones, {in_words(exact)}"
            text += "."
            charts.append(Chart("FID", NFE, fid, dotted, log=True, decimals=2))
        return Curves("", in_paper(experiment, text), charts, OWN) if rmse and model in shown else None

    shown, judged = results.shown(experiment), results.judged(experiment)
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
                "first component",
                {name: track for name, track in tracks.items() if name != EXACT},
                {EXACT: tracks[EXACT]},
            )
            for i, tracks in enumerate(results.planes(model))
        ]
        if charts:
            shown[results.title(model)] = {"charts": charts}
    text = (
        f"The steps of RK2 and RK2-Bespoke with {plan.paths_at(results.counts.nfe)} NFE from the same noise, and the "
        "exact path (dotted), in the plane of their two principal components, upwards the second."
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
    fitted = {cell["method"] for cell in cells if cell["measured"] == "fit"}
    told = {
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
        "dates": _distinct(sorted(cell["date"] for cell in cells)),
    }
    if not fitted & {*plan.BY_ADAM}:
        del told["fits"]
    if NS not in fitted:
        del told[NS]
    groups = {"Measured": told} | {model: _facts(results.about(model)) for model in results.models}
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
        methods = ", ".join(dict.fromkeys(f"{cell['measured']} of {cell['method']}" for cell in own))
        told.append(device if not told else f"{device} ({len(own)} of {len(cells)} cells: {methods})")
    return "; ".join(told)


def _distinct(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(values))
