"""The pictures of docs/how-it-works.md, of a mixture of three Gaussians on the line: python -m bench.figures."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from bespoke_solvers import Model, Solver, fit, schedules, toy
from bespoke_solvers.dedicated import baseline
from bespoke_solvers.families import bespoke_table
from bespoke_solvers.generic import MIDPOINT
from bespoke_solvers.metrics import rmse
from bespoke_solvers.pictures import COLOURS, EXACT, INK, new_figure, save
from bespoke_solvers.reference import Paths, solve
from bespoke_solvers.scale_time import Between, ScaleTime, identity
from bespoke_solvers.table import sample, states

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NFE = 4
RED, GREEN = COLOURS[1], COLOURS[3]


def model(schedule: schedules.Schedule | None = None) -> Model:
    return toy.gaussian_mixture(torch.tensor([[-1.2], [0.2], [1.0]]), 0.12, schedule, dtype=torch.float64)


def exact_paths(of: Model, points: int = 12) -> Paths:
    """From noise at equal steps of probability."""
    x0 = torch.special.ndtri((torch.arange(points, dtype=torch.float64) + 0.5) / points)[:, None]
    return solve(of, of.noise(range(points))._replace(x0=x0), rtol=1e-8, atol=1e-8)


def style(axes: "Axes", title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10, color=INK)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)


def draw_exact(axes: "Axes", paths: Paths, colour: str = "#b9bec6") -> None:
    t = torch.linspace(0, 1, 200, dtype=torch.float64)
    axes.plot(t, paths.at(t).x[..., 0], color=colour, linewidth=1)


def solvers(of: Model, ns: Solver) -> "Figure":
    """The inputs and the results of two solvers on the exact paths."""
    paths, figure = exact_paths(of), new_figure(8, 2.9)
    tables = {"the midpoint method": baseline("midpoint", NFE, of), "fitted to this model": ns.table}
    for axes, (name, table), colour in zip(
        figure.subplots(1, 2, sharey=True), tables.items(), (RED, GREEN), strict=True
    ):
        draw_exact(axes, paths)
        *inputs, result = states(table, of.bind(), paths.noise.x0)
        for t, y in zip(table.t, inputs, strict=True):
            axes.plot(t.expand(len(y)), y[:, 0], ".", color=colour, markersize=5)
        axes.plot(torch.ones(len(result)), result[:, 0], "*", color=colour, markersize=9, clip_on=False)
        error = rmse(result, paths.x1)
        style(
            axes,
            f"{name}, {NFE} evaluations, RMSE {error:.2g}",
            "t",
            "x" if axes.get_subplotspec().is_first_col() else "",
        )
    return figure


def tables(of: Model, ns: Solver) -> "Figure":
    """The weights a_k and b_kj of four solvers."""
    named = {name: baseline(name, NFE, of) for name in ("euler", "midpoint", "unipc@log-snr")} | {"fitted": ns.table}
    figure = new_figure(6, 4.6)
    for axes, (name, table) in zip(figure.subplots(2, 2).flat, named.items(), strict=True):
        rows = torch.cat([table.a[:, None], table.b], dim=1)
        axes.imshow(rows.tolist(), cmap="RdBu_r", vmin=-1, vmax=1)
        for k, row in enumerate(rows.tolist()):
            for j, value in enumerate(row[: k + 1]):
                axes.text(
                    j,
                    k,
                    f"{value:.2f}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if abs(value) > 0.6 else INK,
                )
        axes.set_xticks(range(NFE + 1), ["$x_0$", *(f"$u_{j}$" for j in range(NFE))])
        times = [f"{t:.2f}" for t in table.t.tolist()]
        axes.set_yticks(range(NFE + 1), [f"$y_{k}$, t = {t}" for k, t in enumerate(times)] + [f"$y_{NFE}$"], fontsize=8)
        style(axes, name, "", "")
    return figure


def transform(of: Model) -> "Figure":
    """Paths of the VP schedule, made those of CondOT by a change of time and scale (Theorem 2.3)."""
    paths, between = exact_paths(of), Between(of.schedule, schedules.CondOT())
    r = torch.linspace(float(between.inverse(torch.tensor(0.0))), 1, 200, dtype=torch.float64)
    t, _, s, _ = between(r)
    figure = new_figure(8.4, 2.8)
    left, middle, right = figure.subplots(1, 3)
    draw_exact(left, paths, RED)
    style(left, "x(t), as the model has them", "t", "")
    middle.plot(r, t, color=INK, label="$t_r$")
    middle.plot(r, s, color=INK, linestyle="--", label="$s_r$")
    middle.legend(frameon=False)
    style(middle, "time and scale", "r", "")
    right.plot(r, (s[:, None] * paths.at(t).x[..., 0]), color=GREEN, linewidth=1)
    style(right, "x_bar(r) = s_r x(t_r)", "r", "")
    return figure


def wavy(r: torch.Tensor) -> ScaleTime:
    """Some transform with t_0 = 0, t_1 = 1 and s_0 = 1, fitted to nothing."""
    turn = 2 * math.pi
    t, dt = r - 0.1 * torch.sin(turn * r) / 1.5, 1 - 0.1 * turn * torch.cos(turn * r) / 1.5
    return ScaleTime(t, dt, 1 + 0.3 * torch.sin(turn * r / 2), 0.3 * turn / 2 * torch.cos(turn * r / 2))


def errors(of: Model) -> "Figure":
    """Local and global errors of Euler's method on one path, and the order of the midpoint method under transforms."""
    paths, figure = exact_paths(of), new_figure(8.2, 3.2)
    left, right = figure.subplots(1, 2)
    one = 3
    fine, grid = (torch.linspace(0, 1, n, dtype=torch.float64) for n in (200, NFE + 1))
    left.plot(fine, paths.at(fine).x[:, one, 0], color=EXACT, label="exact x(t)")
    points = paths.at(grid)
    for i in range(NFE):
        reached = points.x[i, one, 0] + points.dx[i, one, 0] / NFE
        label = "a step from the exact path" if i == 0 else None
        left.plot(grid[i : i + 2], [points.x[i, one, 0], reached], color=GREEN, linewidth=1, marker=".", label=label)
        label = "local errors $d_1, ..., d_4$" if i == 0 else None
        left.plot(grid[[i + 1, i + 1]], [reached, points.x[i + 1, one, 0]], color=GREEN, linewidth=3.5, label=label)
    *inputs, result = states(baseline("euler", NFE, of), of.bind(), paths.noise.x0)
    left.plot(grid, torch.stack([*inputs, result])[:, one, 0], color=RED, marker=".", label="the solver's $y_k$")
    left.plot([1.02, 1.02], [result[one, 0], paths.x1[one, 0]], color=RED, linewidth=3.5, label="global error $e_4$")
    left.legend(frameon=False, fontsize=8)
    style(left, "Euler's method on one path", "t", "x")
    steps = [4, 8, 16, 32, 64]
    for name, warp, colour in (("t_r = r, s_r = 1", identity, INK), ("some other t_r and s_r", wavy, GREEN)):
        runs = [sample(bespoke_table(MIDPOINT, warp, n), of.bind(), paths.noise.x0) for n in steps]
        right.loglog([2 * n for n in steps], [rmse(x, paths.x1) for x in runs], marker="o", color=colour, label=name)
    right.loglog([30, 128], [1e-2, 1e-2 * (30 / 128) ** 2], color=COLOURS[0], linestyle=":", label="order 2")
    right.legend(frameon=False, fontsize=8)
    style(right, "the midpoint method on transformed paths", "NFE", "RMSE")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs"), help="the folder of the pictures")
    out = parser.parse_args().out
    straight = model()
    ns = fit(straight, nfe=NFE, progress=False)
    figures = {
        "solvers": solvers(straight, ns),
        "tables": tables(straight, ns),
        "transform": transform(model(schedules.VP())),
        "errors": errors(straight),
    }
    for name, figure in figures.items():
        save(figure, out / f"how-{name}.png")


if __name__ == "__main__":
    main()
