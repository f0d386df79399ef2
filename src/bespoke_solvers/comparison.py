"""Solvers side by side on the same new noise: figures, a table to read, and pictures."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from bespoke_solvers import dedicated, fid, gallery, pictures, portfolio, tracks
from bespoke_solvers.bank import Bank
from bespoke_solvers.cells import circumstances
from bespoke_solvers.evaluation import HeldOut, held_out
from bespoke_solvers.families import BASES, FAMILIES
from bespoke_solvers.files import write_atomically
from bespoke_solvers.generic import TABLEAUS
from bespoke_solvers.judge import Judge, in_words
from bespoke_solvers.metrics import decimals, rmse
from bespoke_solvers.reference import solve
from bespoke_solvers.solver import Solver
from bespoke_solvers.table import Table, states
from bespoke_solvers.velocity import Model

PATHS = 3  # samples in the picture of paths
PICTURES = ("theta.png", "errors.png", "fit.png", "paths.png", "samples.png")


@dataclass(frozen=True)
class Comparison:
    """One row for each method and number of evaluations; what it was measured on, FID and KID of the exact samples.

    shown: the first samples of each method and NFE, for pictures. reference_mean, reference_std: of the numbers of all
    exact samples, by which one sees whether they are what the model draws elsewhere. doubt: what speaks against the
    figures.
    """

    rows: list[dict[str, Any]]
    samples: int
    seed: int
    reference_evaluations: float
    reference_error: float
    exact: dict[str, Any] = field(default_factory=dict)
    judged: int = 0
    reference_mean: float | None = None
    reference_std: float | None = None
    doubt: str | None = None
    shown: dict[tuple[str, int], Tensor] = field(default_factory=dict, repr=False)

    def figures(self) -> dict[str, Any]:
        """For a file."""
        return {name: value for name, value in vars(self).items() if name != "shown"}


def name_of(solver: Solver) -> str:
    """`rk2-bespoke`, say."""
    return f"{solver.family}-bespoke" if solver.family in FAMILIES else solver.family


def methods(
    solvers: Sequence[Solver],
    baselines: Sequence[str],
    nfe: Sequence[int],
    model: Model,
    choose: HeldOut | None = None,
) -> tuple[dict[str, list[Table]], dict[tuple[str, int], str]]:
    """The tables to compare: the baselines at those of the NFE that they can have, and the solvers at their own.

    A baseline comes on the time grid that it names, `dpmpp-2m@karras`; with `choose`, one that names none comes at each
    NFE on the grid that is best for it on that set (the names of these grids, by method and NFE, come second), and
    without it on its usual one.
    """
    wanted = sorted({*nfe, *(solver.nfe for solver in solvers)})
    found: dict[str, list[Table]] = {}
    grids: dict[tuple[str, int], str] = {}
    for name in dict.fromkeys(baselines):
        for n in wanted:
            if not dedicated.possible(name, n):
                continue
            table = dedicated.baseline(name, n, model)
            if choose and name in dedicated.METHODS and (best := portfolio.best([name], n, model, choose)):
                table, grids[name, n] = best.table, best.name.partition("@")[2]
            found.setdefault(name, []).append(table)
    for solver in solvers:
        found.setdefault(name_of(solver), []).append(solver.table)
    return found, grids


def compare(
    bank: Bank,
    tables: Mapping[str, Sequence[Table]],
    seed: int,
    samples: int,
    progress: bool = False,
    judge: Judge | None = None,
    grids: Mapping[tuple[str, int], str] | None = None,
) -> Comparison:
    """RMSE and PSNR of every table on the same reporting noise; with a judge FID and KID, too.

    grids: the names of the time grids that were chosen, for the rows.
    """
    report = held_out(bank, "report", seed, samples, progress)
    jobs = [(name, table) for name, several in tables.items() for table in several]
    rows, shown = [], {}
    for name, table in tqdm(jobs, desc="methods", disable=not progress):
        x1 = report.sample(table, bank.model)
        shown[name, table.nfe] = x1[: gallery.most(bank.model)].clone()  # the others need not be kept
        figures = report.figures(x1)
        if judge and figures["rmse"] is not None and figures["psnr"] is not None:
            with suppress(fid.AstrayError):
                figures |= judge.table(table, bank.model)
        grid = (grids or {}).get((name, table.nfe))
        rows.append({"method": name, "nfe": table.nfe, **figures, **({"grid": grid} if grid else {})})
    exact, judged = (judge.exact(bank), judge.count) if judge else ({}, 0)
    return Comparison(
        rows,
        len(report.x1),
        seed,
        report.evaluations,
        report.own_error,
        exact,
        judged,
        reference_mean=report.x1.mean().item(),
        reference_std=report.x1.std(correction=0).item(),
        doubt=report.doubt(min((row["rmse"] for row in rows if row["rmse"] is not None), default=math.inf)),
        shown=shown,
    )


def as_text(comparison: Comparison) -> str:
    """RMSE / PSNR, a line for each method and a column for each NFE; blank where a method cannot have that NFE.

    Below it FID and KID in the same way, if there are any.
    """
    lines = _grid("RMSE / PSNR at NFE", comparison.rows, _cell)
    lines.append(
        f"on {comparison.samples} new samples; the exact ones took {comparison.reference_evaluations:.0f} evaluations "
        f"each and are exact to {comparison.reference_error:.0e}"
    )
    if comparison.doubt:
        lines.append(f"warning: {comparison.doubt}")
    if comparison.reference_mean is not None and comparison.reference_std is not None:
        moments = f"mean {comparison.reference_mean:.3g} and standard deviation {comparison.reference_std:.3g}"
        lines.append(f"the exact samples have {moments}")
    known = [row for row in comparison.rows if row["rmse"] and row.get("rmse_se") is not None]
    if known:
        most = max(row["rmse_se"] / row["rmse"] for row in known)
        lines.append(f"RMSE is the mean of each sample's; its standard error is at most {math.ceil(100 * most)} % here")
    chosen = [row for row in comparison.rows if "grid" in row]
    if chosen:
        lines.append("time grids, each the best of several on other samples, at (NFE):")
    for name in dict.fromkeys(row["method"] for row in chosen):
        on = (f"{row['grid']} ({row['nfe']})" for row in chosen if row["method"] == name)
        lines.append(f"  {name}: {', '.join(on)}")
    if comparison.exact:
        exact = comparison.exact["fid"]
        lines += ["", *_grid("FID at NFE", comparison.rows, lambda row: _share(row.get("fid"), exact))]
        told = in_words(comparison.exact)
        few = ", too few to tell solvers apart by it" if comparison.judged < fid.ENOUGH else ""
        lines.append(f"and in percent of the exact samples', {told}; on {comparison.judged:,} samples{few}")
    if "kid" in comparison.exact:
        lines += ["", *_grid("KID at NFE, in thousandths", comparison.rows, lambda row: _thousandths(row.get("kid")))]
        lines.append(f"exact samples: {_thousandths(comparison.exact['kid'])}")
    return "\n".join(lines)


def _grid(title: str, rows: Sequence[dict[str, Any]], cell: Callable[[dict[str, Any]], str]) -> list[str]:
    columns = sorted({row["nfe"] for row in rows})
    cells = {(row["method"], row["nfe"]): cell(row) for row in rows}
    names = dict.fromkeys(row["method"] for row in rows)
    width, wide = max(map(len, [*names, title])), max(16, *(2 + len(text) for text in cells.values()))
    lines = [f"{title:<{width}}" + "".join(f"{nfe:>{wide}}" for nfe in columns)]
    return lines + [
        f"{name:<{width}}" + "".join(f"{cells.get((name, n), ''):>{wide}}" for n in columns) for name in names
    ]


def _share(found: float | None, exact: float) -> str:
    return "went astray" if found is None else f"{found:.2f} ({100 * found / exact:.0f} %)"


def _thousandths(found: float | None) -> str:
    return "went astray" if found is None else f"{1000 * found:.2f}"


def _cell(row: dict[str, Any]) -> str:
    if row["rmse"] is None or row["psnr"] is None:
        return "went astray"
    return f"{decimals(row['rmse'])} / {row['psnr']:.1f}"


def write(
    comparison: Comparison,
    bank: Bank,
    solvers: Sequence[Solver],
    tables: Mapping[str, Sequence[Table]],
    folder: Path,
    command: str = "",
) -> list[Path]:
    """results.json and the pictures, in the place of an earlier comparison's; returns the files.

    command: what was typed, for the record.
    """
    made = comparison.figures() | {"tolerance": bank.rtol} | circumstances(command)
    write_atomically(folder / "results.json", json.dumps(made, indent=2, allow_nan=False).encode())
    drawn = {"theta.png": pictures.transform(solvers[0])}
    if len({row["nfe"] for row in comparison.rows}) > 1:
        drawn["errors.png"] = pictures.errors_against_nfe(comparison.rows, name_of(solvers[0]))
    if all(solver.fit.get("history") for solver in solvers):
        drawn["fit.png"] = pictures.errors_against_iterations({f"{s.family}, {s.nfe} NFE": s.fit for s in solvers})
    model = bank.model
    if math.prod(model.shape) > 1:
        drawn["paths.png"] = tracks.paths_in_plane(*_paths(bank, solvers[0], tables, comparison.seed))
    if gallery.can_show(model):
        drawn["samples.png"] = pictures.side_by_side(_samples(comparison, bank, solvers), "exact")
    for name in PICTURES:
        if name in drawn:
            pictures.save(drawn[name], folder / name)
        else:  # that of an earlier comparison would be taken for one of this
            (folder / name).unlink(missing_ok=True)
    return [folder / name for name in ("results.json", *drawn)]


def _samples(comparison: Comparison, bank: Bank, solvers: Sequence[Solver]) -> dict[str, Tensor]:
    """The pictures of the exact samples, and of those of all methods of the first solver's cost, the solvers first;
    with each its RMSE over these few."""
    count = gallery.most(bank.model)
    exact = held_out(bank, "report", comparison.seed, comparison.samples).x1[:count]
    cost, own = solvers[0].nfe, list(map(name_of, solvers))
    names = [name for name, nfe in comparison.shown if nfe == cost]
    names.sort(key=lambda name: (name != own[0], name not in own))
    seen = {name: bank.model.pictures(comparison.shown[name, cost][:count]) for name in names}
    exact = bank.model.pictures(exact)
    return {"exact": exact} | {f"{name}, {cost} NFE\nRMSE here {rmse(x, exact):.3f}": x for name, x in seen.items()}


@torch.no_grad()
def _paths(
    bank: Bank, solver: Solver, tables: Mapping[str, Sequence[Table]], seed: int
) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """A few exact paths, and the states on the way of the solver and of its base method."""
    few = bank.noise("report", seed, 0).first(PATHS)
    exact = solve(bank.model, few, rtol=bank.rtol, atol=bank.atol)
    runs = {}
    for name in (solver.validation.get("baseline", "euler"), name_of(solver)):
        for table in tables.get(name, ()):
            if table.nfe == solver.nfe:
                stages = (TABLEAUS.get(name) or BASES.get(solver.family) or TABLEAUS["euler"]).stages
                runs[name] = list(states(table, bank.model.bind(few.condition), few.x0))[::stages]
    return exact.at(torch.linspace(bank.model.t_lo, 1, 200, dtype=torch.float64)).x, runs


def headline(comparison: Comparison, solver: Solver) -> str:
    """One sentence: at which cost, how much closer than the best of the others."""
    same_cost = {row["method"]: row for row in comparison.rows if row["nfe"] == solver.nfe}
    own = same_cost.pop(name_of(solver))
    finite = [row for row in same_cost.values() if row["rmse"] is not None]
    if own["rmse"] is None or not finite:
        return f"With {solver.nfe} evaluations there is nothing to compare: the samples went astray."
    best = min(finite, key=lambda row: row["rmse"])
    return (
        f"With {solver.nfe} evaluations instead of {comparison.reference_evaluations:.0f}, the Bespoke solver comes "
        f"{best['rmse'] / own['rmse']:.1f} times closer to the exact samples than the best other, {best['method']}: "
        f"RMSE {decimals(own['rmse'])} against {decimals(best['rmse'])}, "
        f"{own['psnr']:.1f} dB against {best['psnr']:.1f} dB."
    )
