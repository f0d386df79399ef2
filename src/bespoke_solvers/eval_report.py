"""The report of a comparison: `bespoke eval` as a page that one can open and send."""

import os
import platform
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bespoke_solvers import __version__, gallery, pictures, report
from bespoke_solvers.bank import Bank
from bespoke_solvers.comparison import Comparison, name_of
from bespoke_solvers.evaluation import ENOUGH, held_out, margin
from bespoke_solvers.files import write_atomically
from bespoke_solvers.judge import in_words
from bespoke_solvers.pictures import NFE
from bespoke_solvers.report import Chart, Column, Curves, Headline, Learned, Provenance, Section
from bespoke_solvers.solver import Solver

ASTRAY = "astray"
FITTED = (
    *("objective", "stages", "start", "paths", "validation_paths", "tolerance", "seed"),
    *("iterations", "best_iteration", "evaluations", "seconds", "dtype", "torch", "bespoke_solvers"),
)


def write(
    path: str | os.PathLike[str],
    comparison: Comparison,
    bank: Bank,
    solvers: Sequence[Solver],
    name: str,
    command: str,
) -> None:
    """The report of a comparison as an HTML file. name: the model's; command: what made it."""
    content = report.page(f"Bespoke solvers for {name}", sections(comparison, bank, solvers, name, command))
    write_atomically(path, content.encode())


def sections(
    comparison: Comparison,
    bank: Bank,
    solvers: Sequence[Solver],
    name: str,
    command: str,
) -> list[Section]:
    """The headline, samples, curves, the table, what was learned, and how it was made."""
    own = list(dict.fromkeys(map(name_of, solvers)))
    rows = {(row["method"], row["nfe"]): row for row in comparison.rows}
    noise = held_out(bank, "report", comparison.seed, comparison.samples)
    return [
        headline(comparison, own, bank.rtol),
        gallery.viewer(bank.model, noise, comparison.shown, lambda *key: quality(rows[key]), own[0]),
        curves(comparison, own),
        table(comparison, own),
        learned(sorted(solvers, key=lambda solver: _error(rows.get((name_of(solver), solver.nfe), {})))),
        provenance(comparison, bank, solvers, name, command),
    ]


def headline(comparison: Comparison, own: Sequence[str], tolerance: float) -> Headline:
    """How many times fewer evaluations the most exact of our solvers takes, and what that loses.

    tolerance: that of the exact samples, which their evaluations depend on.
    """
    ours = [row for row in comparison.rows if row["method"] in own]
    measured = sorted((row for row in ours if row["rmse"] is not None), key=lambda row: row["rmse"])
    if not measured:
        return Headline("In short", "No result", "The solver's samples went astray: none of its figures is finite.")
    best, *others = measured
    cost = comparison.reference_evaluations
    sentence = (
        f"{best['method']} takes {best['nfe']} evaluations of the model a sample, the exact ones, to a tolerance of "
        f"{tolerance:g}, took {cost:.0f}. From the same noise, its samples ({comparison.samples:,}) compare with the "
        f"exact ones as follows: {quality(best)}."
    )
    more = [f"Careful: {comparison.doubt}."] if comparison.doubt else []
    rivals = [row for row in comparison.rows if row["method"] not in own and row["rmse"] is not None]
    if comparison.samples < ENOUGH:
        rivals = []
        more.append(f"Careful: one of so few samples can decide which solver is closer; take {ENOUGH} or more.")
    if alike := [row for row in rivals if row["nfe"] == best["nfe"]]:
        rival = min(alike, key=lambda row: row["rmse"])
        more.append(f"The best other method with {best['nfe']} evaluations, {rival['method']}: {quality(rival)}.")
    if rivals:
        more.append(_as_close(best, rivals, comparison.reference_error))
    if "fid" in best and comparison.exact:
        exact = comparison.exact["fid"]
        more.append(f"Its FID is {best['fid']:.2f}; that of the exact samples is {exact:.2f}.")
    if others:
        cheaper = sorted(others, key=lambda row: row["nfe"])
        for row in cheaper:
            which = "With" if row["method"] == best["method"] else f"{row['method']} with"
            more.append(f"{which} {row['nfe']} evaluations, {_fewer(cost, row)}: {quality(row)}.")
    figure = f"{_fewer(cost, best)} evaluations at RMSE {report.significant(best['rmse'])}"
    if alike and rival["rmse"] <= best["rmse"]:
        figure = f"{best['method']} with {best['nfe']} evaluations is no closer than {rival['method']}"
    return Headline("In short", figure, sentence, [*more, report.WORDS])


def _as_close(best: Mapping[str, Any], rivals: Sequence[Mapping[str, Any]], own_error: float) -> str:
    """What the other methods pay for an RMSE that is as low, or not higher by more than the noise."""

    def within(row: Mapping[str, Any]) -> float:
        return margin([each.get("rmse_se") or 0.0 for each in (row, best)], own_error)

    close = [row for row in rivals if row["rmse"] <= best["rmse"] + within(row)]
    if not close:
        return f"With up to {max(row['nfe'] for row in rivals)} evaluations, no other method comes as close."
    cheapest = min(close, key=lambda row: (row["nfe"], row["rmse"]))
    told = f"The cheapest other method that is as close is {cheapest['method']} with {cheapest['nfe']} evaluations"
    return told + ("." if cheapest["rmse"] <= best["rmse"] else ", within the noise of so many samples.")


def _error(row: Mapping[str, Any]) -> float:
    """To sort by; a solver that went astray is the last."""
    rmse = row.get("rmse")
    return float("inf") if rmse is None else rmse


def _fewer(cost: float, row: Mapping[str, Any]) -> str:
    """`12.7 times fewer`."""
    ratio = cost / row["nfe"]
    return f"{ratio:.1f} times fewer" if ratio >= 1 else f"{1 / ratio:.1f} times more"


def quality(row: Mapping[str, Any]) -> str:
    """`RMSE 0.0123, PSNR 45.6 dB`."""
    if row["rmse"] is None or row["psnr"] is None:
        return "samples that are not finite"
    judged = f", FID {row['fid']:.2f}" if "fid" in row else ""
    return f"RMSE {report.significant(row['rmse'])}, PSNR {row['psnr']:.1f} dB{judged}"


def curves(comparison: Comparison, own: Sequence[str]) -> Curves:
    """RMSE, PSNR and, where it was measured, FID against NFE."""

    def series(key: str) -> dict[str, list[list[float | int]]]:
        found: dict[str, list[list[float | int]]] = {}
        for row in sorted(comparison.rows, key=lambda row: row["nfe"]):
            if row.get(key) is not None:
                found.setdefault(row["method"], []).append([row["nfe"], row[key]])
        return found

    charts = [Chart("RMSE", NFE, series("rmse"), log=True), Chart("PSNR, dB", NFE, series("psnr"), decimals=1)]
    text = f"Distance to the exact samples from the same noise, on {comparison.samples:,} samples."
    if comparison.exact:
        exact, ends = comparison.exact["fid"], [row["nfe"] for row in comparison.rows]
        dotted = {"exact samples": [[min(ends), exact], [max(ends), exact]]}
        charts.append(Chart("FID", NFE, series("fid"), dotted, log=True, decimals=2))
        text += f" FID on {comparison.judged:,} samples; dotted: that of the exact ones, {in_words(comparison.exact)}."
    return Curves("Error against evaluations", text, charts, own)


def table(comparison: Comparison, own: Sequence[str]) -> report.Table:
    """All rows: by cost, and at the same cost the best first."""
    columns = {
        "method": Column("Method"),
        "nfe": Column("NFE", "d"),
        "fewer": Column("Times fewer", ".1f", spare=True),
        "grid": Column("Time grid", spare=True),
        "rmse": Column("RMSE", missing=ASTRAY),
        "rmse_se": Column("±", spare=True),
        "psnr": Column("PSNR", ".1f", missing=ASTRAY),
        "fid": Column("FID", ".2f"),
        "kid": Column("KID", ".4f"),
    }
    cost = comparison.reference_evaluations
    rows = [{"fewer": cost / row["nfe"]} | row for row in comparison.rows]
    rows.sort(key=lambda row: (row["nfe"], _error(row)))
    shown = [key for key in columns if any(key in row for row in rows)]
    text = (
        f"Lower RMSE and higher PSNR (dB) are better. Times fewer: than the exact samples, {cost:.0f} evaluations. "
        "±: the standard error of RMSE, which is the mean of each sample's."
    )
    return report.Table(
        "Comparison", text, [columns[key] for key in shown], [[row.get(key) for key in shown] for row in rows], own
    )


def learned(solvers: Sequence[Solver]) -> Learned:
    """The learned times and weights of each solver, or its time and scale; the first one is shown first."""
    text = (
        "A solver is a table of numbers: y_k = a_k x0 + sum of b_kj u_j over j < k, and u_k = u(t_k, y_k), where u is "
        "the model; t = 0 is noise, t = 1 is data, y_n the sample."
    )
    return Learned("What was learned", text, {f"{name_of(s)}, {s.nfe} NFE": plots(s) for s in solvers})


def plots(solver: Solver) -> dict[str, Any]:
    """What `Learned` shows of a solver."""
    t, a, b = (getattr(solver.table, name).tolist() for name in "tab")
    nodes = pictures.learned_transform(solver)
    if nodes is None:
        k = range(solver.nfe + 1)
        even = [[0, t[0]], [solver.nfe - 1, t[-1]]]
        charts = [
            Chart("Times t_k; dotted: evenly spaced", "evaluation k", {"t": _pairs(k, t)}, {"even": even}, decimals=4),
            Chart("Weights a_k of the noise", "k", {"a": _pairs(k, a)}, decimals=4),
        ]
    else:
        r, (t_r, dt_r, s_r, ds_r) = nodes
        base = "r = i/n; dotted: the base method"
        charts = [
            Chart(
                "Time t_r, with its slope",
                base,
                {"t": _pairs(r, t_r)},
                {"t = r": [[0, 0], [1, 1]]},
                _slopes(r, t_r, dt_r),
            ),
            Chart(
                "Scale s_r, with its slope",
                base,
                {"s": _pairs(r, s_r)},
                {"s = 1": [[0, 1], [1, 1]]},
                _slopes(r, s_r, ds_r),
            ),
        ]
    lines = ["k   t         a          b, the weights of the velocities before"]
    for i, (time, weight, row) in enumerate(zip([*(f"{time:.6f}" for time in t), "result  "], a, b, strict=True)):
        lines.append(f"{i:<3} {time}  {weight:+.6f}  " + " ".join(f"{value:+.6f}" for value in row[:i]))
    return {"charts": charts, "weights": b, "numbers": "\n".join(lines)}


def _pairs(x: Sequence[float] | range, y: Sequence[float]) -> list[list[float | int]]:
    return [list(pair) for pair in zip(x, y, strict=False)]


def _slopes(x: Sequence[float], y: Sequence[float], slope: Sequence[float]) -> list[list[float]]:
    return [list(each) for each in zip(x, y, slope, strict=False)]


def provenance(comparison: Comparison, bank: Bank, solvers: Sequence[Solver], name: str, command: str) -> Provenance:
    """The command, and what one needs to know to repeat or to doubt the figures."""
    device = torch.device(bank.model.device)
    measured = {
        "model": name,
        "samples": f"{comparison.samples:,} from noise that no fit and no choice has seen, seed {comparison.seed}",
        "exact samples": f"dopri5, tolerance {bank.rtol:g}: {comparison.reference_evaluations:.0f} evaluations each, "
        f"exact to RMSE {comparison.reference_error:.0e}",
        **({"samples for FID": f"{comparison.judged:,}"} if comparison.judged else {}),
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{device.type}, {platform.machine()}",
        "precision": str(bank.model.dtype).removeprefix("torch."),
        "versions": f"bespoke-solvers {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
    }
    described = {
        key: textwrap.shorten(in_text(value), 300, placeholder=" ...")
        for key, value in solvers[0].model.items()
        if key != "fingerprint" and value is not None
    }
    groups = {"Measured": measured, "The model, as the solver knows it": described} | _fits(solvers)
    return Provenance("Provenance", [command], {title: facts for title, facts in groups.items() if facts})


def _fits(solvers: Sequence[Solver]) -> dict[str, dict[str, str]]:
    """How the solvers were fitted: once what is common to all, then what is each one's own."""
    told = [[key for key in FITTED if solver.fit.get(key) is not None] for solver in solvers]
    facts = [
        {key.replace("_", " "): in_text(s.fit[key]) for key in keys} for s, keys in zip(solvers, told, strict=True)
    ]
    common = {key: value for key, value in facts[0].items() if all(each.get(key) == value for each in facts)}
    own = [{key: value for key, value in each.items() if key not in common} for each in facts]
    names = [f"Fit of {name_of(s)}, {s.nfe} NFE" for s in solvers]
    return {"The fits": common} | dict(zip(names, own, strict=True))


def in_text(value: Any) -> str:
    """JSON in words: `VP, B 20.0, b 0.1`."""
    if isinstance(value, Mapping):
        return ", ".join(in_text(item) if key == "name" else f"{key} {in_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(in_text, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
