"""All figures as a table, and the paper's tables of FID with ours beside them."""

import math
from collections.abc import Sequence

from bespoke_solvers.eval_report import ASTRAY
from bespoke_solvers.fid import ENOUGH as FID_ENOUGH
from bespoke_solvers.judge import in_words
from bespoke_solvers.paper import plan, printed
from bespoke_solvers.paper.lab import EXACT
from bespoke_solvers.paper.plan import NS, OWN, RK2_BESPOKE
from bespoke_solvers.paper.results import Results
from bespoke_solvers.report import Choice, Column, Note, Section, Table

IMAGENET = printed.SIDES["ImageNet-64"]
Row = list[str | float | int | None]

COLUMNS = (
    Column("Model"),
    Column("NFE", "d"),
    Column("FID", ".2f", missing=ASTRAY),
    Column("Exact", ".2f", spare=True),
    Column("% of it", ".0f"),
    Column("% time", ".1f"),
)


def own(results: Results, models: Sequence[str], method: str = RK2_BESPOKE) -> list[Row]:
    """A method's lines: model, NFE, FID, that of the exact samples, the share of it, the share of the training time."""
    found: list[Row] = []
    for model in models:
        exact = results.record(model, "fid", EXACT, 0)
        for nfe, fitted in results.fits(model, method):
            fid = results.value(model, method, nfe, "fid")
            if fid is None or exact is None:
                continue
            training = results.training.get(model)
            time = 100 * fitted["seconds"] / training if training else None
            name = f"{results.title(model)}, {method}"
            figures = (fid, exact["fid"], 100 * fid / exact["fid"])
            found.append([name, nfe, *(value if math.isfinite(value) else None for value in figures), time])
    return found


def comparison(results: Results) -> Section | None:
    """All that was measured of each model: by cost, and at the same cost the best first."""
    parts: dict[str, Section] = {}
    columns = [Column("Method"), Column("NFE", "d"), Column("RMSE", missing=ASTRAY)]
    columns += [Column("PSNR", ".1f", ASTRAY), Column("FID", ".2f", ASTRAY)]
    for model in results.models:
        measured = [
            (name, nfe, [results.value(model, name, nfe, figure) for figure in ("rmse", "psnr", "fid")])
            for name in dict.fromkeys(name for each in results.experiments for name in results.methods(model, each))
            for nfe in plan.evaluations(name, results.counts.nfe)
            if results.value(model, name, nfe) is not None
        ]
        judged = any(fid is not None for _, _, (*_, fid) in measured)
        exact, text = results.record(model, "fid", EXACT, 0), "Lower RMSE and higher PSNR (dB) are better."
        if judged:
            text += f" So is lower FID, of {results.counts.fid_samples:,} samples"
            text += f"; that of exact ones is {in_words(exact)}." if exact else "."
            if not results.comparable("fid"):
                text += f" Of fewer than {FID_ENOUGH:,}, it is off by more than solvers differ."
        if measured:
            measured.sort(key=lambda row: (row[1], row[2][0] or 0.0))
            shown = columns if judged else columns[:-1]
            rows = [[name, nfe, *map(_cell, figures[: len(shown) - 2])] for name, nfe, figures in measured]
            parts[results.title(model)] = Table(f"All figures of {model}", text, shown, rows, OWN)
    return Choice("All figures", parts) if parts else None


def _cell(value: float | None) -> float | str | None:
    """Nothing where a figure was not measured, None where samples went astray."""
    return "" if value is None else value if math.isfinite(value) else None


def printed_tables(results: Results) -> list[Section]:
    """tab:cifar10_comprison, tab:cifar10_a and tab:imagenet_64_and_128; a note where there is no FID to compare."""
    everything = [*own(results, results.models), *own(results, results.models, NS)]
    count = f"{results.counts.fid_samples:,} samples"
    if not everything or not results.comparable("fid"):
        text = "which was not measured: it takes real pictures of the data (--real)."
        if everything:
            text = (
                f"which here is of {count}. Its bias is then larger than what solvers differ by, so it does not stand "
                f"beside the paper's, and no statement about FID is checked: that takes {FID_ENOUGH:,} (--fid-samples)."
            )
        return [Note(plan.TABLES.name, f"The paper's {', '.join(plan.TABLES.labels)} are of FID, {text}")]
    marked = list(dict.fromkeys(str(row[0]) for row in everything))
    compared, cifar10, imagenet = plan.TABLES.labels
    others: list[Row] = [[f"paper: {method}", nfe, fid, None, None] for method, nfe, fid in printed.comparison()]
    text = (
        f"FID of solvers here, of {count}, and of those on CIFAR10 in the paper's {compared}, of other networks. How "
        "low an FID can be is the network's doing, and that of its exact samples says it: a solver's is in percent of "
        "that. Below 100 % a solver is not better; its errors happen to lead towards the pictures."
    )
    tables: list[Section] = [
        Table("FID of solvers", text, COLUMNS[:5], [*(row[:5] for row in everything), *others], marked)
    ]
    small = [model for model in results.models if results.like(model) == printed.CIFAR10]
    large = [model for model in results.models if model not in small]
    for title, label, kept, models, size in (
        ("FID of RK2-Bespoke", cifar10, "cifar10", small, f"under {IMAGENET}"),
        ("FID of RK2-Bespoke, ImageNet", imagenet, "imagenet", large, f"of {IMAGENET} or more"),
    ):
        lines: list[Row] = [[f"paper: {line.data}, {line.model}", *line[2:]] for line in printed.bespoke(kept)]
        text = (
            f"FID of {count}, that of exact ones, the one in percent of the other, and the time of the fit by the "
            "clock, its exact paths included, in percent of that of the model's training. Ours stand out: all models "
            f"{size} pixels a side, whatever their data. The others are those of the paper's {label}, of its own "
            "models."
        )
        if ours := own(results, models):
            tables.append(Table(title, text, COLUMNS, [*ours, *lines], marked))
    return tables
