"""Data sets are read as published, damage is named, and a prepared folder is there whole or not at all."""

import hashlib
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bespoke_solvers import data
from bespoke_solvers.data import cifar, photos
from picture_files import (
    CIFAR,
    CIFAR_LABELS,
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
    zipped,
)

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


@pytest.mark.parametrize(
    ("kind", "own"), [("binary", "test_batch.bin .* 803d5f7f"), ("pickles", "test_batch .* 40351d58")]
)
def test_a_changed_whole_batch_is_told(tmp_path, monkeypatch, kind, own):
    monkeypatch.setattr(cifar, "RECORDS", 20)
    with pytest.warns(UserWarning, match=own.replace(".*", r"has the MD5 sum \w+, CIFAR-10's own has")):
        prepare(SOURCES[kind](tmp_path / "a"), tmp_path / "out", split="test")


@pytest.mark.filterwarnings("ignore:.* has the MD5 sum")  # of the whole batches
def test_a_batch_cut_between_two_pictures_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "RECORDS", 20)
    source = cifar_folder(tmp_path / "a")
    for number in (1, 3):
        cut = source / f"data_batch_{number}.bin"
        cut.write_bytes(cut.read_bytes()[: (6 + number) * 3073])
    told = r"cut batches of CIFAR-10\? data_batch_1.bin with 7, data_batch_3.bin with 9 pictures in .* own have 20;"
    with pytest.warns(UserWarning, match=told):
        assert len(prepare(source, tmp_path / "out").pixels) == 76


def test_batches_that_are_cut_alike_are_told(tmp_path):
    source = cifar_folder(tmp_path / "a")
    with pytest.warns(UserWarning, match=r"data_batch_5.bin with 20 pictures in .*, where CIFAR-10's own have 10,000"):
        prepare(source, tmp_path / "train")
    with pytest.warns(UserWarning, match=r"cut batches of CIFAR-10\? test_batch.bin with 20 pictures in .*; fetch"):
        prepare(source, tmp_path / "test", split="test")


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_mnist(ending, tmp_path):
    source = mnist_folder(tmp_path / "fashion", ending)
    for split, chosen in (("train", slice(0, 20)), ("test", slice(20, 30))):
        made = prepare(source, tmp_path / split, split=split)
        assert made.pixels.shape == (chosen.stop - chosen.start, 1, 28, 28)
        assert np.array_equal(made.pixels[:, 0], GREY[chosen])
        assert np.array_equal(made.labels, GREY_LABELS[chosen])
        assert (made.name, made.classes) == ("fashion", [str(i) for i in range(10)])


def test_labels_that_do_not_occur_are_no_classes(tmp_path):
    """As those of EMNIST's letters begin with 1."""
    folder = mnist_folder(tmp_path / "a")
    labels = np.array([20, 7, 160, 7] * 5, np.uint8)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(labels))
    made = prepare(folder, tmp_path / "out")
    assert made.classes == ["7", "20", "160"]
    assert made.labels.tolist() == [1, 0, 2, 0] * 5


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


def test_a_zip_with_backslashes_has_its_folders(tmp_path):
    """As some programs of Windows write it."""
    kept = [save(random_picture(), tmp_path / f"{i}.png") for i in range(2)]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for i, name in enumerate(("cat", "dog")):
            entry = zipfile.ZipInfo("x")
            entry.filename = f"{name}\\{i}.png"
            archive.writestr(entry, (tmp_path / f"{i}.png").read_bytes())
    made = prepare(tmp_path / "a.zip", tmp_path / "out")
    assert (made.classes, made.labels.tolist()) == (["cat", "dog"], [0, 1])
    assert np.array_equal(made.pixels, np.stack(kept).transpose(0, 3, 1, 2))


def test_the_one_folder_of_a_zip_is_no_class(tmp_path):
    for i in range(2):
        save(random_picture(), tmp_path / "a" / f"{i}.png")
    assert prepare(zipped(tmp_path / "a", tmp_path / "a.zip", prefix="pics/"), tmp_path / "out").classes == []


def test_links_are_followed_but_not_round_and_round(tmp_path):
    for name in ("a/cat/1.png", "a/dog/2.png", "elsewhere/3.png"):
        save(random_picture(), tmp_path / name)
    (tmp_path / "a" / "fox").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "a")
    made = prepare(tmp_path / "a", tmp_path / "out")
    assert (made.classes, made.labels.tolist()) == (["cat", "dog", "fox"], [0, 1, 2])


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


@pytest.mark.parametrize("names", [("train", "valid", "test"), ("Train", "Validation"), ("TRAIN", "Test", "val")])
def test_splits_have_more_than_one_name(tmp_path, names):
    pictures = {name: save(random_picture(), tmp_path / "a" / name / "cat" / "1.png") for name in names}
    chosen = {"train": names[0], "test": next((n for n in names if n.lower() == "test"), names[1])}
    for split, name in chosen.items():
        made = prepare(tmp_path / "a", tmp_path / split, split=split)
        assert made.classes == ["cat"]
        assert np.array_equal(made.pixels, [pictures[name].transpose(2, 0, 1)])


@pytest.mark.parametrize("split", ["train", "test"])
def test_splits_beside_something_else_are_no_classes(tmp_path, split):
    for name in ("train", "test", "extra"):
        save(random_picture(), tmp_path / "a" / name / "cat" / "1.png")
    with pytest.raises(ValueError, match=r"has no split '\w+'; .*, but extra lies beside them"):
        prepare(tmp_path / "a", tmp_path / "out", split=split)
    assert not (tmp_path / "out").exists()


def test_names_that_differ_in_case_alone_are_two(tmp_path):
    for name in ("a/cat", "a/Cat", "b/train/dog", "b/Train/dog"):
        save(random_picture(), tmp_path / name / "1.png")
    made = prepare(zipped(tmp_path / "a", tmp_path / "a.zip"), tmp_path / "out")
    assert (made.classes, len(made)) == (["Cat", "cat"], 2)
    with pytest.raises(ValueError, match="has a split twice: Train, train; give its folders one name"):
        prepare(tmp_path / "b", tmp_path / "other")


def test_a_class_may_be_called_train(tmp_path):
    for name in ("bus", "train"):
        save(random_picture(), tmp_path / "a" / name / "1.png")
    assert prepare(tmp_path / "a", tmp_path / "out").classes == ["bus", "train"]


def test_every_kind_of_picture_becomes_rgb():
    colours = random_picture()
    assert np.array_equal(photos.to_pixels(encoded(Image.fromarray(colours)), None), colours.transpose(2, 0, 1))
    grey = Image.fromarray(colours[..., 0])
    assert np.array_equal(photos.to_pixels(encoded(grey), None), np.broadcast_to(colours[..., 0], (3, 8, 8)))
    deep = np.array([[0, 255, 256, 65535]], np.uint16)
    for format in ("PNG", "TIFF"):
        assert photos.to_pixels(encoded(Image.fromarray(deep), format), None).tolist() == [[[0, 0, 1, 255]]] * 3
    assert photos.to_pixels(b"P5 4 1 65535\n" + deep.astype(">u2").tobytes(), None).tolist() == [[[0, 0, 1, 255]]] * 3
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
    wide = Image.fromarray(np.array([[0, 255]], np.int32))
    with pytest.raises(ValueError, match="whole numbers of 32 bits or with a sign, of no known range"):
        photos.to_pixels(encoded(wide, "TIFF"), None)


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


def test_a_picture_of_any_shape_takes_little_memory():
    """Whole, it would be scaled to a gigabyte and more."""
    long = np.repeat(np.arange(3, dtype=np.uint8), 20_000)[None, :, None].repeat(3, 2) * 100
    assert np.array_equal(photos.square(Image.fromarray(long), 64), np.full((64, 64, 3), 100))
    assert np.array_equal(photos.square(Image.fromarray(long.transpose(1, 0, 2)), 64), np.full((64, 64, 3), 100))
    near = random_picture(8, 8 * photos.MARGIN)
    middle = near[:, (near.shape[1] - 8) // 2 :][:, :8]
    assert np.array_equal(photos.square(Image.fromarray(near), 8), middle)


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


@pytest.mark.parametrize("name", ["pixels.npy", "labels.npy"])
def test_a_data_set_that_was_altered_is_not_the_same_again(prepared, tmp_path, name):
    array = np.load(prepared / name)
    array.flat[5] ^= 1
    np.save(prepared / name, array)
    with pytest.raises(ValueError, match=f"{name} was altered since it was made: remove the folder"):
        prepare(tmp_path / "mnist", prepared)
    assert np.array_equal(np.load(prepared / name), array), "it is left to its owner"


def test_a_prepared_data_set_is_no_source(prepared, tmp_path):
    with pytest.raises(ValueError, match="out is a prepared data set already; give it to bespoke pretrain"):
        prepare(prepared, tmp_path / "other")


def test_small_pictures_get_a_margin(tmp_path):
    """28 x 28 cannot be halved three times, as the small networks do; 32 x 32 can."""
    source = mnist_folder(tmp_path / "mnist")
    made = prepare(source, tmp_path / "out", size=32)
    assert made.pixels.shape == (20, 1, 32, 32)
    assert np.array_equal(made.pixels[:, 0, 2:30, 2:30], GREY[:20])
    assert made.pixels.sum() == GREY[:20].sum(dtype=np.int64), "on black"
    assert len(prepare(source, tmp_path / "out", size=32)) == 20, "the same again"
    with pytest.raises(ValueError, match=r"--size 20 is less than the 28 x 28 pictures of .*; expected 28 or more"):
        prepare(source, tmp_path / "small", size=20)


def test_the_output_may_be_empty_but_nothing_else(tmp_path, monkeypatch):
    source = mnist_folder(tmp_path / "mnist")
    (tmp_path / "empty").mkdir()
    assert len(prepare(source, tmp_path / "empty")) == 20
    assert len(prepare(source, tmp_path / "new" / "deep")) == 20
    with pytest.raises(ValueError, match="holds other files; give the name of a new or an empty folder"):
        prepare(source, source)
    with pytest.raises(ValueError, match="is a file; expected a folder"):
        prepare(source, source / "train-images-idx3-ubyte")
    (tmp_path / "mounted").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name in ("mounted", "empty"))
    with pytest.raises(ValueError, match=r"mounted is a mount point, .*; give a folder in it"):
        prepare(source, tmp_path / "mounted")
    assert len(prepare(source, tmp_path / "empty")) == 20, "which is there already"
