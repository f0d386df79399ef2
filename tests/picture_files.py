"""Small data sets in the formats of the large ones."""

import gzip
import io
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from bespoke_solvers import data
from bespoke_solvers.data import cifar

RNG = np.random.default_rng(0)
CIFAR = RNG.integers(0, 256, (6, 20, 3, 32, 32), dtype=np.uint8)
CIFAR_LABELS = RNG.integers(0, 10, (6, 20), dtype=np.uint8)
BATCHES = [*cifar.SPLITS["train"], *cifar.SPLITS["test"]]


def prepare(source, out, **options):
    return data.prepare(Path(source), Path(out), progress=False, **options)


def binary(i: int) -> bytes:
    return np.concatenate([CIFAR_LABELS[i][:, None], CIFAR[i].reshape(20, -1)], axis=1).tobytes()


def pickled(i: int) -> bytes:
    """A batch with the opcodes that Python 2 and its numpy wrote."""

    def string(text: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(text)) + text

    shape, dtype = b"(K\x14M\x00\x0ct", b"cnumpy\ndtype\n(" + string(b"u1") + b"K\x00K\x01tR(K\x03" + string(b"|")
    dtype += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + string(b"b") + b"tR(K\x01"
    array += shape + dtype + b"\x89" + string(CIFAR[i].tobytes()) + b"tb"
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in CIFAR_LABELS[i]) + b"e"
    name = string(b"batch_label") + string(b"training batch 1 of 5")
    return b"\x80\x02}(" + name + string(b"data") + array + string(b"labels") + labels + b"u."


def pickled_again(i: int) -> bytes:
    return pickle.dumps({"data": CIFAR[i].reshape(20, -1), "labels": CIFAR_LABELS[i].tolist()}, protocol=4)


def cifar_folder(folder: Path, content=binary) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(BATCHES):
        (folder / (name + ".bin" * (content is binary))).write_bytes(content(i))
    return folder


def cifar_tar(folder: Path, content) -> Path:
    inside = "cifar-10-batches-bin" if content is binary else "cifar-10-batches-py"
    cifar_folder(folder / inside, content)
    with tarfile.open(folder / "cifar.tar.gz", "w:gz") as tar:
        tar.add(folder / inside, inside)
    return folder / "cifar.tar.gz"


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">I{array.ndim}I", 2048 + array.ndim, *array.shape) + array.tobytes()


GREY = RNG.integers(0, 256, (30, 28, 28), dtype=np.uint8)
GREY_LABELS = np.arange(30, dtype=np.uint8) % 10


def mnist_folder(folder: Path, ending: str = "") -> Path:
    folder.mkdir()
    pack = gzip.compress if ending else bytes
    for stem, part in (("train", slice(0, 20)), ("t10k", slice(20, 30))):
        (folder / f"{stem}-images-idx3-ubyte{ending}").write_bytes(pack(idx(GREY[part])))
        (folder / f"{stem}-labels-idx1-ubyte{ending}").write_bytes(pack(idx(GREY_LABELS[part])))
    return folder


def random_picture(height: int = 8, width: int = 8) -> np.ndarray:
    return RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)


def save(array: np.ndarray, path: Path, **options) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)
    return array


def zipped(folder: Path, path: Path, prefix: str = "") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, prefix + file.relative_to(folder).as_posix())
    return path


def encoded(image: Image.Image, format: str = "PNG", **options) -> bytes:
    content = io.BytesIO()
    image.save(content, format, **options)
    return content.getvalue()
