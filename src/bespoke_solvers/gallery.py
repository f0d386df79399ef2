"""The samples of many tables from the same noise, small enough for a report's viewer."""

import io
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from bespoke_solvers import pictures
from bespoke_solvers.evaluation import HeldOut
from bespoke_solvers.report import Cell, Note, Points, Viewer, png
from bespoke_solvers.table import Table
from bespoke_solvers.velocity import Model

PIXELS = 1_000_000  # of all sprites together: 3 to 4 MB as PNG in base64
COUNTS = (16, 9, 4)
POINTS = 200
TITLE = "Samples"


def viewer(
    model: Model, noise: HeldOut, tables: Mapping[str, Sequence[Table]], caption: Callable[[str, int], str], start: str
) -> Viewer | Note:
    """The first samples of every table beside the exact ones; `caption(method, nfe)` says how good they are.

    Pictures come as sprites: 16 of them, or 9 or 4 where they are large, made smaller where that is not enough. Points
    of the plane come as numbers.
    """
    if model.decode is None and model.shape != (2,) and not pictures.is_picture(model.shape):
        shape = " x ".join(map(str, model.shape))
        return Note(
            TITLE, f"Samples of the shape {shape} are neither pictures nor points of the plane: none are shown."
        )
    several = {(name, table.nfe): table for name, tables_ in tables.items() for table in tables_}

    def cells(shown: HeldOut, written: Callable[[Tensor], str | Points]) -> list[Cell]:
        return [
            Cell(name, nfe, written(shown.sample(table, model)), caption(name, nfe))
            for (name, nfe), table in several.items()
        ]

    if model.decode is None and model.shape == (2,):
        few = noise.first(POINTS)
        text = f"{len(few.x1)} points from the same noise, by the solver you choose and exact."
        return Viewer(TITLE, text, _points(few.x1), cells(few, _points), len(few.x1), 1, start)
    decoded = model.pictures(noise.first(COUNTS[0]).x1)
    share = PIXELS // (len(several) + 1)
    _, _, height, width = decoded.shape
    count = next((count for count in COUNTS if count * height * width <= share), COUNTS[-1])
    few = noise.first(count)
    smaller = min(1.0, math.sqrt(share / (count * height * width)))
    size = max(1, int(height * smaller)), max(1, int(width * smaller))
    columns = max(1, round(len(few.x1) ** 0.5))

    def sprite(x: Tensor) -> str:
        return _sprite(model.pictures(x), size, columns)

    text = (
        "The same noise, by the solver you choose and exact. Choose a solver, slide the number of evaluations; touch a "
        "sample to see it alone. Differences below 1/255 of the range of colours are black."
    )
    if smaller < 1:
        text += f" The pictures, {height} x {width}, are shown at {size[0]} x {size[1]}."
    exact = _sprite(decoded[: len(few.x1)], size, columns)
    return Viewer(TITLE, text, exact, cells(few, sprite), len(few.x1), columns, start)


def _points(x: Float[Tensor, "b 2"]) -> Points:
    """Four decimals; where a coordinate is not finite, a point without coordinates."""
    return [[round(value, 4) for value in point] if all(map(math.isfinite, point)) else [] for point in x.tolist()]


def _sprite(x: Float[Tensor, "b c h w"], size: tuple[int, int], columns: int) -> str:
    from PIL import Image

    finite = x.detach().float().cpu().nan_to_num(0, 1, -1).clamp(-1, 1)
    if size != tuple(x.shape[2:]):
        finite = torch.nn.functional.adaptive_avg_pool2d(finite, size)
    buffer = io.BytesIO()
    Image.fromarray(pictures.grid(finite, columns).numpy()).save(buffer, "PNG", optimize=True)
    return png(buffer.getvalue())
