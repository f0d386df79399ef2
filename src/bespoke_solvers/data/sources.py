"""What a reader of a data set gives: pictures in small portions, still where they were found."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt8


class Portion(NamedTuple):
    """A few pictures, and their labels where there are any."""

    pixels: UInt8[np.ndarray, "k c h w"]
    labels: Int64[np.ndarray, " k"] | None


@dataclass(frozen=True)
class Source:
    """A data set that was found and not yet read. All its pictures have one shape."""

    name: str
    files: list[str]  # those of a fixed name; empty for a folder or a zip of pictures
    split: str | None  # None where the source has no splits
    classes: list[str]  # empty without labels
    count: int | None  # None where it is known only after reading
    portions: Callable[[], Iterator[Portion]]


@contextmanager
def blaming(file: object, expected: str) -> Iterator[None]:
    """Any error in here, and a damaged file can raise anything, becomes a ValueError that names the file."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{file} cannot be read ({error}); expected {expected}") from error
