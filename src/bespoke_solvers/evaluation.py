"""How close a table comes to the exact samples, on noise that no fit has seen."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bespoke_solvers.metrics import psnr, rmse
from bespoke_solvers.reference import own_error, solve
from bespoke_solvers.table import Table, sample
from bespoke_solvers.velocity import Model, Noise, NoiseSet, noise_seeds


class Quality(NamedTuple):
    """Root mean square error and peak signal-to-noise ratio in decibels, against the exact samples."""

    rmse: float
    psnr: float


@dataclass(frozen=True)
class HeldOut:
    """Noise in batches with its exact samples, the evaluations of u that one of them took, and their own RMSE."""

    model: Model
    noise: list[Noise]
    x1: Tensor
    evaluations: float
    own_error: float

    @torch.no_grad()
    def quality(self, table: Table) -> Quality:
        """RMSE and PSNR of a table, which is first fitted to the model's start and domain by `Table.on`."""
        on_model = table.detach().on(self.model)
        x1 = torch.cat([sample(on_model, self.model.bind(noise.condition), noise.x0) for noise in self.noise])
        return Quality(rmse(x1, self.x1), psnr(x1, self.x1))


def held_out(model: Model, noise_set: NoiseSet, seed: int, count: int, batch_size: int) -> HeldOut:
    """The first `count` samples of a noise set with their exact ends."""
    starts = range(0, count, batch_size)
    noise = [model.noise(noise_seeds(noise_set, seed, i, min(batch_size, count - i))) for i in starts]
    paths = [solve(model, batch) for batch in noise]
    evaluations = sum(path.evaluations for path in paths) / len(paths)
    return HeldOut(model, noise, torch.cat([path.x1 for path in paths]), evaluations, own_error(paths[0]))
