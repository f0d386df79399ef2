"""The run's files: results.json and the figures as PNG, drawn from its cells alone."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bespoke_solvers import gallery, pictures, tracks
from bespoke_solvers.files import write_atomically
from bespoke_solvers.paper import page, plan
from bespoke_solvers.paper.lab import EXACT
from bespoke_solvers.paper.plan import RK2_BESPOKE, Experiment
from bespoke_solvers.paper.relations import relations
from bespoke_solvers.paper.results import Results
from bespoke_solvers.paper.statements import Statement
from bespoke_solvers.paper.tables import printed_tables
from bespoke_solvers.paper.verdicts import in_short
from bespoke_solvers.report import Table, significant

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = ("rmse", "rmse_se", "psnr", "fid", "kid", "seconds", "iterations", "best_iteration", "reference_evaluations")
FIGURED = {"rmse": "RMSE", "psnr": pictures.PSNR, "fid": "FID"}
SAMPLES = "-samples.png"
FILES = {
    plan.RK1_VS_RK2: "rk1-vs-rk2",
    plan.AGAINST_NFE: "error-vs-nfe",
    plan.AGAINST_EDM: "bespoke-vs-edm",
    plan.ABLATION: "ablation",
    plan.TRANSFER: "transfer",
}


def write(results: Results, folder: Path, command: str) -> list[Path]:
    """Write report.html, results.json and the PNG figures; returns the files."""
    found, drawn = relations(results), dict(_drawn(results))
    for name in _drawn_before(folder) - {*drawn}:  # which would be taken for one of this run
        (folder / name).unlink(missing_ok=True)
    write_atomically(folder / "report.html", page.report(results, found, command).encode())
    content = _in_lines(_rounded(contents(results, found, command) | {"figures": sorted(drawn)}))
    write_atomically(folder / "results.json", content.encode())
    for name, figure in drawn.items():
        pictures.save(figure, folder / name, dpi=90, colours=256 if name.endswith(SAMPLES) else 32)
    return [folder / name for name in ("report.html", "results.json", *drawn)]


def _drawn_before(folder: Path) -> set[str]:
    """The figures that the results.json of an earlier run names."""
    try:
        names = json.loads((folder / "results.json").read_text())["figures"]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {name for name in names if isinstance(name, str) and Path(name).name == name and name.endswith(".png")}


def contents(results: Results, found: Sequence[Statement], command: str) -> dict[str, Any]:
    """What results.json holds: figures of all cells, the statements with their cases, FID beside the paper's."""
    cells = [
        {name: record[name] for name in ("model", "measured", "method", "nfe", *FIGURES) if name in record}
        for record in results.cells()
        if record["measured"] in ("model", "fit", "error", "fid")
    ]
    statements = [
        {
            "claim": statement.claim,
            "label": statement.label,
            "verdict": statement.verdict,
            "in_short": in_short(statement) if statement.cases else statement.verdict,
            "cases": [{**vars(case), "figures": dict(case.figures)} for case in statement.cases],
        }
        for statement in found
    ]
    return {
        "command": command,
        "counts": results.counts._asdict(),
        "seed": results.seed,
        "models": {model: results.parameterisation(model) for model in results.models},
        "failed": list(results.failed),
        "statements": statements,
        "tables": [
            {"title": each.title, "columns": [(c.name, c.format, c.missing) for c in each.columns], "rows": each.rows}
            for each in (printed_tables(results) if plan.TABLES in results.experiments else ())
            if isinstance(each, Table)
        ],
        "cells": cells,
    }


def _in_lines(content: Mapping[str, Any]) -> str:
    """JSON with a line for each statement and each cell."""

    def written(value: Any) -> str:
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            return json.dumps(value, allow_nan=False)
        return "[\n" + ",\n".join(f"  {json.dumps(each, allow_nan=False)}" for each in value) + "\n ]"

    return "{\n" + ",\n".join(f" {json.dumps(key)}: {written(value)}" for key, value in content.items()) + "\n}\n"


def _rounded(value: Any) -> Any:
    """Five significant digits; None for what is not finite."""
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


def _drawn(results: Results) -> "list[tuple[str, Figure]]":
    found: list[tuple[str, Figure]] = []
    for experiment in results.experiments:
        drawable = experiment in FILES and page.can_be_drawn(results, experiment)
        if drawable and (figure := curves_of(results, experiment)):
            found.append((f"{FILES[experiment]}.png", figure))
    for model in results.models:
        name = plan.file_name(model)
        if plan.SAMPLES in results.experiments and page.can_be_drawn(results, plan.SAMPLES):
            found += [(f"{name}{SAMPLES}", figure)] if (figure := samples_of(results, model)) else []
        if plan.ITERATIONS in results.experiments:
            fits = {f"{nfe} NFE": record for nfe, record in results.fits(model)}
            if fits:
                found.append((f"{name}-iterations.png", pictures.errors_against_iterations(fits)))
        if plan.THETA in results.experiments:
            found += [(f"{name}-theta-{s.nfe}.png", pictures.transform(s)) for s in results.solvers(model)[:1]]
        if plan.PATHS in results.experiments and (planes := results.planes(model)):
            found.append((f"{name}-paths.png", tracks.planes(planes)))
    return found


def curves_of(results: Results, experiment: Experiment) -> "Figure | None":
    """RMSE and PSNR against NFE, a panel for each model, and below them FID where it was measured."""
    models = results.shown(experiment)
    judged = results.judged(experiment)
    series = {
        (model, figure): results.series(model, results.methods(model, experiment), figure)
        if figure != "fid" or model in judged
        else {}
        for model in models
        for figure in FIGURED
    }
    rows = [figure for figure in FIGURED if any(series[model, figure] for model in models)]
    if not rows:
        return None
    titles = {model: results.title(model) for model in models}
    grid = [[(titles[model], FIGURED[figure], series[model, figure]) for model in models] for figure in rows]
    figure = pictures.curves(grid, pictures.NFE, RK2_BESPOKE)
    if missing := results.missing(experiment):
        figure.supxlabel(f"not measured: {'; '.join(missing)}", fontsize=8, color=pictures.INK)
    return figure


def samples_of(results: Results, model: str) -> "Figure | None":
    """The exact samples and those of each method from the same noise, with 10 evaluations or the fewest shown."""
    exact, cells = results.samples(model)
    if exact is None or not cells:
        return None
    counts = {nfe for _, nfe in cells}
    nfe = 10 if 10 in counts else min(counts)
    layout = gallery.Layout(*(exact[name] for name in gallery.Layout._fields))
    rows = {EXACT: gallery.read(exact["pictures"], layout)}
    for (method, at), (shown, quality) in cells.items():
        if at == nfe:
            rmse = "astray" if quality["rmse"] is None else f"RMSE {significant(quality['rmse'])}"
            rows[f"{method}, {nfe} NFE\n{rmse}"] = gallery.read(shown["pictures"], layout)
    return pictures.side_by_side(rows, EXACT)
