"""FID (Heusel et al. 2017) and KID (Binkowski et al. 2018): how far two sets of pictures are apart as distributions."""

import dataclasses
import io
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from tqdm.auto import tqdm

from bespoke_solvers import inception
from bespoke_solvers.description import describe, differences, in_words
from bespoke_solvers.files import write_atomically
from bespoke_solvers.pictures import is_picture, to_uint8
from bespoke_solvers.table import Table, sample
from bespoke_solvers.velocity import Model, Noise, NoiseSet, default_device, noise_seeds

ENOUGH = 10_000  # samples: of fewer, the bias of FID is larger than what solvers differ by
ROUNDED = 1e-4  # of the largest number, by which a covariance that was kept in half precision may be off
Features = Callable[[Tensor], Tensor]
Draw = Callable[[Model, Noise], Tensor]  # samples of a model from noise


class AstrayError(ValueError):
    """Samples that are not finite, of which there is no FID."""


@dataclass(frozen=True)
class Statistics:
    """What FID and KID need of a set: mean and covariance of its features in float64, and some features themselves.

    `count` is 0 where a file does not say how many pictures it was made of. `mark` tells by which features, `of` what
    pictures, where that is known.
    """

    mean: Tensor
    covariance: Tensor
    features: Tensor
    count: int
    mark: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))
    of: str = ""

    def __post_init__(self) -> None:
        d = self.mean.numel()
        for name, shape in {"mean": (d,), "covariance": (d, d), "features": (len(self.features), d)}.items():
            value = getattr(self, name)
            if tuple(value.shape) != shape:
                raise ValueError(f"{name} has the shape {tuple(value.shape)}; {d} features need {shape}")
            if not value.isfinite().all():
                raise ValueError(f"{name} holds a number that is not finite")
        rounding = ROUNDED * self.covariance.abs().amax()
        apart = (self.covariance - self.covariance.T).abs().amax()
        if apart > rounding or self.covariance.diagonal().amin() < -rounding:
            raise ValueError("the covariance (sigma) is not symmetric, or has a variance below 0: it is something else")

    @cached_property
    def factor(self) -> Float[Tensor, "d rank"]:
        """L with L L^T = covariance, without the eigenvalues that are rounding; on the GPU where there is one."""
        values, vectors = torch.linalg.eigh(self.covariance.to(default_device()))
        if values[0] < -ROUNDED * values[-1]:
            raise ValueError(
                f"the covariance (sigma) has the eigenvalue {values[0].item():.3g}, and {values[-1].item():.3g} as the "
                "largest; expected none below 0: it is no covariance, make the statistics again"
            )
        real = values > values[-1] * len(values) * torch.finfo(values.dtype).eps
        factor: Tensor = vectors[:, real] * values[real].sqrt()
        return factor

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an .npz file, with mean and covariance under the names of pytorch-fid's, `mu` and `sigma`."""
        buffer = io.BytesIO()
        mu, sigma, features, mark = (x.numpy() for x in (self.mean, self.covariance, self.features, self.mark))
        np.savez(buffer, mu=mu, sigma=sigma, features=features, count=self.count, mark=mark, of=self.of)
        write_atomically(path, buffer.getvalue())


def load(path: str | os.PathLike[str]) -> Statistics:
    """The statistics of a file, also of one that holds mu and sigma alone, as others publish."""
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path} of statistics")
    try:
        with np.load(io.BytesIO(Path(path).read_bytes()), allow_pickle=False) as file:
            content = {name: file[name] for name in file}
        mean, covariance = (torch.from_numpy(content[name]).double() for name in ("mu", "sigma"))
        features = torch.from_numpy(content.get("features", np.empty((0, len(mean)), np.float32)))
        mark = torch.from_numpy(content.get("mark", np.empty(0, np.float32)))
        return Statistics(mean, covariance, features, int(content.get("count", 0)), mark, str(content.get("of", "")))
    except KeyError as error:
        raise ValueError(f"{path} is no file of statistics: it has {sorted(content)}, but no {error}") from error
    except (ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged or no file of statistics ({error}); make it again") from error


def mark_of(features: Features, height: int, width: int) -> Tensor:
    """By which features are known again: those of two pictures that are always the same."""
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(256, (2, 3, height, width), generator=generator, dtype=torch.uint8)
    return features(pictures).detach().float().cpu()


def statistics(batches: Iterable[Tensor], features: Features | None = None, keep: int = 0) -> Statistics:
    """The statistics of uint8 pictures (b, 3, h, w) that come in batches; memory does not grow with their number.

    `features` makes (b, d) numbers of a batch; by default Inception, on the GPU where there is one. `keep` features are
    kept for KID: all if there are no more, or else a random choice, since pictures may be sorted.
    """
    if features is None:
        features = inception.load()
    generator = torch.Generator().manual_seed(0)
    count, mean, scatter = 0, torch.zeros(0), torch.zeros(0)
    for pictures in batches:
        new = features(pictures).detach()
        if count == 0:
            d = new.shape[-1]
            mean, scatter = new.new_zeros(d, dtype=torch.float64), new.new_zeros(d, d, dtype=torch.float64)
            kept, keys = torch.empty(0, d), torch.empty(0, dtype=torch.float64)
        if new.shape != (len(pictures), len(mean)) or not new.isfinite().all():
            wrong = f"{tuple(new.shape)}" if new.isfinite().all() else "numbers that are not finite"
            raise ValueError(
                f"the features of {len(pictures)} pictures are {wrong}; expected {len(mean)} finite numbers for each"
            )
        keys = torch.cat([keys, torch.rand(len(new), generator=generator, dtype=torch.float64)])
        chosen = keys.argsort()[:keep].sort().values
        kept, keys = torch.cat([kept, new.float().cpu()])[chosen], keys[chosen]
        # The scatter about the common mean, from those of the parts about their own (Chan et al. 1979).
        total, own_mean = count + len(new), new.double().mean(0)
        apart, centred = own_mean - mean, new.double() - own_mean
        scatter.addmm_(centred.T, centred).addr_(apart, apart, alpha=count * len(new) / total)
        mean += apart * (len(new) / total)
        count = total
    if count < 2:
        raise ValueError(f"got {count} pictures; a covariance takes two at least")
    return Statistics(mean.cpu(), scatter.cpu() / (count - 1), kept, count)


def samples(
    by: Table | Draw,
    models: Sequence[Model],
    count: int = 50_000,
    *,
    noise_set: NoiseSet = "report",
    seed: int = 0,
    batch_size: int = 128,
    progress: bool = False,
) -> Iterator[UInt8[Tensor, "b 3 h w"]]:
    """Samples by a table (or another way) from the first `count` noises of a set, in batches, as saved to PNG.

    The table must be on the model (`Table.on`). `models` is the same model once for each device that is to work; which
    device draws a batch does not change what is in it. u is called in threads, which an autocast outside u does not
    reach.
    """
    _check(models)

    def draw(start: int) -> Tensor:
        model = models[start // batch_size % len(models)]
        noise = model.noise(noise_seeds(noise_set, seed, start, min(batch_size, count - start)))
        with torch.no_grad():
            x1 = sample(by, model.bind(noise.condition), noise.x0) if isinstance(by, Table) else by(model, noise)
        pictures = model.pictures(x1)
        if not (x1.isfinite().all() and pictures.isfinite().all()):
            raise AstrayError(f"samples from {start} on are not finite; check the table, the model and its decoder")
        return to_uint8(pictures).permute(0, 3, 1, 2)

    starts = range(0, count, batch_size)
    with (
        ThreadPoolExecutor(len(models)) as threads,
        tqdm(total=count, desc="samples", unit="sample", disable=not progress) as bar,
    ):
        for first in range(0, len(starts), len(models)):
            # All of a round before the first is given away: features switch TF32 off for the whole process.
            for pictures in list(threads.map(draw, starts[first : first + len(models)])):
                yield pictures
                bar.update(len(pictures))


def check_pictures(model: Model) -> None:
    """Refuse a model whose samples are no pictures."""
    if model.decode is None and not is_picture(model.shape):
        raise ValueError(
            f"samples of the shape {model.shape} are no pictures, which FID is of: those have 1 or 3 channels; leave "
            "FID out, or give the Model a decode"
        )


def _check(models: Sequence[Model]) -> None:
    """Refuse samples that are no pictures, and models that are not one and the same."""
    if not models:
        raise ValueError("got no model; expected the model once for each device that is to work")
    check_pictures(models[0])
    if len(models) > 1:
        kept, *others = map(describe, models)
        for i, other in enumerate(others, 1):
            found = [in_words(name, *pair) for name, pair in differences(kept, other, tolerance=1e-3).items()]
            if found:
                raise ValueError(f"models[{i}] is another model than models[0]: {'; '.join(found)}")


def fid(a: Statistics, b: Statistics) -> float:
    """|m_a - m_b|^2 + tr(C_a + C_b - 2 (C_a C_b)^(1/2)), the squared Frechet distance of two Gaussians.

    The trace of the root is the sum of the singular values of L_a^T L_b with C = L L^T. The usual way, roots of the
    eigenvalues of C_a C_b, loses half of the digits, most where fewer pictures than features make C singular.
    """
    _check_alike(a.mean, b.mean)
    overlap = torch.linalg.svdvals(a.factor.T @ b.factor).sum().item()
    traces = a.covariance.trace() + b.covariance.trace()
    return float((a.mean - b.mean).square().sum() + traces - 2 * overlap)


class Kid(NamedTuple):
    """Mean and standard deviation of the squared distance over random subsets."""

    mean: float
    std: float


def kid(
    a: Float[Tensor, "m d"], b: Float[Tensor, "n d2"], subsets: int = 100, subset_size: int = 1000, seed: int = 0
) -> Kid:
    """The unbiased squared maximum mean discrepancy of two sets of features, with the kernel (x.y / d + 1)^3."""
    _check_alike(a, b)
    fewest = min(len(a), len(b))
    if not 2 <= subset_size <= fewest:
        raise ValueError(
            f"subset_size is {subset_size}, expected 2 to {fewest}, the features there are; keep more of them "
            "(statistics(..., keep=...)) or make the subsets smaller"
        )
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(subsets):
        chosen = (several[torch.randperm(len(several), generator=generator)[:subset_size]] for several in (a, b))
        x, y = (several.to(default_device()).double() for several in chosen)
        xx, yy, xy = ((p @ q.T / x.shape[1] + 1) ** 3 for p, q in ((x, x), (y, y), (x, y)))
        within = (xx.sum() - xx.trace() + yy.sum() - yy.trace()) / (subset_size * (subset_size - 1))
        found.append(within - 2 * xy.mean())
    distances = torch.stack(found)
    return Kid(distances.mean().item(), distances.std(correction=0).item())


def _check_alike(a: Tensor, b: Tensor) -> None:
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(f"the sets have {a.shape[-1]} and {b.shape[-1]} features; measure both with the same ones")
