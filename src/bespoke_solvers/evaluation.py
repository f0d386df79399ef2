"""How close a table comes to the exact samples, on noise that no fit has seen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm.auto import tqdm

from bespoke_solvers.bank import Bank
from bespoke_solvers.metrics import mse, psnr, rmse
from bespoke_solvers.table import Table, sample
from bespoke_solvers.velocity import Model, Noise, NoiseSet

ENOUGH = 16  # samples: of fewer, one can decide which of two solvers is closer
HARMLESS = 1e-4  # an error of the reference that no one sees
ROUGH = 1 / 3  # of a solver's error, from which on that of the reference makes it seem over 5 % larger


class Quality(NamedTuple):
    """Root mean square error and peak signal-to-noise ratio in decibels, against the exact samples."""

    rmse: float
    psnr: float

    @property
    def score(self) -> float:
        """PSNR and RMSE in decibels together: a few samples astray hardly count in the one, for most in the other."""
        score = self.psnr - 20 * math.log10(max(self.rmse, 1e-30))
        return score if math.isfinite(score) else -math.inf

    def figures(self) -> dict[str, float | None]:
        """For a file: None where a solver went astray."""
        return {name: value if math.isfinite(value) else None for name, value in self._asdict().items()}


@dataclass(frozen=True)
class HeldOut:
    """Noise in batches with its exact samples; the mean number of evaluations that one took, and their own RMSE.

    own_error is measured for the set to report on alone, and NaN for others: it costs as much as many samples.
    """

    noise: list[Noise]
    x1: Tensor
    evaluations: float
    own_error: float

    def doubt(self, error: float) -> str | None:
        """What speaks against a solver's RMSE of that size."""
        return too_rough(self.own_error, error)

    def first(self, count: int) -> "HeldOut":
        """The first samples alone."""
        noise: list[Noise] = []
        for batch in self.noise:
            if count > 0:
                noise.append(batch.first(count))
                count -= len(batch.x0)
        return HeldOut(noise, self.x1[: sum(len(batch.x0) for batch in noise)], self.evaluations, self.own_error)

    @torch.no_grad()
    def sample(self, table: Table, model: Model) -> Tensor:
        """The table's samples from this noise; the table must be on the model (`Table.on`)."""
        return torch.cat([sample(table, model.bind(noise.condition), noise.x0) for noise in self.noise])

    def quality(self, table: Table, model: Model) -> Quality:
        """RMSE and PSNR of a table on the model (`Table.on`)."""
        return self.quality_of(self.sample(table, model))

    def quality_of(self, x1: Tensor) -> Quality:
        """RMSE and PSNR of samples from this noise."""
        return Quality(rmse(x1, self.x1), psnr(x1, self.x1))

    def figures(self, x1: Tensor) -> dict[str, float | None]:
        """RMSE, its standard error and PSNR of samples from this noise, for a file: None where some went astray."""
        return self.quality_of(x1).figures() | {"rmse_se": self.standard_error(x1)}

    def standard_error(self, x1: Tensor) -> float | None:
        """That of the RMSE, as the mean of each sample's; None for one sample, or where some went astray."""
        spread = mse(x1, self.x1).sqrt().std().item() / math.sqrt(len(x1)) if len(x1) > 1 else math.nan
        return spread if math.isfinite(spread) else None


def margin(errors: Sequence[float], own_error: float) -> float:
    """Within which two RMSE do not differ: twice the standard error of their difference, the two taken as independent,
    or the exact samples' own error."""
    return max(2 * math.hypot(*errors), own_error)


def too_rough(own_error: float, error: float) -> str | None:
    """What speaks against a solver's RMSE, in one sentence, where the exact samples' own one is not small beside it."""
    if not own_error > max(ROUGH * error, HARMLESS):
        return None
    return (
        f"the reference's own RMSE, {own_error:.1e}, is over a third of the solver's, {error:.1e}, and limits "
        "fits and figures; run the network in full float32 or with a smaller tolerance (--tolerance)"
    )


def held_out(bank: Bank, noise_set: NoiseSet, seed: int, count: int, progress: bool = False) -> HeldOut:
    """The first `count` samples of a noise set with their exact ends."""
    indices = range(-(-count // bank.batch_size))
    label = f"exact samples to {noise_set}"
    batches = [
        bank.samples(noise_set, seed, index) for index in tqdm(indices, desc=label, unit="batch", disable=not progress)
    ]
    noise, x1, evaluations = map(list, zip(*batches, strict=True))
    noise[-1] = noise[-1].first(count - bank.batch_size * (len(batches) - 1))
    own_error = bank.own_error(noise_set, seed) if noise_set == "report" else math.nan
    return HeldOut(noise, torch.cat(x1)[:count], sum(evaluations) / len(batches), own_error)
