"""Sampling paths in a plane (the paper's Figure 1)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from bespoke_solvers.pictures import COLOURS, EXACT, new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Tracks = dict[str, list[list[float]]]  # points of the plane by the name of a path


def in_plane(exact: Float[Tensor, "m *shape"], runs: Mapping[str, Sequence[Tensor]], sample: int) -> Tracks:
    """A sampling path and the states of each solver in the plane of their two principal components.

    `exact` holds points of the exact path, `runs` the states of each solver for a batch, `sample` is the path's place.
    A path that goes astray is cut there.
    """
    whole = {"exact": exact.flatten(1)} | {
        name: torch.stack([state[sample].flatten() for state in states]) for name, states in runs.items()
    }
    tracks = {name: track[track.isfinite().all(1).cumprod(0).bool()].cpu().double() for name, track in whole.items()}
    points = torch.cat([*tracks.values()])
    centre = points.mean(0)
    plane = torch.linalg.svd(points - centre, full_matrices=False).Vh[:2].T
    flat = {name: ((track - centre) @ plane).tolist() for name, track in tracks.items()}
    return {name: [[round(value, 4) for value in point] for point in track] for name, track in flat.items()}


def planes(several: Sequence[Mapping[str, Sequence[Sequence[float]]]]) -> "Figure":
    """Sampling paths in their planes (the paper's Figure 1), a panel for each; the exact one is named `exact`."""
    figure = new_figure(3.4 * len(several), 3.6)
    for i, (axes, tracks) in enumerate(zip(figure.subplots(1, len(several), squeeze=False)[0], several, strict=True)):
        for (name, track), colour in zip(tracks.items(), (EXACT, COLOURS[0], COLOURS[1], *COLOURS[3:]), strict=False):
            x, y = zip(*track, strict=True)
            axes.plot(x, y, color=colour, linewidth=1.4, marker=None if name == "exact" else ".", label=name)
            axes.plot(x[-1], y[-1], marker="*", markersize=10, color=colour)
        style(axes, "first principal component", "second", f"sample {i + 1}")
        axes.set(xticks=[], yticks=[])
        if i == 0:
            axes.legend(fontsize=7, frameon=False)
    return figure


def paths_in_plane(exact: Float[Tensor, "m b *shape"], runs: Mapping[str, Sequence[Tensor]]) -> "Figure":
    """`planes` of the samples of a batch."""
    return planes([in_plane(exact[:, i], runs, i) for i in range(exact.shape[1])])
