"""Data that cannot be read, runs that do not end, and the command."""

import json
import os
import pickle
import signal
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bespoke_solvers import data
from commands import refused, run
from picture_files import (
    GREY,
    GREY_LABELS,
    binary,
    cifar_folder,
    cifar_tar,
    encoded,
    idx,
    mnist_folder,
    pickled,
    pickled_again,
    prepare,
    random_picture,
    save,
)


@pytest.fixture
def prepared(tmp_path):
    prepare(mnist_folder(tmp_path / "mnist"), tmp_path / "out")
    return tmp_path / "out"


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
FLIPPED = bytearray(encoded(Image.fromarray(np.full((32, 32, 3), 7, np.uint8))))
FLIPPED[64] ^= 1  # Pillow reads other pixels then, without a word
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
    "a bit of a png": (bad_pictures(b=bytes(FLIPPED)), r"b.png cannot be read \(.*checksum"),
    "zip twice": (bad_zip("a.png", "b.png", "a.png"), r"a.zip holds 'a.png' 2 times; make the zip anew"),
    "zip path": (bad_zip("a.png", "../b.png"), r"a.zip holds '../b.png', a path that leads out of it"),
    "zip root": (bad_zip("/etc/b.png"), r"a.zip holds '/etc/b.png', a path"),
    "zip backslash": (bad_zip("..\\b.png"), r"a path that leads out of it"),
    "zip content": (broken(bad_zip("a.png"), lambda b: b[:60] + b"xx" + b[62:]), r"a.png cannot be read \(Bad CRC-32"),
    "half a zip": (broken(bad_zip("a.png"), lambda b: b[:-30]), r"a.zip is neither .* or it is damaged"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
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
    run("data", "cifar", "--out", "train", "--dry-run")
    assert capsys.readouterr().out.startswith("would read cifar10: pictures, 10 classes: airplane, ")
    assert not Path("train").exists()
    run("data", "cifar", "--out", "train", "--quiet")
    assert capsys.readouterr().out == (
        "cifar10: 100 pictures of 3 x 32 x 32, 10 classes: airplane, automobile, bird, cat, deer, dog, frog, horse, "
        "ship, truck\ntrain: 0.3 MiB\n"
    )
    run("data", "cifar", "--split", "test", "--out", "test", "--quiet")
    assert len(data.load(Path("test"))) == 20
    for i in range(20):
        save(random_picture(20, 30), Path("pictures") / f"class{i:02d}" / "1.jpg")
    run("data", "pictures", "--size", 10, "--out", "pictures10", "--dry-run")
    assert "would read pictures: 20 pictures, 20 classes: class00, " in capsys.readouterr().out
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
    "data cifar --out cifar --dry-run": "cifar holds other files; give the name of a new or an empty folder",
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
