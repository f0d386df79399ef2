"""A bank of exact paths: each is solved once, kept in memory or in a folder, and used by every fit for its model."""

import copy
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor
from tqdm.auto import tqdm

from bespoke_solvers.description import apart, describe, differences, in_words
from bespoke_solvers.files import write_atomically, write_new
from bespoke_solvers.reference import Paths, check_tolerance, own_error, regular_schedule, solve
from bespoke_solvers.velocity import Ends, Model, Noise, NoiseSet, noise_seeds

GIB = 2**30
IN_MEMORY = 2**30  # bytes of paths that are read from a folder once; of more, they are read each time
PRECISION = 0.03  # how far a model in half precision may be `apart` from the one in full
MANY = 2048  # numbers of samples that are solved a second time to see how exact they are


class BankFullError(RuntimeError):
    """The byte budget leaves no room for what was asked for."""


@dataclass
class Bank:
    """The exact paths of one model, in batches that are solved together.

    Batch `index` of a noise set is a function of the model, the seed and `batch_size` alone, so a bank can be filled in
    any order and at any time. With a folder, each batch is a safetensors file that appears whole or not at all, and an
    interrupted run loses the batch it was solving. `budget` is the most bytes that the bank may take.
    """

    model: Model
    folder: str | os.PathLike[str] | None = None
    batch_size: int = 32
    budget: int = 4 * GIB
    rtol: float = 1e-5
    atol: float = 1e-5
    _kept: dict[str, dict[str, Tensor]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be positive, got {self.batch_size}")
        check_tolerance(self.rtol, self.atol)
        if self.folder is not None:
            self.folder = Path(self.folder)
            self._open(self.folder)

    def _open(self, folder: Path) -> None:
        """Make the folder with its card `bank.json`, or see that the card there is this bank's."""
        settings = {"batch_size": self.batch_size, "rtol": self.rtol, "atol": self.atol, "dtype": str(self.model.dtype)}
        mine: dict[str, Any] = describe(self.model) | settings
        card, paths = folder / "bank.json", any(folder.glob("*.safetensors"))
        if not card.exists():
            if paths:
                raise ValueError(f"{folder} holds paths, but no {card.name} that says whose; use another (--bank)")
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ValueError(
                    f"the bank {folder} cannot be made ({error.strerror}); use another (--bank)"
                ) from error
            if write_new(card, json.dumps(mine, indent=2, allow_nan=False).encode()):
                return
        try:
            kept = json.loads(card.read_text())
        except ValueError:
            kept = None
        if not isinstance(kept, dict):
            raise ValueError(f"{card} is damaged or no card of a bank; use another folder")
        other = differences(kept, mine, tolerance=1e-3)
        if other:
            listed = "; ".join(in_words(name, *pair) for name, pair in other.items())
            raise ValueError(
                f"the bank in {folder} is of another model or setting: {listed}; give the settings that it has "
                "(--batch-size, --tolerance), use another (--bank), or remove that folder if the model has changed"
            )

    def check(self, model: Model, description: dict[str, Any] | None = None) -> None:
        """Refuse a bank of another model than this one, whose description may be given; precision may differ."""
        if self.model is not model and (
            differences(describe(self.model), description or describe(model), tolerance=math.inf)
            or apart(model, self.model) > PRECISION
        ):
            raise ValueError("the bank was made for another model; make it with Bank(model, ...) of the model to fit")

    def noise(self, noise_set: NoiseSet, seed: int, index: int) -> Noise:
        """The starting points of a batch."""
        return self.model.noise(noise_seeds(noise_set, seed, index * self.batch_size, self.batch_size))

    def paths(self, seed: int, index: int) -> Paths:
        """A batch of paths of the fitting set, with their dense output."""
        noise = self.noise("fit", seed, index)

        def make() -> dict[str, Tensor]:
            paths = self._solve(noise)
            names = {name: getattr(paths, name) for name in ("r", "x", "dx", "middle")}
            return names | {
                "x0_hat": paths.ends.x0,
                "x1_hat": paths.ends.x1,
                "evaluations": torch.tensor(paths.evaluations),
            }

        kept = self._keep(f"fit-{seed}-{index:06d}", make)
        x, dx, middle, x0, x1 = (kept[name].to(self.model.device) for name in ("x", "dx", "middle", "x0_hat", "x1_hat"))
        regular = regular_schedule(self.model)
        return Paths(self.model, noise, regular, kept["r"], x, dx, middle, Ends(x0, x1), int(kept["evaluations"]))

    def samples(self, noise_set: NoiseSet, seed: int, index: int) -> tuple[Noise, Tensor, int]:
        """A batch of another set: its noise, its exact samples, and the evaluations that each of them took."""
        noise = self.noise(noise_set, seed, index)

        def make() -> dict[str, Tensor]:
            paths = self._solve(noise)
            return {"x1": paths.x1, "evaluations": torch.tensor(paths.evaluations)}

        kept = self._keep(f"{'fit-ends' if noise_set == 'fit' else noise_set}-{seed}-{index:06d}", make)
        return noise, kept["x1"].to(self.model.device), int(kept["evaluations"])

    def bytes_of_paths(self, seed: int) -> int:
        """How much a batch of paths takes."""
        paths = self.paths(seed, 0)
        return _bytes({name: getattr(paths, name) for name in ("x", "dx", "middle")})

    def seconds(self, noise_set: NoiseSet, seed: int, batches: int) -> float:
        """How long the first batches took to solve, whenever that was: of the fitting set paths, of others samples."""
        return sum(self._took(f"{noise_set}-{seed}-{index:06d}") for index in range(batches))

    def own_error(self, noise_set: NoiseSet, seed: int) -> float:
        """The RMSE of the set's first samples against the same ones solved to a tenth of the tolerance.

        They are 8 for samples of many numbers; of fewer, up to a batch.
        """
        noise, x1, _ = self.samples(noise_set, seed, 0)
        count = max(8, min(len(x1), MANY // math.prod(self.model.shape)))

        def make() -> dict[str, Tensor]:
            error = own_error(self.model, noise, x1, rtol=self.rtol, atol=self.atol, count=count)
            return {"rmse": torch.tensor(error, dtype=torch.float64)}

        return float(self._keep(f"{noise_set}-{seed}-error", make)["rmse"])

    def fill(self, seed: int, count: int, progress: bool = False) -> int:
        """Solve `count` paths of the fitting set in whole batches; returns how many batches the budget allowed."""
        batches = -(-count // self.batch_size)
        for index in tqdm(range(batches), desc="exact paths", unit="batch", disable=not progress):
            try:
                self.paths(seed, index)
            except BankFullError as full:
                if index == 0:
                    raise
                warnings.warn(f"{full} The fit goes on with {index * self.batch_size} paths.", stacklevel=3)
                return int(index)
        return batches

    def _solve(self, noise: Noise) -> Paths:
        return solve(self.model, noise, rtol=self.rtol, atol=self.atol)

    def _keep(self, name: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """What was kept under that name, or else what `make` makes, kept from now on with the time that it took."""

        def timed() -> dict[str, Tensor]:
            started = time.monotonic()
            made = make()
            return made | {"seconds": torch.tensor(time.monotonic() - started, dtype=torch.float64)}

        if self.folder is None:
            if name not in self._kept:
                made = timed()
                self._check_budget(sum(_bytes(values) for values in self._kept.values()), _bytes(made))
                self._kept[name] = made
            return self._kept[name]
        path = Path(self.folder) / f"{name}.safetensors"
        if not path.exists():
            made = {key: value.cpu().contiguous() for key, value in timed().items()}
            content = to_bytes(made)
            files = [path.parent / "bank.json", *path.parent.glob("*.safetensors")]
            self._check_budget(sum(file.stat().st_size for file in files), len(content))
            write_atomically(path, content)
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged ({error}): remove it, and it is solved again") from error

    def _took(self, name: str) -> float:
        """The seconds beside what was kept; 0 in a bank of an earlier version."""
        if self.folder is None:
            return float(self._kept[name]["seconds"])
        with safe_open(Path(self.folder) / f"{name}.safetensors", "pt") as file:
            return float(file.get_tensor("seconds")) if "seconds" in file.keys() else 0.0  # noqa: SIM118

    def _check_budget(self, used: int, more: int) -> None:
        if used + more > self.budget:
            raise BankFullError(
                f"a batch of {self.batch_size} takes {more / GIB:.2g} GiB, which with the {used / GIB:.2g} GiB kept "
                f"already exceeds the budget of {self.budget / GIB:.2g} GiB; raise it or make the batches smaller."
            )


def _bytes(values: dict[str, Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in values.values())


class Batches(Sequence[Paths]):
    """The fitting paths, batch by batch: `kept` batches of the bank, or (None) each one solved when it is its turn."""

    def __init__(self, bank: Bank, model: Model, seed: int, kept: int | None) -> None:
        self.bank, self.model, self.seed, self.kept = bank, model, seed, kept
        size = bank.bytes_of_paths(seed) * kept if kept else 0
        self.in_memory = kept is not None and (bank.folder is None or size <= IN_MEMORY)
        self._read: dict[int, Paths] = {}
        self.evaluations = sum(paths.evaluations * bank.batch_size for paths in self)  # of u, for exact paths

    def _get(self, index: int) -> Paths:
        if index not in self._read:
            if not self.in_memory:
                self._read.clear()
            self._read[index] = self._make(index)
        return self._read[index]

    def _make(self, index: int) -> Paths:
        bank = self.bank
        if self.kept is None:
            paths = solve(bank.model, bank.noise("fit", self.seed, index), rtol=bank.rtol, atol=bank.atol)
            self.evaluations += paths.evaluations * bank.batch_size
        else:
            paths = bank.paths(self.seed, index)
        return replace(paths, model=self.model)

    def __len__(self) -> int:
        return self.kept or 0

    @overload
    def __getitem__(self, index: int) -> Paths: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Paths]: ...
    def __getitem__(self, index: int | slice) -> Paths | Sequence[Paths]:
        """A batch; or the first of them, of which none is read before its turn."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if (start, step) != (0, 1) or stop < 1:
                raise IndexError(f"batches {start} to {stop}; expected the first of them")
            first = copy.copy(self)
            first.kept = stop
            return first
        if index >= len(self):
            raise IndexError(index)
        return self._get(index)

    def turn(self, iteration: int) -> Paths:
        """The batch whose turn it is."""
        return self._get(iteration if self.kept is None else iteration % self.kept)
