"""CIFAR-10 in its official forms: binary or pickled batches, in a folder or in the .tar.gz."""

import hashlib
import io
import pickle
import tarfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from bespoke_solvers.data.sources import Portion, Source, blaming

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
SPLITS = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
FOLDERS = {".bin": "cifar-10-batches-bin", "": "cifar-10-batches-py"}
SHAPE, RECORDS = (3, 32, 32), 10_000
PIXELS = 3 * 32 * 32
MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}


def find(source: Path, split: str) -> Source | None:
    """The batches of a split; None if there are none of any. Some may be missing, of which a warning is given."""
    readers = _in_folder(source) if source.is_dir() else _in_tar(source)
    ending = next((e for e in FOLDERS for names in SPLITS.values() for name in names if name + e in readers), None)
    if ending is None:
        return None
    expected = [name + ending for name in SPLITS[split]]
    files = [name for name in expected if name in readers]
    missing = ", ".join(name for name in expected if name not in readers)
    if not files:
        raise ValueError(f"{source} has no CIFAR-10 batches of the split {split!r}: {missing} not found; add them")
    if missing:
        warnings.warn(f"{source} is a part of CIFAR-10: {missing} not found", stacklevel=2)

    def portions() -> Iterator[Portion]:
        counts = {}
        for name in files:
            portion = (_binary if ending else _pickled)(readers[name](), name)
            counts[name] = len(portion.pixels)
            yield portion
        if short := [f"{name} with {count:,}" for name, count in counts.items() if count < RECORDS]:
            told = f"{', '.join(short)} pictures in {source}, where CIFAR-10's own have {RECORDS:,}"
            warnings.warn(f"cut batches of CIFAR-10? {told}; fetch them again", stacklevel=2)

    return Source("cifar10", files, split, CLASSES, None, portions)


def _in_folder(folder: Path) -> dict[str, Callable[[], bytes]]:
    names = [name + ending for names in SPLITS.values() for name in names for ending in FOLDERS]
    places = [folder / inside for inside in FOLDERS.values()] + [folder]
    return {name: (place / name).read_bytes for place in places for name in names if (place / name).is_file()}


def _in_tar(archive: Path) -> dict[str, Callable[[], bytes]]:
    expected = "CIFAR-10's whole .tar.gz; fetch it again"
    with blaming(archive.name, expected), tarfile.open(archive) as tar:
        members = [member for member in tar if member.isfile()]

    def reader(member: tarfile.TarInfo) -> Callable[[], bytes]:
        def read() -> bytes:
            with blaming(archive.name, expected), tarfile.open(archive) as tar:
                file = tar.extractfile(member)
                return file.read() if file else b""

        return read

    return {PurePosixPath(member.name).name: reader(member) for member in members}


def _binary(content: bytes, name: str) -> Portion:
    length = 1 + PIXELS
    count, rest = divmod(len(content), length)
    if rest or not 1 <= count <= RECORDS:
        raise ValueError(
            f"{name} has {len(content):,} bytes; expected {RECORDS * length:,}, which is {RECORDS:,} records of "
            f"{length:,} bytes, or fewer whole records; the file is truncated, damaged or another one: fetch it again"
        )
    records = np.frombuffer(content, np.uint8).reshape(count, length)
    return _portion(records[:, 1:], records[:, 0].astype(np.int64), content, name)


def _portion(pixels: UInt8[np.ndarray, "k _"], labels: Int64[np.ndarray, " k"], content: bytes, name: str) -> Portion:
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if len(labels) == RECORDS and found != MD5[name]:
        warnings.warn(f"{name} has the MD5 sum {found}, CIFAR-10's own has {MD5[name]}: a changed file?", stacklevel=2)
    wrong = np.flatnonzero((labels < 0) | (labels >= len(CLASSES)))
    if len(wrong):
        raise ValueError(
            f"{name}: picture {wrong[0]} has the label {labels[wrong[0]]}; expected 0 to {len(CLASSES) - 1}; the file "
            "is damaged or another one: fetch it again"
        )
    return Portion(np.ascontiguousarray(pixels).reshape(-1, *SHAPE), labels)


class _Array:
    """What a pickle says of a numpy array, held without asking numpy to believe it."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments, self.state = arguments, ()

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Batch(pickle.Unpickler):
    """Reads lists, dicts, strings, numbers and arrays of bytes; whatever else a pickle asks for is refused, not run."""

    def find_class(self, module: str, name: str) -> Any:
        known = {"numpy": ("ndarray", "dtype"), "numpy.core.multiarray": ("_reconstruct",)}
        if name not in known.get(module.replace("numpy._core", "numpy.core"), ()):
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which was not run")
        return _Array


def _pickled(content: bytes, name: str) -> Portion:
    """The official pickles were written by Python 2, whose strings are bytes here."""
    with blaming(name, "a pickled batch of CIFAR-10; fetch it again"):
        loaded = _Batch(io.BytesIO(content), encoding="bytes").load()
        batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in loaded.items()}
        _, shape, dtype, fortran, raw = batch["data"].state
        labels = np.array(batch["labels"])
        if dtype.arguments[0] not in (b"u1", "u1") or fortran:
            raise ValueError("its pixels are not bytes in C order")
        count = len(raw) // PIXELS
        if tuple(shape) != (count, PIXELS) or len(raw) != count * PIXELS or not 1 <= count <= RECORDS:
            raise ValueError(f"its pixels have the shape {shape} and {len(raw):,} bytes, not {RECORDS:,} x {PIXELS:,}")
        if labels.shape != (count,) or labels.dtype.kind != "i":
            raise ValueError(f"it has {count:,} pictures, and {labels.size:,} labels of type {labels.dtype}")
        pixels = np.frombuffer(raw, np.uint8).reshape(count, PIXELS)
    return _portion(pixels, labels.astype(np.int64), content, name)
