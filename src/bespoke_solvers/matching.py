"""The losses that flow and diffusion networks are trained with (the paper's appendix on pre-trained models).

A network sees x_t = alpha_t x1 + sigma_t x0 and the time 1000 (1 - t), and predicts, as diffusers' users expect it,

    flow       -(d_alpha x1 + d_sigma x0)    on the FM-OT path noise - data, so that dx/dt = -output,
    v          alpha x0 - sigma x1           on the FM/v-CS path dx/dt = -(pi / 2) output,
    epsilon    x0.

The loss is the mean square of the error: the paper's noise loss for epsilon, its CFM loss for flow, and (2 / pi)^2
times its CFM loss for v on the FM/v-CS path, which has the same minimiser.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from bespoke_solvers.adapters.diffusers import network_time
from bespoke_solvers.data import Pictures
from bespoke_solvers.schedules import Path, Schedule
from bespoke_solvers.velocity import expand


class Batch(NamedTuple):
    """All that a step draws at random, but the network's dropout."""

    pixels: UInt8[Tensor, "b c h w"]
    labels: Int[Tensor, " b"] | None
    flip: Bool[Tensor, " b"]
    t: Float[Tensor, " b"]
    x0: Float[Tensor, "b c h w"]


class Source:
    """Pictures to draw from: on a GPU that has room for them, else where they are.

    With `classes`, labels are drawn, too, replaced by the label `classes` as often as `label_dropout` says. With
    `flip`, half of the pictures are mirrored.
    """

    def __init__(
        self, data: Pictures, classes: int, label_dropout: float | None, flip: bool, device: torch.device
    ) -> None:
        self.classes, self.label_dropout, self.device = classes, label_dropout, device
        self.flipped = 0.5 if flip else 0.0
        self.pixels: np.ndarray | Tensor = data.pixels
        if device.type == "cuda" and data.pixels.nbytes < torch.cuda.mem_get_info(device)[0] / 3:
            self.pixels = torch.empty(data.pixels.shape, dtype=torch.uint8, device=device)
            for i in range(0, len(data.pixels), 4096):
                self.pixels[i : i + 4096] = torch.from_numpy(np.array(data.pixels[i : i + 4096]))
        self.labels = torch.tensor(np.asarray(data.labels), device=device) if classes else None

    def draw(self, count: int, schedule: Schedule) -> Batch:
        """`count` pictures with replacement, and times uniform on the schedule's domain."""
        if isinstance(self.pixels, Tensor):
            index = torch.randint(len(self.pixels), (count,), device=self.device)
            pixels = self.pixels[index]
        else:
            index = torch.randint(len(self.pixels), (count,))
            pixels = torch.from_numpy(np.array(self.pixels[index.numpy()])).to(self.device)
        labels = None
        if self.labels is not None:
            dropped = torch.rand(count, device=self.device) < (self.label_dropout or 0)
            labels = torch.where(dropped, self.classes, self.labels[index.to(self.device)])
        t_lo, t_hi = schedule.domain
        return Batch(
            pixels=pixels,
            labels=labels,
            flip=torch.rand(count, device=self.device) < self.flipped,
            t=t_lo + (t_hi - t_lo) * torch.rand(count, device=self.device),
            x0=torch.randn(pixels.shape, device=self.device),
        )


class Weights(NamedTuple):
    """target = x1_weight * x1 + x0_weight * x0."""

    x1_weight: Tensor
    x0_weight: Tensor


def target(prediction: str, path: Path) -> Weights:
    """What the network is to predict."""
    match prediction:
        case "flow":
            return Weights(-path.d_alpha, -path.d_sigma)
        case "v":
            return Weights(-path.sigma, path.alpha)
        case "epsilon":
            return Weights(torch.zeros_like(path.alpha), torch.ones_like(path.alpha))
    raise ValueError(f"no loss for the prediction {prediction!r}; expected flow, v or epsilon")


def loss(network: Callable[..., Any], schedule: Schedule, prediction: str, batch: Batch) -> Float[Tensor, ""]:
    """The mean square error on a batch; the network runs in bfloat16 on a GPU."""
    data = batch.pixels.float() / 127.5 - 1
    x1 = torch.where(batch.flip[:, None, None, None], data.flip(-1), data)
    path = schedule(batch.t)
    weights = target(prediction, path)
    x = (expand(path.alpha, x1) * x1 + expand(path.sigma, x1) * batch.x0).contiguous(memory_format=torch.channels_last)
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.device.type == "cuda"):
        output: Tensor = network(x, network_time(batch.t), class_labels=batch.labels).sample
    aim = expand(weights.x1_weight, x1) * x1 + expand(weights.x0_weight, x1) * batch.x0
    return (output.float() - aim).square().mean()


def check(loss: Tensor, weights: Sequence[Tensor], steps: int) -> None:
    """Refuse a loss or weights that are not finite any more: there is nothing to keep. It waits for the GPU."""
    whole = torch.stack([value.isfinite().all() for value in weights]).all()
    value, finite = torch.stack([loss, whole.to(loss)]).tolist()
    if not (math.isfinite(value) and finite):
        found = "the weights are not finite" if math.isfinite(value) else f"the loss is {value}"
        again = "give the command again with a smaller --learning-rate and another --out"
        raise ValueError(f"{found} after {steps} steps; {again}")
