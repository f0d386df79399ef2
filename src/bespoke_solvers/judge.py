"""FID and KID of a model's samples by its tables, beside those of its exact samples."""

import dataclasses
import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from bespoke_solvers import data, dedicated, fid, portfolio
from bespoke_solvers.bank import Bank
from bespoke_solvers.cells import Record, Store
from bespoke_solvers.description import describe, digest
from bespoke_solvers.evaluation import held_out
from bespoke_solvers.fid import Draw, Statistics
from bespoke_solvers.metrics import decimals
from bespoke_solvers.pictures import is_picture, to_uint8
from bespoke_solvers.reference import solve
from bespoke_solvers.table import Table
from bespoke_solvers.velocity import Counter, Model, NoiseSet, noise_seeds

KEPT = 10_000  # features of each set, for KID
SOME = 8  # pictures of a folder, by which the statistics are known to be theirs
KEY = ("model", "method", "nfe", "on")  # of a judge's store
STAND_IN, FINE = "ipndm", (60, 120)  # a solver, and so many evaluations, which may stand for the exact samples
# Samples to see by whether it does, and the RMSE to them that FID does not see: it is 0.1 % off with 0.0018 on one
# network and 1.2 % with 0.0043 on another (docs/results-networks.md).
FEW, CLOSE = 32, 0.003
WORTH = 256  # samples, below which the search for that solver costs more than it saves


@dataclass(frozen=True)
class Judge:
    """The statistics of the real pictures, and on how many samples of which noise a table is judged.

    copies: the model on further devices, which share the work with that of the model itself.
    store: keeps what was measured (its key is `KEY`), so that a run that was interrupted need not measure it again.
    to: the real pictures and the features in a word (`mark`); by default their statistics to the last bit.
    """

    real: Statistics
    features: fid.Features
    count: int = 50_000
    seed: int = 0
    batch_size: int = 128
    noise_set: NoiseSet = "report"
    copies: Sequence[Model] = ()
    progress: bool = False
    store: Store | None = None
    to: str = ""

    @property
    def mark(self) -> str:
        """What its figures are of; those of another mark do not compare."""
        to = self.to or digest([self.real.mean, self.real.covariance])
        return f"FID to {to} on {self.count:,} samples of {self.noise_set} {self.seed}"

    def table(self, table: Table, model: Model) -> dict[str, float]:
        """FID and KID of a table on the model (`Table.on`)."""
        numbers = [table.t, table.a, table.b]
        return self._kept(model, f"table {digest(numbers)}", table.nfe, lambda: self._judged(table, model))

    def fid(self, table: Table, model: Model) -> float:
        """FID alone, to choose by: `fit(rate=judge.fid)`, of a judge with the noise set `choose`.

        Infinite where samples are not finite. Where the model counts its evaluations, those of the copies count, too.
        """
        counters = [Counter(copy.velocity) for copy in self.copies]
        counted = [dataclasses.replace(c, velocity=counter) for c, counter in zip(self.copies, counters, strict=True)]
        try:
            drawn = fid.statistics(dataclasses.replace(self, copies=counted)._samples(table, model), self.features)
        except fid.AstrayError:
            return math.inf
        finally:
            if isinstance(model.velocity, Counter):
                model.velocity.evaluations += sum(counter.evaluations for counter in counters)
        return fid.fid(drawn, self.real)

    def exact(self, bank: Bank) -> dict[str, Any]:
        """Those of the exact samples from the same noise.

        Where they are many, a solver with a fraction of their evaluations stands for them if it comes close; `by` then
        says which one.
        """
        what = f"exact to {bank.rtol:g} and {bank.atol:g}, {bank.batch_size} at a time"
        return self._kept(bank.model, what, 0, lambda: self._exact(bank))

    def _exact(self, bank: Bank) -> dict[str, Any]:
        if self.count < WORTH:
            return dict(self.solved(bank.model, bank.rtol, bank.atol))
        choose, report = (held_out(bank, noise_set, self.seed, FEW) for noise_set in ("choose", "report"))
        best = portfolio.best([STAND_IN], FINE[0], bank.model, choose)
        for name, nfe in [(best.name, nfe) for nfe in FINE] if best else []:
            table = dedicated.baseline(name, nfe, bank.model)
            apart = report.quality(table, bank.model).rmse
            if apart < CLOSE:
                return self._judged(table, bank.model) | {"by": stand_in(name, nfe, apart)}
        return dict(self.solved(bank.model, bank.rtol, bank.atol))

    def solved(self, model: Model, rtol: float, atol: float) -> dict[str, float]:
        """Those of the exact samples themselves."""
        return self._judged(exactly(rtol, atol), model)

    def _judged(self, by: Table | Draw, model: Model) -> dict[str, float]:
        return self.figures(self.drawn(by, model))

    def drawn(self, by: Table | Draw, model: Model) -> Statistics:
        """The statistics of the samples that are judged."""
        return fid.statistics(self._samples(by, model), self.features, keep=min(KEPT, self.count))

    def _kept(self, model: Model, what: str, nfe: int, measure: Callable[[], Record]) -> Record:
        """What was measured, from the store where it has it; an error is nothing to keep."""
        if self.store is None:
            return measure()
        known = _known([describe(model), self._seen(model)])
        on = f"{self.count} of {self.noise_set} {self.seed}, to {digest([self.real.mean, self.real.covariance])}"
        found = self.store.cell(dict(zip(KEY, (known, what, nfe, on), strict=True)), measure)
        assert found is not None
        return {name: found[name] for name in ("fid", "kid", "by") if name in found}

    def _seen(self, model: Model) -> list[float]:
        """By which a decoder and the features are known again: mean and spread of those of noise, decoded."""
        fid.check_pictures(model)
        pictures = to_uint8(model.pictures(model.noise(noise_seeds("report", 0, 0, 2)).x0)).permute(0, 3, 1, 2)
        seen = self.features(pictures).double()
        return [seen.mean().item(), seen.std().item()]

    def _samples(self, by: Table | Draw, model: Model) -> Iterator[Tensor]:
        where: dict[str, Any] = {"noise_set": self.noise_set, "seed": self.seed, "batch_size": self.batch_size}
        return fid.samples(by, [model, *self.copies], self.count, progress=self.progress, **where)

    def figures(self, drawn: Statistics) -> dict[str, float]:
        """FID of samples, and KID where there are two at least."""
        figures = {"fid": fid.fid(drawn, self.real)}
        fewest = min(len(drawn.features), len(self.real.features), 1000)
        if fewest >= 2:
            figures["kid"] = fid.kid(drawn.features, self.real.features, subset_size=fewest).mean
        return figures


def exactly(rtol: float, atol: float) -> Draw:
    """Draws the exact samples."""
    return lambda model, noise: solve(model, noise, rtol=rtol, atol=atol).x1


def stand_in(name: str, nfe: int, apart: float) -> str:
    """In words what stands for the exact samples, and how far from them it is."""
    return f"{name}, {nfe} NFE, {decimals(apart)} from them"


def _known(value: Any) -> str:
    """A mark of a description, in which numbers count to three digits: further ones differ between machines."""

    def rounded(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: rounded(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [rounded(each) for each in value]
        return f"{value:.3g}" if isinstance(value, float) else value

    return hashlib.sha256(json.dumps(rounded(value), sort_keys=True, default=str).encode()).hexdigest()[:16]


def in_words(exact: Mapping[str, Any]) -> str:
    """FID of the exact samples, and by what."""
    return f"{exact['fid']:.2f}" + (f" ({exact['by']})" if "by" in exact else "")


def check_real(path: Path) -> None:
    """Refuse what `real_pictures` cannot read; it needs no features, so it can be said before any work."""
    if path.is_dir():
        data.load(path)
    elif path.exists():
        fid.load(path)
    else:
        raise ValueError(f"there is no {path}; expected a folder of bespoke data, or an .npz file of statistics")


def check_size(path: Path, shape: Sequence[int]) -> None:
    """Doubt real pictures of another height or width than the samples; a file of statistics does not say its own."""
    if not (path.is_dir() and is_picture(shape)):
        return
    own, real = tuple(shape[1:]), data.load(path).pixels.shape[2:]
    if real != own:
        warnings.warn(
            f"the pictures in {path} have {real[0]} x {real[1]} pixels, the samples {own[0]} x {own[1]}: "
            "FID will be of that difference, too; make the data at the samples' size (bespoke data --size)",
            stacklevel=2,
        )


def real_pictures(path: Path, features: fid.Features, progress: bool = False) -> Statistics:
    """The statistics of a file, or of a folder of `bespoke data`, which keeps those of its last features (fid.npz).

    Pictures that took the place of others are known by the digests in data.json, and with the features by those of some
    pictures.
    """
    if not path.is_dir():
        found, own = fid.load(path), fid.mark_of(features, 32, 32).shape[1]
        if len(found.mean) != own:
            raise ValueError(
                f"{path} holds statistics of {len(found.mean)} features, but Inception gives {own}; give statistics of "
                "the same features, or a folder of bespoke data"
            )
        return found
    kept, known = path / "fid.npz", data.load(path)
    pixels, of = known.pixels, " ".join(known.digests)

    def coloured(which: slice) -> Tensor:
        return torch.from_numpy(pixels[which].copy()).expand(-1, 3, -1, -1)

    some = coloured(slice(None, None, max(1, len(pixels) // SOME)))
    mark = torch.cat([fid.mark_of(features, *pixels.shape[2:]), features(some).detach().float().cpu()])
    there = _kept_statistics(kept)
    if there and there.of == of and _alike(there.mark, mark):
        return there
    starts = tqdm(range(0, len(pixels), 128), desc="real pictures", unit="batch", disable=not progress)
    batches = (coloured(slice(start, start + 128)) for start in starts)
    found = dataclasses.replace(fid.statistics(batches, features, keep=KEPT), mark=mark, of=of)
    try:
        found.save(kept)
    except OSError as error:
        warnings.warn(f"the statistics of the real pictures are not kept for the next time: {error}", stacklevel=2)
    return found


def _kept_statistics(path: Path) -> Statistics | None:
    """Those that were kept, if they can be read; a damaged file is told of, and made again."""
    if not path.exists():
        return None
    try:
        return fid.load(path)
    except ValueError as error:
        warnings.warn(f"the kept statistics are not used: {error}", stacklevel=3)
        return None


def mark(real: Path, features: fid.Features) -> str:
    """What tells real pictures, and the networks whose features they are compared by, apart in the keys of cells.

    Of a folder of `bespoke data` it is the same on every machine, though the statistics are rounded otherwise there.
    """
    if real.is_dir():
        known = data.load(real)
        found = hashlib.sha256("".join(known.digests).encode() or np.ascontiguousarray(known.pixels).data)
    else:
        found = hashlib.sha256(real.read_bytes())
    if isinstance(features, torch.nn.Module):
        for value in features.state_dict().values():
            found.update(value.cpu().numpy().tobytes())
    return found.hexdigest()[:8]


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two marks are of the same features, be they rounded otherwise (TF32)."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-2, atol=1e-2 * other.abs().max().item())
