"""Data sets are read as published, damage is named, and a prepared folder is there whole or not at all."""

import gzip
import hashlib
import io
import json
import os
import pickle
import signal
import struct
import subprocess
import sys
import tarfile
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bespoke_solvers import data
from bespoke_solvers.data import cifar, photos
from test_cli import refused, run

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


SOURCES = {
    "binary": lambda folder: cifar_folder(folder / "a"),
    "binary inside": lambda folder: cifar_folder(folder / "a" / "cifar-10-batches-bin").parent,
    "binary tar": lambda folder: cifar_tar(folder, binary),
    "pickles": lambda folder: cifar_folder(folder / "a", pickled),
    "pickles inside": lambda folder: cifar_folder(folder / "a" / "cifar-10-batches-py", pickled).parent,
    "pickles tar": lambda folder: cifar_tar(folder, pickled),
    "newer pickles": lambda folder: cifar_folder(folder / "a", pickled_again),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_cifar_in_all_its_forms(kind, tmp_path):
    source = SOURCES[kind](tmp_path)
    for split, chosen in (("train", slice(0, 5)), ("test", slice(5, 6))):
        made = prepare(source, tmp_path / split, split=split)
        assert np.array_equal(made.pixels, CIFAR[chosen].reshape(-1, 3, 32, 32))
        assert np.array_equal(made.labels, CIFAR_LABELS[chosen].flatten())
        assert (made.name, made.classes[3]) == ("cifar10", "cat")


def test_a_part_of_cifar_will_do_and_is_told(tmp_path):
    source = cifar_folder(tmp_path / "a")
    for name in ("data_batch_2.bin", "data_batch_4.bin", "test_batch.bin"):
        (source / name).unlink()
    with pytest.warns(UserWarning, match=r"a part of CIFAR-10: data_batch_2.bin, data_batch_4.bin not found"):
        made = prepare(source, tmp_path / "out")
    assert np.array_equal(made.pixels, CIFAR[[0, 2, 4]].reshape(-1, 3, 32, 32))
    with pytest.raises(ValueError, match=r"no CIFAR-10 batches of the split 'test': test_batch.bin not found"):
        prepare(source, tmp_path / "test", split="test")


def test_a_changed_whole_batch_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "RECORDS", 20)
    with pytest.warns(UserWarning, match=r"test_batch.bin has the MD5 sum \w+, CIFAR-10's own has 803d5f7f"):
        prepare(cifar_folder(tmp_path / "a"), tmp_path / "out", split="test")


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_mnist(ending, tmp_path):
    source = mnist_folder(tmp_path / "fashion", ending)
    for split, chosen in (("train", slice(0, 20)), ("test", slice(20, 30))):
        made = prepare(source, tmp_path / split, split=split)
        assert made.pixels.shape == (chosen.stop - chosen.start, 1, 28, 28)
        assert np.array_equal(made.pixels[:, 0], GREY[chosen])
        assert np.array_equal(made.labels, GREY_LABELS[chosen])
        assert (made.name, made.classes) == ("fashion", [str(i) for i in range(10)])


def zipped(folder: Path, path: Path, prefix: str = "") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, prefix + file.relative_to(folder).as_posix())
    return path


def test_folders_are_classes(tmp_path):
    kept = {name: save(random_picture(), tmp_path / "a" / name) for name in ("cat/1.png", "cat/2.PNG", "ant/x/y.bmp")}
    for passed_over in ("README.txt", ".hidden.png", "__MACOSX/cat/1.png", "cat/.1.png"):
        (tmp_path / "a" / passed_over).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "a" / passed_over).write_text("no picture")
    for source in (tmp_path / "a", zipped(tmp_path / "a", tmp_path / "a.zip")):
        made = prepare(source, tmp_path / "out")
        assert made.classes == ["ant", "cat"]
        assert made.labels.tolist() == [0, 1, 1]
        assert np.array_equal(made.pixels, [kept[name].transpose(2, 0, 1) for name in sorted(kept)])


def test_pictures_without_folders_have_no_labels(tmp_path):
    kept = [save(random_picture(6, 9), tmp_path / "a" / f"{i}.png") for i in range(3)]
    for source in (tmp_path / "a", zipped(tmp_path / "a", tmp_path / "a.zip")):
        made = prepare(source, tmp_path / "out")
        assert (made.labels, made.classes, made.name) == (None, [], "a")
        assert np.array_equal(made.pixels, np.stack(kept).transpose(0, 3, 1, 2)), "of one size: left as they are"
    assert made.batch([0])[1] is None
    assert not (tmp_path / "out" / "labels.npy").exists()


def test_splits_and_the_outermost_folder_of_a_zip(tmp_path):
    """As AFHQ is packed: afhq/train/cat/1.png."""
    a = save(random_picture(), tmp_path / "afhq" / "train" / "cat" / "1.png")
    b = save(random_picture(), tmp_path / "afhq" / "val" / "dog" / "2.png")
    for source in (tmp_path / "afhq", zipped(tmp_path / "afhq", tmp_path / "afhq.zip", prefix="afhq/")):
        for split, picture, name in (("train", a, "cat"), ("test", b, "dog")):
            made = prepare(source, tmp_path / split, split=split)
            assert made.classes == [name]
            assert np.array_equal(made.pixels, [picture.transpose(2, 0, 1)])
    assert json.loads((tmp_path / "test" / "data.json").read_text())["split"] == "test"
    with pytest.raises(
        ValueError, match="has no split 'test'; expected all its pictures in sub-folders test, train, val"
    ):
        prepare(tmp_path / "afhq" / "train", tmp_path / "other", split="test")


def test_a_class_may_be_called_train(tmp_path):
    for name in ("bus", "train"):
        save(random_picture(), tmp_path / "a" / name / "1.png")
    assert prepare(tmp_path / "a", tmp_path / "out").classes == ["bus", "train"]


def encoded(image: Image.Image, format: str = "PNG", **options) -> bytes:
    content = io.BytesIO()
    image.save(content, format, **options)
    return content.getvalue()


def test_every_kind_of_picture_becomes_rgb():
    colours = random_picture()
    assert np.array_equal(photos.to_pixels(encoded(Image.fromarray(colours)), None), colours.transpose(2, 0, 1))
    grey = Image.fromarray(colours[..., 0])
    assert np.array_equal(photos.to_pixels(encoded(grey), None), np.broadcast_to(colours[..., 0], (3, 8, 8)))
    deep = np.array([[0, 255, 256, 65535]], np.uint16)
    for format in ("PNG", "TIFF"):
        assert photos.to_pixels(encoded(Image.fromarray(deep), format), None).tolist() == [[[0, 0, 1, 255]]] * 3
    clear = Image.fromarray(np.array([[[10, 20, 30, 255], [10, 20, 30, 0], [0, 0, 0, 51]]], np.uint8))
    for image in (clear, clear.quantize(3)):
        assert photos.to_pixels(encoded(image), None).tolist() == [[[10, 255, 204]], [[20, 255, 204]], [[30, 255, 204]]]
    palette = Image.fromarray(colours).quantize(16)
    assert np.array_equal(
        photos.to_pixels(encoded(palette), None), np.asarray(palette.convert("RGB")).transpose(2, 0, 1)
    )
    flat = Image.new("RGB", (8, 8), (200, 100, 50))
    for image, format in ((flat, "WEBP"), (flat, "JPEG"), (flat.convert("CMYK"), "JPEG")):
        assert np.abs(photos.to_pixels(encoded(image, format), None).mean((1, 2)) - [200, 100, 50]).max() < 4
    floats = Image.fromarray(np.ones((2, 2), np.float32))
    with pytest.raises(ValueError, match="floats of no known range"):
        photos.to_pixels(encoded(floats, "TIFF"), None)


def test_exif_turns_a_picture_upright():
    turned, exif = random_picture(4, 6), Image.Exif()
    exif[0x0112] = 6
    upright = photos.to_pixels(encoded(Image.fromarray(turned), exif=exif), None)
    assert np.array_equal(upright.transpose(1, 2, 0), np.rot90(turned, -1))


def test_scaling_averages_and_crops_the_middle():
    array = random_picture(16, 24)
    means = array.reshape(4, 4, 6, 4, 3).astype(float).mean((1, 3))[:, 1:5]
    scaled = np.asarray(photos.square(Image.fromarray(array), 4)).astype(float)
    assert np.abs(scaled - means).max() <= 2, "two halvings of height and width, each rounded"
    assert np.array_equal(photos.square(Image.fromarray(array), 16), array[:, 4:20]), "right size: only cropped"
    for height, width in ((5, 9), (31, 17), (8, 200)):
        assert photos.square(Image.fromarray(random_picture(height, width)), 8).size == (8, 8)
    stripes = Image.fromarray(np.tile(np.array([[[0], [255]]], np.uint8), (31, 15, 3)))
    assert np.asarray(photos.square(stripes, 16))[:, 2:-2].std() < 40, "antialiased"


def test_pictures_of_several_sizes_are_brought_to_one(tmp_path):
    for i, shape in enumerate([(16, 16), (40, 20), (8, 30)]):
        save(random_picture(*shape), tmp_path / "a" / f"{i}.png")
    assert prepare(tmp_path / "a", tmp_path / "out", size=8).pixels.shape == (3, 3, 8, 8)


@pytest.fixture
def prepared(tmp_path):
    prepare(mnist_folder(tmp_path / "mnist"), tmp_path / "out")
    return tmp_path / "out"


def test_a_prepared_folder_is_mapped_and_gives_batches(prepared):
    loaded = data.load(prepared)
    assert isinstance(loaded.pixels, np.memmap)
    assert isinstance(np.load(prepared / "pixels.npy", mmap_mode="r"), np.memmap)
    for indices in ([3, 0, 19], np.array([3, 0, 19]), torch.tensor([3, 0, 19])):
        x, labels = loaded.batch(indices)
        assert (x.dtype, labels.dtype) == (torch.float32, torch.int64)
        torch.testing.assert_close(x[:, 0], torch.from_numpy(GREY[[3, 0, 19]]).float() / 127.5 - 1, rtol=0, atol=0)
        assert labels.tolist() == [3, 0, 9]
    assert loaded.batch([])[0].shape == (0, 1, 28, 28)


def test_the_card_says_what_it_is_and_not_where_it_came_from(prepared, tmp_path):
    text = (prepared / "data.json").read_text()
    assert str(tmp_path) not in text
    card = json.loads(text)
    assert card["sha256"] == hashlib.sha256(GREY[:20].tobytes()).hexdigest()
    assert card["files"] == ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"]
    assert (card["source"], card["split"], card["count"], card["shape"]) == ("mnist", "train", 20, [1, 28, 28])


def test_the_same_again_is_fine_and_another_is_refused(prepared, tmp_path):
    before = (prepared / "data.json").stat().st_mtime_ns
    prepare(tmp_path / "mnist", prepared)
    assert (prepared / "data.json").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match=r"out holds another data set: split train \(here test\)"):
        prepare(tmp_path / "mnist", prepared, split="test")
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").write_bytes(idx(GREY_LABELS[:20][::-1]))
    with pytest.raises(ValueError, match="out holds another data set: labels_sha256"):
        prepare(tmp_path / "mnist", prepared)
    assert data.load(prepared).labels[1] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mnist", "out"]


def test_the_output_may_be_empty_but_nothing_else(tmp_path):
    source = mnist_folder(tmp_path / "mnist")
    (tmp_path / "empty").mkdir()
    assert len(prepare(source, tmp_path / "empty")) == 20
    assert len(prepare(source, tmp_path / "new" / "deep")) == 20
    with pytest.raises(ValueError, match="holds other files; give the name of a new or an empty folder"):
        prepare(source, source)
    with pytest.raises(ValueError, match="is a file; expected a folder"):
        prepare(source, source / "train-images-idx3-ubyte")


def change(path: Path, edit) -> None:
    path.write_bytes(edit(path.read_bytes()))


def edited_card(**changes):
    return lambda folder: change(folder / "data.json", lambda text: json.dumps(json.loads(text) | changes).encode())


DAMAGES = {
    "no data.json": (lambda f: (f / "data.json").unlink(), r"no prepared data set in .*out \(no data.json\)"),
    "no pixels": (lambda f: (f / "pixels.npy").unlink(), r"pixels.npy is missing"),
    "no labels": (lambda f: (f / "labels.npy").unlink(), r"labels.npy is missing"),
    "half a card": (lambda f: change(f / "data.json", lambda b: b[:40]), r"data.json cannot be read"),
    "foreign card": (lambda f: (f / "data.json").write_text("[1]"), r"data.json cannot be read"),
    "other format": (edited_card(format="x"), r"data.json cannot be read \(its format is 'x'"),
    "no numbers": (edited_card(shape="abc"), r"data.json cannot be read"),
    "other count": (edited_card(count=21), r"pixels.npy .* uint8 \(20, 1, 28, 28\), not uint8 \(21, 1, 28, 28\)"),
    "few classes": (edited_card(classes=["a", "b"]), r"labels.npy has labels from 0 to 9; expected 0 to 1"),
    "short pixels": (lambda f: change(f / "pixels.npy", lambda b: b[:-1]), r"pixels.npy cannot be read"),
    "long pixels": (lambda f: change(f / "pixels.npy", lambda b: b + b"x"), r"15,809 bytes, not 15,808"),
    "other type": (lambda f: np.save(f / "pixels.npy", GREY[:20, None].astype(float)), r"pixels.npy .* float64"),
    "few labels": (lambda f: np.save(f / "labels.npy", np.arange(5)), r"labels.npy .* int64 \(5,\), not int64 \(20,\)"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_by_name(damage, prepared):
    harm, message = DAMAGES[damage]
    harm(prepared)
    with pytest.raises(ValueError, match=message):
        data.load(prepared)


class Evil:
    """Makes the file `harm` when it is unpickled by a careless reader."""

    def __reduce__(self):
        return os.system, ("touch harm",)


def bad_cifar(edit, content=binary):
    def make(folder: Path) -> Path:
        source = cifar_folder(folder / "a", content)
        change(source / ("data_batch_2" + ".bin" * (content is binary)), edit)
        return source

    return make


def bad_pickle(**changes):
    return bad_cifar(lambda b: pickle.dumps(pickle.loads(b) | changes, protocol=4), pickled_again)


def bad_mnist(name: str, edit, ending: str = ""):
    def make(folder: Path) -> Path:
        source = mnist_folder(folder / "a", ending)
        change(source / f"{name}-ubyte{ending}", edit)
        return source

    return make


def bad_pictures(**files: bytes | np.ndarray):
    def make(folder: Path) -> Path:
        (folder / "a").mkdir()
        for name, content in files.items():
            path = folder / "a" / f"{name}.png"
            save(content, path) if isinstance(content, np.ndarray) else path.write_bytes(content)
        return folder / "a"

    return make


def bad_zip(*names: str):
    def make(folder: Path) -> Path:
        with zipfile.ZipFile(folder / "a.zip", "w") as archive:
            for name in names:
                archive.writestr(name, encoded(Image.fromarray(random_picture())))
        return folder / "a.zip"

    return make


def broken(maker, edit):
    def make(folder: Path) -> Path:
        source = maker(folder)
        change(source, edit)
        return source

    return make


def written(name: str, content: bytes):
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def mixed(folder: Path) -> Path:
    save(random_picture(), folder / "a" / "cat" / "1.png")
    save(random_picture(), folder / "a" / "2.png")
    return folder / "a"


PICTURE, OTHER = random_picture(), random_picture(9, 8)
LATER = encoded(Image.fromarray(random_picture(64, 64)))
BAD = {
    "no source": (lambda folder: folder / "nothing", r"there is no .*nothing; expected a folder"),
    "text": (
        written("a.zip", b"hello"),
        r"a.zip is neither a zip of pictures nor CIFAR-10's .tar.gz, or it is damaged",
    ),
    "empty": (bad_pictures(), r"no pictures were found in .*a; expected files that end in .bmp"),
    "truncated batch": (
        bad_cifar(lambda b: b[:-100]),
        r"data_batch_2.bin has 61,360 bytes; expected 30,730,000, which",
    ),
    "empty batch": (bad_cifar(lambda b: b""), r"data_batch_2.bin has 0 bytes"),
    "wrong length": (bad_cifar(lambda b: b * 501), r"data_batch_2.bin has 30,791,460 bytes; expected 30,730,000"),
    "label": (
        bad_cifar(lambda b: b[:3073] + b"\x4d" + b[3074:]),
        r"data_batch_2.bin: picture 1 has the label 77; expec",
    ),
    "half a pickle": (
        bad_cifar(lambda b: b[:5000], pickled),
        r"data_batch_2 cannot be read \(.*\); expected a pickled",
    ),
    "no pickle": (bad_cifar(lambda b: b"hello", pickled), r"data_batch_2 cannot be read"),
    "pickled list": (bad_cifar(lambda b: pickle.dumps([1, 2]), pickled), r"data_batch_2 cannot be read"),
    "pickled code": (bad_cifar(lambda b: pickle.dumps(Evil()), pickled), r"asks for \w+.system, which was not run"),
    "numpy code": (
        bad_cifar(lambda b: b"cnumpy\nload\n(U\x01xtR.", pickled),
        r"asks for numpy.load, which was not run",
    ),
    "pickled label": (
        bad_pickle(labels=[0, 10, *[1] * 18]),
        r"data_batch_2: picture 1 has the label 10; expected 0 to 9",
    ),
    "pickled labels": (bad_pickle(labels=[1] * 19), r"data_batch_2 .*it has 20 pictures, and 19 labels of type int64"),
    "label types": (bad_pickle(labels=["a"] * 20), r"data_batch_2 cannot be read \(it has 20 pictures"),
    "pickled floats": (bad_pickle(data=np.ones((20, 3072))), r"data_batch_2 .*its pixels are not bytes in C order"),
    "pickled shape": (
        bad_pickle(data=np.ones((20, 3071), np.uint8)),
        r"data_batch_2 .*its pixels have the shape \(20, 3071\) and 61,420 bytes",
    ),
    "half a tar": (broken(lambda f: cifar_tar(f, binary), lambda b: b[: len(b) // 2]), r"cifar.tar.gz cannot be read"),
    "magic": (
        bad_mnist("train-images-idx3", lambda b: b"\0\0\x0d\x03" + b[4:]),
        r"train-images-idx3-ubyte begins with the number 3331 .* expected 2051",
    ),
    "no header": (
        bad_mnist("train-labels-idx1", lambda b: b[:5]),
        r"train-labels-idx1-ubyte begins .* 5 bytes of header",
    ),
    "counts": (
        bad_mnist("train-labels-idx1", lambda b: idx(GREY_LABELS[:19])),
        r"train-images-idx3-ubyte has 20 pictures and train-labels-idx1-ubyte 19 labels; expected as many",
    ),
    "few labels": (bad_mnist("train-labels-idx1", lambda b: b[:-1]), r"idx1-ubyte ends after 19 of its 20 labels"),
    "many labels": (
        bad_mnist("train-labels-idx1", lambda b: b + b"\0"),
        r"idx1-ubyte goes on beyond the last of its 20",
    ),
    "few pictures": (bad_mnist("train-images-idx3", lambda b: b[:-1]), r"idx3-ubyte ends after 19 of its 20 pictures"),
    "many pictures": (
        bad_mnist("train-images-idx3", lambda b: b + b"x"),
        r"idx3-ubyte goes on beyond the last of its 20",
    ),
    "half a gzip": (bad_mnist("train-images-idx3", lambda b: b[:-500], ".gz"), r"idx3-ubyte.gz cannot be read"),
    "no gzip": (bad_mnist("train-labels-idx1", lambda b: b"hello", ".gz"), r"idx1-ubyte.gz cannot be read"),
    "no pictures": (bad_mnist("train-images-idx3", lambda b: idx(GREY[:0])), r"has 0 pictures and"),
    "text as png": (bad_pictures(a=PICTURE, b=b"hello"), r"b.png cannot be read \(.*; expected a whole picture"),
    "half a png": (bad_pictures(a=LATER, b=LATER[:5000]), r"b.png cannot be read"),
    "sizes": (bad_pictures(a=PICTURE, b=OTHER), r"b.png has 8 x 9 pixels and a.png 8 x 8; .* need --size"),
    "beside a class": (mixed, r"2.png in .* lies beside the folder cat, which is a class"),
    "zip path": (bad_zip("a.png", "../b.png"), r"a.zip holds '../b.png', a path that leads out of it"),
    "zip root": (bad_zip("/etc/b.png"), r"a.zip holds '/etc/b.png', a path"),
    "zip backslash": (bad_zip("..\\b.png"), r"a path that leads out of it"),
    "zip content": (broken(bad_zip("a.png"), lambda b: b[:60] + b"xx" + b[62:]), r"a.png cannot be read \(Bad CRC-32"),
    "half a zip": (broken(bad_zip("a.png"), lambda b: b[:-30]), r"a.zip is neither .* or it is damaged"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_sources_are_named_and_leave_nothing(kind, tmp_path, monkeypatch):
    make, message = BAD[kind]
    source = make(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=message):
        prepare(source, tmp_path / "out")
    assert sorted(tmp_path.rglob("*")) == before, "nothing half-written, and no code was run"


def test_an_interrupted_run_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "write_atomically", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        prepare(mnist_folder(tmp_path / "mnist"), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["mnist"]


def test_a_killed_run_leaves_nothing_that_looks_complete(tmp_path):
    """The second picture is a pipe into which nobody writes, so the run is in the middle for as long as need be."""
    save(random_picture(), tmp_path / "a" / "1.png")
    os.mkfifo(tmp_path / "a" / "2.png")
    command = [sys.executable, "-c", "from bespoke_solvers.cli import main; main()", "data", "a", "--out", "out"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list(tmp_path.glob(".out.*.unfinished/pixels.npy")):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    (left,) = tmp_path.glob(".out.*")
    with pytest.raises(ValueError, match=r"no prepared data set in .*unfinished"):
        data.load(left)
    (tmp_path / "a" / "2.png").unlink()
    assert len(prepare(tmp_path / "a", tmp_path / "out")) == 1


def peak(source: Path, out: Path) -> int:
    tracemalloc.start()
    try:
        made = prepare(source, out)
        assert isinstance(made.pixels, np.memmap)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_data(tmp_path):
    count = 40_000
    (tmp_path / "mnist").mkdir()
    with open(tmp_path / "mnist" / "train-images-idx3-ubyte", "wb") as file:
        file.write(struct.pack(">4I", 2051, count, 28, 28))
        file.truncate(16 + count * 784)
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(count, np.uint8)))
    assert peak(tmp_path / "mnist", tmp_path / "a") < 12 * 2**20, "of 30 MiB of pixels"

    picture = encoded(Image.new("RGB", (64, 64)))
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as archive:
        for i in range(500):
            archive.writestr(f"{i}.png", picture)
    assert peak(tmp_path / "many.zip", tmp_path / "b") < 2 * 2**20, "of 6 MiB of pixels"


def test_the_command_says_what_it_found(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cifar_folder(Path("cifar"))
    run("data", "cifar", "--out", "train", "--quiet")
    assert capsys.readouterr().out == (
        "cifar10: 100 pictures of 3 x 32 x 32, 10 classes: airplane, automobile, bird, cat, deer, dog, frog, horse, "
        "ship, truck\ntrain: 0.3 MiB\n"
    )
    run("data", "cifar", "--split", "test", "--out", "test", "--quiet")
    assert len(data.load(Path("test"))) == 20
    for i in range(20):
        save(random_picture(20, 30), Path("pictures") / f"class{i:02d}" / "1.jpg")
    run("data", "pictures", "--size", 10, "--out", "pictures10", "--quiet")
    printed = capsys.readouterr().out
    assert "pictures: 20 pictures of 3 x 10 x 10, 20 classes: class00, class01, " in printed
    assert ", ..., class19\n" in printed
    run("--help")
    assert "data " in capsys.readouterr().out


REFUSALS = {
    "data nothing --out out": "there is no nothing; expected a folder",
    "data cifar --out out --size 16": "--size 16 is for pictures of any size; those of data_batch_1.bin",
    "data text --out out": "b.png cannot be read",
    "data cifar --out cifar": "cifar holds other files; give the name of a new or an empty folder",
}


@pytest.mark.parametrize("command", REFUSALS)
def test_the_command_refuses_in_one_sentence(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cifar_folder(Path("cifar"))
    Path("text").mkdir()
    Path("text/b.png").write_text("hello")
    assert REFUSALS[command] in refused(capsys, *command.split(), "--quiet")
    assert not Path("out").exists()


def test_the_library_refuses_what_the_command_cannot_be_given(tmp_path):
    source = mnist_folder(tmp_path / "mnist")
    with pytest.raises(ValueError, match="unknown split 'val'; expected train or test"):
        prepare(source, tmp_path / "out", split="val")
    with pytest.raises(ValueError, match="the size must be positive, got 0"):
        prepare(source, tmp_path / "out", size=0)
    (source / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ValueError, match=r"there is no t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz in"):
        prepare(source, tmp_path / "out", split="test")
