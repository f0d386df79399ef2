"""FID and KID of a model's samples by its tables, beside those of its exact samples."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bespoke_solvers import data, fid
from bespoke_solvers.pictures import to_uint8
from bespoke_solvers.reference import solve
from bespoke_solvers.table import Table
from bespoke_solvers.velocity import Model, NoiseSet, noise_seeds

KEPT = 10_000  # features of each set, for KID


@dataclass(frozen=True)
class Judge:
    """The statistics of the real pictures, and on how many samples of which noise a table is judged."""

    real: fid.Statistics
    features: fid.Features
    count: int = 50_000
    seed: int = 0
    batch_size: int = 128
    noise_set: NoiseSet = "report"

    def table(self, table: Table, model: Model) -> dict[str, float]:
        """FID and KID of a table on the model (`Table.on`)."""
        return self._figures(self._samples(table, model))

    def fid(self, table: Table, model: Model) -> float:
        """FID alone, to choose by (`fit(rate=judge.fid)`)."""
        return fid.fid(fid.statistics(self._samples(table, model), self.features), self.real)

    def exact(self, model: Model, tolerance: float) -> dict[str, float]:
        """Those of the exact samples from the same noise."""

        def batches() -> Iterator[Tensor]:
            for start in range(0, self.count, self.batch_size):
                size = min(self.batch_size, self.count - start)
                noise = model.noise(noise_seeds(self.noise_set, self.seed, start, size))
                x1 = solve(model, noise, rtol=tolerance, atol=tolerance).x1
                yield to_uint8(model.pictures(x1)).permute(0, 3, 1, 2)

        return self._figures(batches())

    def _samples(self, table: Table, model: Model) -> Iterator[Tensor]:
        where: dict[str, Any] = {"noise_set": self.noise_set, "seed": self.seed, "batch_size": self.batch_size}
        return fid.samples(table, [model], self.count, **where)

    def _figures(self, batches: Iterator[Tensor]) -> dict[str, float]:
        drawn = fid.statistics(batches, self.features, keep=min(KEPT, self.count))
        figures = {"fid": fid.fid(drawn, self.real)}
        fewest = min(len(drawn.features), len(self.real.features), 1000)
        if fewest >= 2:
            figures["kid"] = fid.kid(drawn.features, self.real.features, subset_size=fewest).mean
        return figures


def real_pictures(path: Path, features: fid.Features) -> fid.Statistics:
    """The statistics of a file, or of a folder of `bespoke data`, in which they are kept (`fid.npz`)."""
    if not path.is_dir():
        return fid.load(path)
    kept = path / "fid.npz"
    if not kept.exists():
        pixels = data.load(path).pixels
        batches = (
            torch.from_numpy(pixels[start : start + 128].copy()).expand(-1, 3, -1, -1)
            for start in range(0, len(pixels), 128)
        )
        fid.statistics(batches, features, keep=KEPT).save(kept)
    return fid.load(kept)
