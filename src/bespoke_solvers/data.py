"""Data sets of pictures on disk. A stand-in with the interface alone, to be replaced by the module that makes them."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Pictures(NamedTuple):
    """uint8 pictures (n, c, h, w), memory-mapped, and the class of each where there are classes."""

    pixels: np.ndarray
    labels: np.ndarray | None
    classes: list[str]
    name: str


def load(folder: Path) -> Pictures:
    """The data set in a folder: pixels.npy, perhaps labels.npy, and data.json with its name and classes."""
    if not (folder / "pixels.npy").exists() or not (folder / "data.json").exists():
        raise ValueError(f"{folder} is no data set; expected a folder with pixels.npy and data.json")
    about = json.loads((folder / "data.json").read_text())
    labels = folder / "labels.npy"
    return Pictures(
        pixels=np.load(folder / "pixels.npy", mmap_mode="r"),
        labels=np.load(labels) if labels.exists() else None,
        classes=about["classes"],
        name=about["name"],
    )
