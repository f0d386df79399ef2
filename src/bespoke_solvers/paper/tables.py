"""The paper's tables of FID with ours beside them."""

from bespoke_solvers.paper import plan, printed
from bespoke_solvers.paper.lab import EXACT
from bespoke_solvers.paper.plan import NS, RK2_BESPOKE
from bespoke_solvers.paper.results import Results
from bespoke_solvers.report import Column, Note, Section, Table

Row = list[str | float | int | None]

COLUMNS = (
    Column("Model"),
    Column("NFE", "d"),
    Column("FID", ".2f"),
    Column("Exact", ".2f", spare=True),
    Column("% of it", ".0f"),
    Column("% time", ".1f"),
)


def own(results: Results, method: str = RK2_BESPOKE) -> list[Row]:
    """A method's lines: model, NFE, FID, that of the exact samples, the share of it, the share of the training time."""
    found: list[Row] = []
    for model in results.models:
        exact = results.record(model, "fid", EXACT, 0)
        for nfe, fitted in results.fits(model, method):
            fid = results.value(model, method, nfe, "fid")
            if fid is None or exact is None:
                continue
            training = results.about(model)["training"]
            time = 100 * fitted["seconds"] / training if training else None
            name = f"{model} ({results.parameterisation(model)})" + (f", {method}" if method != RK2_BESPOKE else "")
            found.append([name, nfe, fid, exact["fid"], 100 * fid / exact["fid"], time])
    return found


def _lines(table: str) -> list[Row]:
    """The paper's own."""
    return [[f"paper: {line.data}, {line.model}", *line[2:]] for line in printed.bespoke(table)]


def printed_tables(results: Results) -> list[Section]:
    """tab:cifar10_comprison, tab:cifar10_a and tab:imagenet_64_and_128; a note where no FID was measured."""
    ours = own(results)
    if not ours:
        text = "are of FID, which was not measured: it takes real pictures of the data (--real)."
        return [Note(plan.TABLES.name, f"The paper's {', '.join(plan.TABLES.labels)} {text}")]
    marked = list(dict.fromkeys(str(row[0]) for row in [*ours, *own(results, NS)]))
    text = (
        "FID of RK2-Bespoke, that of exact samples, the one in percent of the other, and the time of the fit in "
        "percent of the model's training. Ours stand out; the others are the paper's, of its own models."
    )
    by_label = zip(plan.TABLES.labels[1:], ("cifar10", "imagenet"), strict=True)
    tables: list[Section] = [
        Table(
            f"Bespoke solvers ({label})",
            text,
            COLUMNS,
            [*ours, *_lines(table)],
            marked,
        )
        for label, table in by_label
    ]
    others: list[Row] = [[f"paper: {method}", nfe, fid] for method, nfe, fid in printed.comparison()]
    compared = [row[:3] for row in [*ours, *own(results, NS)]]
    text = "FID of solvers and of distilled models on CIFAR10 in the paper, and of ours here."
    first = Table(f"Sampling compared ({plan.TABLES.labels[0]})", text, COLUMNS[:3], [*compared, *others], marked)
    return [first, *tables]
