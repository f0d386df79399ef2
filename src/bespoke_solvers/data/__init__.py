"""Real pictures as memory-mapped bytes: a folder of `pixels.npy`, `labels.npy` if there are labels, and `data.json`."""

import filecmp
import hashlib
import io
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor
from tqdm.auto import tqdm

from bespoke_solvers.data import cifar, idx, photos
from bespoke_solvers.data.sources import Source, blaming
from bespoke_solvers.files import write_atomically

FORMAT = "bespoke-solvers pictures 1"
CONTENT = ("split", "classes", "count", "shape", "sha256", "labels_sha256")
ANEW = "remove the folder and make it again with bespoke data"


@dataclass(frozen=True)
class Pictures:
    """A prepared data set. The pixels stay on disk until they are asked for."""

    pixels: UInt8[np.ndarray, "n c h w"]
    labels: Int64[np.ndarray, " n"] | None
    classes: list[str]  # empty without labels
    name: str
    digests: tuple[str, ...] = ()  # of pixels and labels

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(
        self, indices: Sequence[int] | Int64[np.ndarray, " b"] | Int64[Tensor, " b"]
    ) -> tuple[Float32[Tensor, "b c h w"], Int64[Tensor, " b"] | None]:
        """Some pictures in [-1, 1], x / 127.5 - 1, and their labels."""
        chosen = np.asarray(indices, dtype=np.int64)
        x = torch.from_numpy(self.pixels[chosen]).float() / 127.5 - 1
        return x, None if self.labels is None else torch.from_numpy(self.labels[chosen])


def check(source: Path, out: Path, *, size: int | None = None, split: str = "train") -> Source:
    """What `prepare` would read; refuses all that can be seen to be wrong before the pictures are read."""
    if split not in cifar.SPLITS:
        raise ValueError(f"unknown split {split!r}; expected {' or '.join(cifar.SPLITS)}")
    if size is not None and size < 1:
        raise ValueError(f"the size must be positive, got {size}")
    found = _find(source, split, size)
    _is_free(out.resolve(), _facts(found, source, size))
    return found


def prepare(
    source: Path, out: Path, *, size: int | None = None, split: str = "train", progress: bool = True
) -> Pictures:
    """Read a data set and write it to the folder `out`, which is there whole or not at all.

    The source is CIFAR-10, MNIST or what has its format, or a folder or zip of pictures; it is recognised by its files.
    `size` is for the last, which are scaled, and for MNIST, which gets a margin. If `out` holds a data set already, the
    new one must be the same.
    """
    found = check(source, out, size=size, split=split)
    out, facts = out.resolve(), _facts(found, source, size)
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that had this one's number and was killed
    unfinished.mkdir()
    try:
        facts |= _write(found, unfinished, progress)
        write_atomically(unfinished / "data.json", json.dumps(facts, indent=2).encode())
        load(unfinished)
        if _is_free(out, facts):
            if out.exists():
                out.rmdir()
            unfinished.rename(out)
        else:
            _check_unaltered(unfinished, out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return load(out)


def load(folder: Path) -> Pictures:
    """A prepared data set; what is missing or does not fit together is named."""
    card = _card(folder)
    shape, labels = (card["count"], *card["shape"]), None
    pixels = _array(folder / "pixels.npy", np.uint8, shape)
    if card["classes"]:
        labels = _array(folder / "labels.npy", np.int64, shape[:1])
        if labels.min() < 0 or labels.max() >= len(card["classes"]):
            raise ValueError(
                f"{folder / 'labels.npy'} has labels from {labels.min()} to {labels.max()}; expected 0 to "
                f"{len(card['classes']) - 1}, one for each class in data.json: {ANEW}"
            )
    digests = tuple(card[key] for key in ("sha256", "labels_sha256") if card.get(key))
    return Pictures(pixels, labels, card["classes"], card["name"], digests)


def _facts(found: Source, source: Path, size: int | None) -> dict[str, Any]:
    """What the card will say, as far as it is known before the pictures are read."""
    facts: dict[str, Any] = {
        "format": FORMAT,
        "name": found.name,
        "source": source.resolve().name,
        "files": found.files,
        "split": found.split,
        "classes": found.classes,
    }
    known = {"count": found.count, "shape": size and [1 if found.files else 3, size, size]}  # with files: MNIST's
    return facts | {key: value for key, value in known.items() if value}


def _card(folder: Path) -> dict[str, Any]:
    path = folder / "data.json"
    if not path.is_file():
        raise ValueError(f"there is no prepared data set in {folder} (no data.json); make one with bespoke data")
    with blaming(path, f"the card of a prepared data set: {ANEW}"):
        card = json.loads(path.read_text())
        name, classes, numbers = card["name"], card["classes"], [card["count"], *card["shape"]]
        strings = isinstance(classes, list) and all(isinstance(text, str) for text in [name, *classes])
        if card["format"] != FORMAT or not strings or len(numbers) != 4 or not all(n > 0 for n in numbers):
            raise ValueError(f"its format is {card['format']!r}, or its entries are not of their kind")
    return card  # type: ignore[no-any-return]


def _array(path: Path, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    if not path.is_file():
        raise ValueError(f"{path} is missing: {ANEW}")
    with blaming(path, f"the array that data.json beside it tells of: {ANEW}"):
        array: np.memmap = np.load(path, mmap_mode="r")
        if array.dtype != dtype or array.shape != shape:
            raise ValueError(f"it is {array.dtype} {array.shape}, not {np.dtype(dtype)} {shape}")
        length, expected = path.stat().st_size, array.offset + array.nbytes
        if length != expected:
            raise ValueError(f"it has {length:,} bytes, not {expected:,}")
    return array


def _is_free(out: Path, facts: dict[str, Any]) -> bool:
    """Whether a data set can be put there; if one is there already, it must agree with all that is known of the new."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"the output {out} is a file; expected a folder")
    if not out.exists() or not any(out.iterdir()):
        if out.is_mount():
            raise ValueError(f"{out} is a mount point, whose place a finished folder cannot take; give a folder in it")
        return True
    if not (out / "data.json").exists():
        raise ValueError(f"the folder {out} holds other files; give the name of a new or an empty folder")
    load(out)
    card = _card(out)
    other = {key: (card.get(key), facts[key]) for key in CONTENT if key in facts and facts[key] != card.get(key)}
    if other:
        listed = "; ".join(f"{key} {_short(there)} (here {_short(here)})" for key, (there, here) in other.items())
        raise ValueError(f"{out} holds another data set: {listed}; give another --out, or remove it")
    return False


def _check_unaltered(new: Path, out: Path) -> None:
    """Refuse a data set whose arrays are no longer those that its card has the digests of."""
    for file in sorted(new.glob("*.npy")):
        if not filecmp.cmp(file, out / file.name, shallow=False):
            raise ValueError(f"{out / file.name} was altered since it was made: {ANEW}")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 80 else f"{text[:76]} ..."


def _find(source: Path, split: str, size: int | None) -> Source:
    if not source.exists():
        raise ValueError(f"there is no {source}; expected a folder, a zip of pictures or CIFAR-10's .tar.gz")
    if (source / "data.json").is_file() and (source / "pixels.npy").is_file():
        raise ValueError(f"{source} is a prepared data set already; give it to bespoke pretrain, or to --fid, as it is")
    found = cifar.find(source, split) if source.is_dir() or tarfile.is_tarfile(source) else None
    if found and size is not None:
        raise ValueError(f"--size {size} is for pictures of any size; those of {', '.join(found.files)} have their own")
    if found is None and source.is_dir():
        found = idx.find(source, split, size)
    if found is None and source.is_file() and not zipfile.is_zipfile(source):
        raise ValueError(
            f"{source} is neither a zip of pictures nor CIFAR-10's .tar.gz, or it is damaged; give one of these, or a "
            "folder with pictures or with the files of CIFAR-10 or MNIST"
        )
    return found or photos.find(source, split, size)


def _write(source: Source, folder: Path, progress: bool) -> dict[str, Any]:
    """Write the arrays, a portion at a time; returns what is known only now."""
    digest, labels, shape, count = hashlib.sha256(), [], (), 0

    def header() -> None:  # as long for any count: numpy leaves room for its digits
        facts = {"descr": "|u1", "fortran_order": False, "shape": (count, *shape)}
        np.lib.format.write_array_header_1_0(file, facts)

    with (
        open(folder / "pixels.npy", "wb") as file,
        tqdm(total=source.count, desc="pictures", unit="", disable=not progress) as bar,
    ):
        for portion in source.portions():
            if not count:
                shape = portion.pixels.shape[1:]
                header()
            file.write(portion.pixels.data)
            digest.update(portion.pixels.data)
            count += len(portion.pixels)
            if portion.labels is not None:
                labels.append(portion.labels)
            bar.update(len(portion.pixels))
        file.seek(0)
        header()
        file.flush()
        os.fsync(file.fileno())
    facts = {"count": count, "shape": list(shape), "sha256": digest.hexdigest(), "labels_sha256": None}
    if labels:
        joined, content = np.concatenate(labels), io.BytesIO()
        np.save(content, joined)
        write_atomically(folder / "labels.npy", content.getvalue())
        facts["labels_sha256"] = hashlib.sha256(joined.data).hexdigest()
    return facts
