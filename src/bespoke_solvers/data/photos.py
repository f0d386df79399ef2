"""A folder or a zip of pictures of any size."""

import io
import os
import zipfile
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from bespoke_solvers.data.sources import Portion, Source, blaming

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
FORMATS = ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"]
SPLITS = {"train": ["train"], "test": ["test", "val", "valid", "validation"]}  # in whatever case
MARGIN = 8  # times its shorter side, that a picture keeps of its longer one
Named = dict[str, tuple[str, ...]]  # the names of pictures, and the folders and the file that they are made of


def find(source: Path, split: str, size: int | None) -> Source:
    """The pictures in the order of their names; sub-folders of the first level are classes.

    If those have the names of `SPLITS` and no others, they are splits, and the classes are a level below; a class may
    have such a name, but not two of them. A zip's one outermost folder does not count as a level. Files of other
    endings and hidden ones are passed over.
    """
    listed = _in_folder(source) if source.is_dir() else _in_zip(source)
    parted = {name: PurePosixPath(name if source.is_dir() else _with_slashes(name)).parts for name in sorted(listed)}
    pictures = {name: parts for name, parts in parted.items() if _is_picture(parts)}
    if not pictures:
        raise ValueError(
            f"no pictures were found in {source}; expected files that end in {', '.join(sorted(ENDINGS))}, in it or "
            "in its sub-folders, or the files of CIFAR-10 or MNIST"
        )
    pictures, chosen = _of_split(pictures, source, split)
    classes = sorted({parts[0] for parts in pictures.values() if len(parts) > 1})
    loose = [name for name, parts in pictures.items() if len(parts) == 1]
    if classes and loose:
        raise ValueError(
            f"{loose[0]} in {source} lies beside the folder {classes[0]}, which is a class; expected all pictures in "
            "such folders or none: move it"
        )
    number = {name: i for i, name in enumerate(classes)}
    labels = np.array([number[parts[0]] for parts in pictures.values()], np.int64) if classes else None
    names = list(pictures)

    def portions() -> Iterator[Portion]:
        for i, pixels in enumerate(_decoded(source, names, size)):
            yield Portion(pixels[None], None if labels is None else labels[i : i + 1])

    name = source.resolve().stem if source.is_file() else source.resolve().name
    return Source(name, [], chosen, classes, len(names), portions)


def _of_split(pictures: Named, source: Path, split: str) -> tuple[Named, str | None]:
    """The pictures of a split, named from there on, and the split; all of them and None where there are no splits."""
    known, tops = {name for names in SPLITS.values() for name in names}, {parts[0] for parts in pictures.values()}
    packed = source.is_file() and len(tops) == 1 and all(map(_is_inside, pictures.values()))
    if packed and next(iter(tops)).lower() not in known:
        pictures = {name: parts[1:] for name, parts in pictures.items()}
        tops = {parts[0] for parts in pictures.values()}
    splits, others = ([top for top in sorted(tops) if (top.lower() in known) is wanted] for wanted in (True, False))
    if others and split == "train" and len(splits) < 2:
        return pictures, None
    named = {top.lower(): top for top in splits}
    if len(named) < len(splits):
        raise ValueError(f"{source} has a split twice: {', '.join(splits)}; give its folders one name")
    folder = next((named[name] for name in SPLITS[split] if name in named), None)
    if folder is None or others:
        beside = f", but {others[0]} lies beside them" if others else ""
        raise ValueError(
            f"{source} has no split {split!r}; expected all its pictures in sub-folders {', '.join(sorted(known))}, "
            f"and some in {' or '.join(SPLITS[split])}{beside}"
        )
    return {name: parts[1:] for name, parts in pictures.items() if parts[0] == folder}, split


def _is_inside(parts: tuple[str, ...]) -> bool:
    return len(parts) > 1


def _in_folder(folder: Path) -> Iterator[str]:
    """Links are followed, but none to a folder in which it lies itself: without end there would be more pictures."""

    def stop(error: OSError) -> None:
        raise error

    for place, folders, names in os.walk(folder, onerror=stop, followlinks=True):
        inside = Path(place).relative_to(folder)
        above = {os.path.realpath(folder / each) for each in (inside, *inside.parents)}
        folders[:] = [name for name in folders if os.path.realpath(os.path.join(place, name)) not in above]
        yield from ((inside / name).as_posix() for name in names)


def _with_slashes(name: str) -> str:
    """A name in a zip, which some programs of Windows have put there with backslashes."""
    return name.replace("\\", "/")


def _in_zip(archive: Path) -> list[str]:
    with blaming(archive.name, "a zip of pictures"), zipfile.ZipFile(archive) as opened:
        names = [entry.filename for entry in opened.infolist() if not entry.is_dir()]
    for name, count in Counter(names).items():
        path = PurePosixPath(_with_slashes(name))
        if count > 1 and _is_picture(path.parts):
            raise ValueError(f"{archive.name} holds {name!r} {count} times; make the zip anew with names of their own")
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(
                f"{archive.name} holds {name!r}, a path that leads out of it; make the zip anew without it"
            )
    return names


def _is_picture(parts: tuple[str, ...]) -> bool:
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in parts)
    return os.path.splitext(parts[-1])[1].lower() in ENDINGS and not hidden


@contextmanager
def _reader(source: Path) -> Iterator[Callable[[str], bytes]]:
    if source.is_dir():
        yield lambda name: (source / name).read_bytes()
    else:
        with zipfile.ZipFile(source) as archive:
            yield archive.read


def _decoded(source: Path, names: list[str], size: int | None) -> Iterator[UInt8[np.ndarray, "3 h w"]]:
    """The pictures one after another; all processors decode, a few pictures ahead."""
    Image.init()
    workers, shape = os.cpu_count() or 1, None
    ahead: deque[Future[UInt8[np.ndarray, "3 h w"]]] = deque()
    with _reader(source) as read, ThreadPoolExecutor(workers) as pool:

        def decode(name: str) -> UInt8[np.ndarray, "3 h w"]:
            with blaming(name, "a whole picture; mend or remove it"):
                return to_pixels(read(name), size)

        for i, name in enumerate(names):
            while len(ahead) < min(4 * workers, len(names) - i):
                ahead.append(pool.submit(decode, names[i + len(ahead)]))
            pixels = ahead.popleft().result()
            if shape not in (None, pixels.shape):
                raise ValueError(
                    f"{name} has {pixels.shape[2]} x {pixels.shape[1]} pixels and {names[0]} {shape[2]} x {shape[1]}; "
                    "pictures of several sizes need --size, to which they are brought"
                )
            shape = pixels.shape
            yield pixels


def to_pixels(content: bytes, size: int | None) -> UInt8[np.ndarray, "3 h w"]:
    """A picture file as RGB, upright by its EXIF orientation.

    Grey becomes RGB, of 16 bits the upper 8 are kept, transparency lies on white, a colour profile is not applied, and
    of an animation the first picture is taken. With a size, the picture is scaled and cropped by `square`. Of a PNG the
    checksums are verified, which Pillow does not do when it decodes.
    """
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            format = opened.format
            if format == "PNG":
                opened.verify()
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            image = ImageOps.exif_transpose(opened)
    except UnidentifiedImageError:
        raise ValueError(f"no {', '.join(FORMATS)}, or damaged at its beginning") from None
    if image.mode == "F" or (image.mode == "I" and format == "TIFF"):  # 16 bits of other formats may come as "I"
        kind = "floats" if image.mode == "F" else "whole numbers of 32 bits or with a sign,"
        raise ValueError(f"its values are {kind} of no known range")
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image) // 256).astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("RGB")
    return np.ascontiguousarray(np.asarray(image if size is None else square(image, size)).transpose(2, 0, 1))


def square(image: Image.Image, size: int) -> Image.Image:
    """The middle of a picture, its shorter side scaled to `size` as is usual for ImageNet (Dhariwal and Nichol 2021).

    While that side is at least twice too long, both are halved by averaging; the rest is bicubic, antialiased. Of a
    picture that is far longer than wide the ends, which no filter reaches, are cut off before.
    """
    short = min(image.size)
    most = short * MARGIN
    if max(image.size) > most:
        left, top = (max(0, side - most) // 2 for side in image.size)
        image = image.crop((left, top, image.width - left, image.height - top))
    while min(image.size) >= 2 * size:
        image = image.resize((image.width // 2, image.height // 2), Image.Resampling.BOX)
    scale = size / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (image.width - size) // 2, (image.height - size) // 2
    return image.crop((left, top, left + size, top + size))
