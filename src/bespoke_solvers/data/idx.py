"""MNIST and what has its file format and names (Fashion-MNIST, KMNIST): idx files, plain or gzipped."""

import gzip
import struct
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from bespoke_solvers.data.sources import Portion, Source, blaming

STEMS = {"train": "train", "test": "t10k"}
PORTION = 2**22  # bytes read at a time


def find(folder: Path, split: str, size: int | None = None) -> Source | None:
    """The pictures and labels of a split; None if the folder has pictures of neither. Classes are the labels that
    occur, named by their number.

    size: the side of a square in whose middle they are put, on black; 28 x 28 cannot be halved as often as 32 x 32.
    """
    if not any(_file(folder, f"{stem}-images", "idx3") for stem in STEMS.values()):
        return None
    wanted = [(f"{STEMS[split]}-images", "idx3"), (f"{STEMS[split]}-labels", "idx1")]
    found = [_file(folder, *name) for name in wanted]
    for path, (stem, kind) in zip(found, wanted, strict=True):
        if path is None:
            raise ValueError(f"there is no {stem}-{kind}-ubyte or {stem}-{kind}-ubyte.gz in {folder}; add it")
    images, of_images = (path for path in found if path)
    with _open(of_images) as file:
        (count,) = _header(file, of_images, 2049)
        labels = np.frombuffer(_read(file, of_images, count + 1), np.uint8).astype(np.int64)
    if len(labels) != count:
        raise _wrong_length(of_images, len(labels), count, "labels")
    with _open(images) as file:
        pictures, height, width = _header(file, images, 2051)
    if pictures != count:
        raise ValueError(
            f"{images.name} has {pictures:,} pictures and {of_images.name} {count:,} labels; expected as many: "
            "take both files from one place"
        )
    if not (count and height and width):
        raise ValueError(f"{images.name} is empty: {count} pictures of {height} x {width}; fetch it again")

    if size is not None and size < max(height, width):
        raise ValueError(
            f"--size {size} is less than the {height} x {width} pictures of {images.name}, which get a margin at most; "
            f"expected {max(height, width)} or more"
        )
    of_class, labels = np.unique(labels, return_inverse=True)
    margins = [((size - side) // 2, (size - side + 1) // 2) for side in (height, width)] if size else []

    def portions() -> Iterator[Portion]:
        step = max(1, PORTION // (height * width))
        with _open(images) as file:
            _header(file, images, 2051)
            for first in range(0, count, step):
                few = labels[first : first + step]
                content = _read(file, images, len(few) * height * width)
                if len(content) != len(few) * height * width:
                    raise _wrong_length(images, first + len(content) // (height * width), count, "pictures")
                pixels = np.frombuffer(content, np.uint8).reshape(-1, 1, height, width)
                yield Portion(np.pad(pixels, [(0, 0), (0, 0), *margins]) if margins else pixels, few)
            if _read(file, images, 1):
                raise _wrong_length(images, count + 1, count, "pictures")

    classes = [str(label) for label in of_class]
    return Source(folder.resolve().name, [images.name, of_images.name], split, classes, count, portions)


def _file(folder: Path, stem: str, kind: str) -> Path | None:
    names = [f"{stem}{joint}{kind}-ubyte{ending}" for joint in "-." for ending in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _open(path: Path) -> BufferedIOBase:
    return gzip.open(path) if path.suffix == ".gz" else open(path, "rb")


def _read(file: BufferedIOBase, path: Path, size: int) -> bytes:
    with blaming(path.name, "a whole idx file; fetch it again"):
        return file.read(size)


def _header(file: BufferedIOBase, path: Path, magic: int) -> tuple[int, ...]:
    """The dimensions: one of labels (magic number 2049), three of pictures (2051)."""
    dimensions = magic % 256
    content = _read(file, path, 4 + 4 * dimensions)
    found = int.from_bytes(content[:4], "big")
    if len(content) < 4 + 4 * dimensions or found != magic:
        raise ValueError(
            f"{path.name} begins with the number {found} and {len(content)} bytes of header; expected {magic} and "
            f"{4 + 4 * dimensions}, as idx files of bytes do: fetch it again"
        )
    return struct.unpack(f">{dimensions}I", content[4:])


def _wrong_length(path: Path, found: int, expected: int, what: str) -> ValueError:
    here = f"ends after {found:,}" if found < expected else "goes on beyond the last"
    return ValueError(f"{path.name} {here} of its {expected:,} {what}; it is truncated or damaged: fetch it again")
