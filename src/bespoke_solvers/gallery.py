"""The samples of many tables from the same noise, small enough for a report's viewer."""

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bespoke_solvers import pictures
from bespoke_solvers.evaluation import HeldOut
from bespoke_solvers.report import Cell, Note, Points, Viewer, data_uri
from bespoke_solvers.velocity import Model

PIXELS = 1_000_000  # of all sprites together: about 3 MB as lossless WebP in base64
COUNTS = (16, 9, 4)
POINTS = 200
TITLE = "Samples"


class Layout(NamedTuple):
    """How many samples are shown, in how many columns, and the size of a picture; points of the plane have none."""

    shown: int
    columns: int
    size: tuple[int, int] | None


def can_show(model: Model) -> bool:
    """Whether its samples are pictures, or can be decoded to some, or are points of the plane."""
    return model.decode is not None or model.shape == (2,) or pictures.is_picture(model.shape)


def most(model: Model) -> int:
    """How many samples of a table a viewer shows at most."""
    return POINTS if model.shape == (2,) else COUNTS[0]


def layout(model: Model, noise: HeldOut, several: int, counts: Sequence[int] = COUNTS) -> Layout:
    """What `several` sprites together leave room for: the first of `counts` that fits, or the last, if need be smaller.

    Points of the plane are numbers, and take less.
    """
    if model.decode is None and model.shape == (2,):
        return Layout(min(POINTS, len(noise.x1)), 1, None)
    _, _, height, width = model.pictures(noise.first(1).x1).shape
    share = PIXELS // several
    count = next((count for count in counts if count * height * width <= share), counts[-1])
    smaller = min(1.0, math.sqrt(share / (count * height * width)))
    count = min(count, len(noise.x1))
    size = max(1, int(height * smaller)), max(1, int(width * smaller))
    return Layout(count, max(1, round(count**0.5)), size)


def drawn(model: Model, x: Tensor, layout: Layout) -> str | Points:
    """Samples for a viewer: a sprite as a data URI, or points."""
    return _points(x) if layout.size is None else _sprite(model.pictures(x), layout.size, layout.columns)


def read(drawn: str | Points, layout: Layout) -> Tensor:
    """Samples that `drawn` wrote: pictures, to 8 bits a colour, or points, nan where they were not finite."""
    if not isinstance(drawn, str) or layout.size is None:
        return torch.tensor([point or [math.nan, math.nan] for point in drawn])
    from PIL import Image

    with Image.open(io.BytesIO(base64.b64decode(drawn.partition(",")[2]))) as image:
        colours = torch.frombuffer(bytearray(image.convert("RGB").tobytes()), dtype=torch.uint8)
    height, width = layout.size
    tiles = colours.reshape(-1, height, layout.columns, width, 3).permute(0, 2, 4, 1, 3).flatten(0, 1)
    return tiles[: layout.shown] / 127.5 - 1


def text_of(layout: Layout, height: int | None = None) -> str:
    """What a reader must know of a viewer; height: of the pictures as they are."""
    if layout.size is None:
        return f"{layout.shown} points from the same noise, by a solver and exact."
    text = "The same noise, by a solver and exact. Differences below 1/255 of the range of colours are black."
    if height is not None and layout.size[0] < height:
        text += f" The pictures, {height} pixels high, are shown at {layout.size[0]} x {layout.size[1]}."
    return text


def viewer(
    model: Model,
    noise: HeldOut,
    samples: Mapping[tuple[str, int], Tensor],
    caption: Callable[[str, int], str],
    start: str,
) -> Viewer | Note:
    """The first samples of each method and NFE beside the exact ones; `caption(method, nfe)` says how good they are."""
    if not can_show(model):
        shape = " x ".join(map(str, model.shape))
        return Note(
            TITLE, f"Samples of the shape {shape} are neither pictures nor points of the plane: none are shown."
        )
    found = layout(model, noise, len(samples) + 1)
    few = noise.first(found.shown)
    cells = [
        Cell(name, nfe, drawn(model, x[: found.shown], found), caption(name, nfe)) for (name, nfe), x in samples.items()
    ]
    height = None if found.size is None else model.pictures(few.first(1).x1).shape[-2]
    return Viewer(TITLE, text_of(found, height), drawn(model, few.x1, found), cells, found.shown, found.columns, start)


def _points(x: Float[Tensor, "b 2"]) -> Points:
    """Four decimals; where a coordinate is not finite, a point without coordinates."""
    return [[round(value, 4) for value in point] if all(map(math.isfinite, point)) else [] for point in x.tolist()]


def _sprite(x: Float[Tensor, "b c h w"], size: tuple[int, int], columns: int) -> str:
    from PIL import Image, features

    finite = x.detach().float().cpu().nan_to_num(0, 1, -1).clamp(-1, 1)
    if size != tuple(x.shape[2:]):
        finite = torch.nn.functional.adaptive_avg_pool2d(finite, size)
    buffer, kind = io.BytesIO(), "webp" if features.check("webp") else "png"  # the former is a fifth smaller
    Image.fromarray(pictures.grid(finite, columns).numpy()).save(buffer, kind, lossless=True, quality=100, method=6)
    return data_uri(buffer.getvalue(), kind)
