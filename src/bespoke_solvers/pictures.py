"""Pictures: samples side by side, errors against evaluations and iterations, learned transforms."""

import io
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from bespoke_solvers.families import BASES, Bespoke
from bespoke_solvers.files import write_atomically
from bespoke_solvers.solver import Solver

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, EXACT = "#222222", "#111111"
COLOURS = ("#8a8f98", "#d1495b", "#edae49", "#00798c", "#6a4c93", "#6aa121", "#b5651d")
NFE, PSNR = "evaluations of the model (NFE)", "PSNR (dB)"

DISTANCE = 0.25  # of a picture in [-1, 1] to the exact one, from which on it has the brightest colour


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure in the style of all pictures, without a window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def save(figure: "Figure", path: str | os.PathLike[str], dpi: int = 150, colours: int | None = None) -> None:
    """Write a PNG in one go; with few colours (an octree's, which are true to thin lines), a quarter as large."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    if colours is not None:
        from PIL import Image

        with Image.open(buffer) as image:
            few = image.convert("RGB").quantize(colours, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        buffer = io.BytesIO()
        few.save(buffer, "PNG", optimize=True)
    write_atomically(path, buffer.getvalue())


def style(axes: "Axes", x: str, y: str, title: str = "") -> None:
    """Label the axes, and leave them two sides."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10, color=INK)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _log_scale(axes: "Axes") -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def is_picture(shape: Sequence[int]) -> bool:
    """Whether samples of that shape are pictures: 1 or 3 channels, height, width."""
    return len(shape) == 3 and shape[0] in (1, 3)


def to_uint8(x: Float[Tensor, "b c h w"]) -> Tensor:
    """Pictures in [-1, 1] as bytes, height x width x 3."""
    rgb = x.detach().float().cpu().expand(-1, 3, -1, -1)
    return ((rgb.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1)


def grid(x: Float[Tensor, "b c h w"], columns: int | None = None) -> Tensor:
    """Pictures as one, in rows; as square as may be by default."""
    tiles = to_uint8(x)
    columns = columns or max(1, round(len(tiles) ** 0.5))
    rows = -(-len(tiles) // columns)
    padded = tiles.new_full((rows * columns, *tiles.shape[1:]), 255)
    padded[: len(tiles)] = tiles
    _, height, width, channels = tiles.shape
    cells = padded.reshape(rows, columns, height, width, channels).transpose(1, 2)
    return cells.reshape(rows * height, columns * width, channels)


def check_drawable(shape: Sequence[int]) -> None:
    """Refuse a shape of which no picture can be drawn."""
    if not is_picture(shape) and tuple(shape) != (2,):
        raise ValueError(
            f"samples of the shape {tuple(shape)} make no PNG (that takes 1 or 3 channels x height x width, or points "
            "of the plane); give an output that ends in .safetensors"
        )


def save_samples(x: Tensor, path: str | os.PathLike[str], columns: int | None = None) -> None:
    """Samples as a PNG (`samples_png`)."""
    write_atomically(path, samples_png(x, columns))


def samples_png(x: Tensor, columns: int | None = None, like: Tensor | None = None) -> bytes:
    """Samples as a PNG: pictures in a grid, points of the plane as a scatter plot whose square holds those `like`."""
    check_drawable(x.shape[1:])
    buffer = io.BytesIO()
    if is_picture(x.shape[1:]):
        from PIL import Image

        image = Image.fromarray(grid(x, columns).numpy())
        scale = max(1, 256 // x.shape[-1] // 4)
        image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST).save(buffer, "PNG")
    else:
        figure = new_figure(4.5, 4.5)
        _scatter(figure.add_subplot(), x, COLOURS[3], like=x if like is None else like)
        figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _scatter(axes: "Axes", x: Tensor, colour: str, like: Tensor) -> None:
    """Points of the plane, in a square that holds the points `like`."""
    points, frame = x.detach().cpu(), like.detach().cpu()
    centre, reach = (frame.amax(0) + frame.amin(0)) / 2, 0.55 * (frame.amax(0) - frame.amin(0)).max().item() + 1e-6
    axes.scatter(points[:, 0].tolist(), points[:, 1].tolist(), s=4, color=colour, linewidths=0)
    (x_centre, y_centre) = centre.tolist()
    axes.set(xlim=(x_centre - reach, x_centre + reach), ylim=(y_centre - reach, y_centre + reach))
    axes.locator_params(nbins=4)
    axes.tick_params(labelsize=6)
    axes.set_aspect("equal")


def side_by_side(rows: Mapping[str, Tensor], exact: str, count: int = 6) -> "Figure":
    """The same noise through several solvers: a row of pictures for each, or a panel of points of the plane.

    Beside each picture is its distance to that of the row `exact`.
    """
    if not is_picture(rows[exact].shape[1:]):
        figure = new_figure(2.2 * len(rows), 2.6)
        for axes, (name, x) in zip(figure.subplots(1, len(rows), squeeze=False)[0], rows.items(), strict=True):
            _scatter(axes, x, EXACT if name == exact else COLOURS[3], like=rows[exact])
            axes.set_title(name, fontsize=8, color=INK)
        return figure
    strips = {name: _strip(x[:count], rows[exact][:count]) for name, x in rows.items()}
    height, width = strips[exact].shape[:2]
    figure = new_figure(10, (8.5 * height / width + 0.09) * len(rows) + 0.2)
    for axes, (name, strip) in zip(figure.subplots(len(rows), squeeze=False)[:, 0], strips.items(), strict=True):
        axes.imshow(strip.numpy(), interpolation="nearest", aspect="auto")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9, color=INK)
    key = f"beside each picture: its distance to the exact one, from 0 (black) to {DISTANCE:g} and more (yellow)"
    axes.set_xlabel(f"{key}; colours go from -1 to 1", fontsize=8, color=INK)
    return figure


def _strip(x: Float[Tensor, "b c h w"], exact: Float[Tensor, "b c h w"]) -> Tensor:
    """Pictures in a row as bytes, each with its distance to the exact one in colours; equal ones have none."""
    from matplotlib import colormaps

    away = (x - exact).detach().float().cpu().square().mean(1).sqrt().nan_to_num(DISTANCE) / DISTANCE
    distance = torch.from_numpy(colormaps["inferno"](away.numpy())[..., :3] * 255).round().byte()
    if torch.equal(x, exact):
        distance = torch.full_like(distance, 255)
    gap = max(1, x.shape[-1] // 16)
    pairs = torch.nn.functional.pad(torch.stack([to_uint8(x), distance], 1), (0, 0, 0, gap), value=255)
    tiles = torch.nn.functional.pad(torch.cat(list(pairs.unbind(1)), 2), (0, 0, 0, 2 * gap), value=255)
    return torch.cat(list(tiles), 1)[:, : -3 * gap]


Panel = tuple[str, str, Mapping[str, Sequence[Sequence[float]]]]  # its title, what is measured, points by name


def errors_against_nfe(rows: Sequence[Mapping[str, Any]], highlight: str) -> "Figure":
    """RMSE and PSNR against NFE; a row has `method`, `nfe`, `rmse` and `psnr`."""
    rows = [row for row in rows if row["rmse"] is not None and row["psnr"] is not None]
    panels: list[Panel] = []
    for key, label in (("rmse", "RMSE"), ("psnr", PSNR)):
        series: dict[str, list[list[float]]] = {}
        for row in sorted(rows, key=lambda row: row["nfe"]):
            series.setdefault(row["method"], []).append([row["nfe"], row[key]])
        ordered = {method: series[method] for method in dict.fromkeys(row["method"] for row in rows)}
        panels.append((f"{label} to the exact samples", label, ordered))
    return curves([panels], NFE, highlight, width=4.4)


def curves(panels: Sequence[Sequence[Panel]], x: str, highlight: str, width: float = 3.7) -> "Figure":
    """Rows of panels with curves of the same names, on a logarithmic scale but for PSNR; one legend.

    Of three columns and more the panels are narrow, with the legend below: pages show a figure in their own width.
    """
    names = list(dict.fromkeys(name for row in panels for _, _, series in row for name in series))
    others, colours = [name for name in names if name != highlight], [*COLOURS[:1], *COLOURS[2:]]
    columns = len(panels[0])
    if columns > 2:
        figure = new_figure(2.75 * columns, 2.7 * len(panels) + 0.4)
    else:
        figure = new_figure(width * columns + 2.2, max(3.2 * len(panels), 0.21 * len(names) + 0.2))
    for row, line in zip(figure.subplots(len(panels), columns, squeeze=False), panels, strict=True):
        for axes, (title, y, series) in zip(row, line, strict=True):
            if not series:
                axes.set_axis_off()
                continue
            for name, points in series.items():
                own, i = name == highlight, 0 if name == highlight else others.index(name)
                axes.plot(
                    *zip(*points, strict=True),
                    marker="*" if own else "osD^vP"[(i + i // len(colours)) % 6],
                    markersize=10 if own else 4,
                    linewidth=2 if own else 1.2,
                    color=COLOURS[1] if own else colours[i % len(colours)],
                    label=name,
                )
            style(axes, x, y, title)
            axes.xaxis.label.set_size(10 if columns <= 2 else 9)
            _mark(axes, sorted({at for points in series.values() for at, _ in points}))
            if y != PSNR:
                _log_scale(axes)
    found = {label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    named = {"handles": found.values(), "labels": found.keys(), "frameon": False}
    if columns <= 2:
        figure.legend(loc="outside right upper", fontsize=8, **named)
        return figure
    for ncols in range(min(len(found), 2 * columns), 0, -1):
        legend = figure.legend(loc="outside lower center", fontsize=10, ncols=ncols, **named)
        if legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()
    figure.set_figheight(figure.get_figheight() + 0.2 * (-(-len(found) // ncols) - 1))
    return figure


def _mark(axes: "Axes", at: Sequence[float]) -> None:
    """Ticks at these values, with numbers at those that have room for one."""
    labelled: list[float] = []
    for value in at:
        if not labelled or value - labelled[-1] >= (at[-1] - at[0]) / 18:
            labelled.append(value)
    axes.set_xticks(labelled)
    axes.set_xticks(at, minor=True)


def errors_against_iterations(fits: Mapping[str, Mapping[str, Any]]) -> "Figure":
    """Validation RMSE during fits (`Solver.fit`); between two ticks (a closed form, say) it was not measured."""
    figure = new_figure(5, 3.4 + 0.18 * len(fits))
    axes = figure.add_subplot()
    for (label, fit), colour in zip(fits.items(), COLOURS[1:] * 9, strict=False):
        iterations, _, measured, *_ = zip(*fit["history"], strict=True)
        errors = [float("nan") if error is None else error for error in measured]
        axes.plot(iterations, errors, color=colour, marker="|", markersize=6, label=label)
        axes.axhline(errors[0], color=colour, linestyle="--", linewidth=0.8)
        kept = errors[iterations.index(fit["best_iteration"])]
        axes.plot(fit["best_iteration"], kept, marker="o", markersize=5, color=colour)
    _log_scale(axes)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", fontsize=8, frameon=False)
    style(axes, "iteration", "RMSE on held-out noise", "ticks: measured; dashed: the start; dot: the one kept")
    return figure


def learned_transform(solver: Solver) -> tuple[list[float], list[list[float]]] | None:
    """The nodes r of a Bespoke solver, and t, dt, s, ds at them (the slopes may end before r = 1); None for others."""
    if solver.family not in BASES or not solver.theta:
        return None
    tableau = BASES[solver.family]
    family = Bespoke(solver.nfe // tableau.stages, tableau)
    family.load_state_dict({name: torch.tensor(value, dtype=torch.float64) for name, value in solver.theta.items()})
    return family.r, [value.tolist() for value in family.nodes()]


def transform(solver: Solver) -> "Figure":
    """The learned t_r and s_r with their slopes (the paper's figures of theta); of another table, times and weights."""
    figure = new_figure(9, 3.6)
    left, right = figure.subplots(1, 2)
    if nodes := learned_transform(solver):
        r, (t, dt, s, ds) = nodes
        _slopes(left, r, t, dt)
        _slopes(right, r, s, ds)
        left.plot([0, 1], [0, 1], color=COLOURS[0], linestyle=":", linewidth=1)
        right.axhline(1, color=COLOURS[0], linestyle=":", linewidth=1)
        style(left, "r", "$t_r$", f"time: {solver.family}, {solver.nfe} NFE (dotted: base method)")
        style(right, "r", "$s_r$", "scale")
    else:
        left.plot(solver.table.t.tolist(), marker="o", color=COLOURS[3])
        style(left, "evaluation k", "$t_k$", f"times: {solver.family}, {solver.nfe} NFE")
        image = right.imshow(solver.table.b.tolist(), cmap="RdBu_r", vmin=-1, vmax=1)
        figure.colorbar(image, ax=right)
        style(right, "j", "k", "weights $b_{kj}$")
    return figure


def _slopes(axes: "Axes", r: list[float], values: list[float], slopes: list[float]) -> None:
    length = 0.35 / len(r)
    axes.plot(r, values, color=COLOURS[3], marker="o", markersize=4, linewidth=1)
    for x, y, slope in zip(r, values, slopes, strict=False):
        ends = [y - length * slope, y + length * slope]
        axes.plot(
            [x - length, x + length], ends, color=COLOURS[1], linewidth=1.6, label="learned slope" if x == 0 else None
        )
    axes.legend(fontsize=8, frameon=False)
