"""Checkpoints of fits and trainings: whole or not there at all, and read by the one that wrote them alone."""

import glob
import io
import pickle
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bespoke_solvers.description import in_words
from bespoke_solvers.files import write_atomically

State = dict[str, Any]
STOPPING = (int(signal.SIGINT), int(signal.SIGTERM))
DAMAGED = (RuntimeError, EOFError, LookupError, TypeError, AttributeError, OSError, pickle.UnpicklingError)


def write(path: Path, state: Mapping[str, Any]) -> None:
    """What `read` reads; its `settings` say what it is of. What a killed process had begun to write is removed."""
    for unfinished in path.parent.glob(f".{glob.escape(path.name)}.*.unfinished"):
        unfinished.unlink(missing_ok=True)
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    write_atomically(path, buffer.getvalue())


def read(
    path: Path,
    names: Iterable[str],
    settings: Mapping[str, Any],
    *,
    of: str,
    instead: str,
    differences: Callable[[State], Mapping[str, tuple[Any, Any]]] = lambda state: {},
) -> State:
    """The named parts of a checkpoint, on the CPU. One of other settings, or with `differences`, is refused."""
    try:
        kept = torch.load(path, weights_only=True, map_location="cpu")
        state, was = {name: kept[name] for name in names}, kept["settings"]
        other = {name: (was.get(name), value) for name, value in settings.items() if was.get(name) != value}
        other |= differences(state)
    except DAMAGED as error:
        raise ValueError(f"{path} is no checkpoint of a {of}; remove it or {instead}") from error
    if other:
        listed = "; ".join(in_words(name, *pair) for name, pair in other.items())
        raise ValueError(f"{path} is of another {of}: {listed}; give the same settings or {instead}")
    return state


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """The signals that asked to stop, so that a step is finished first; a second signal stops at once."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, frame: object) -> None:
        asked.append(number)
        signal.signal(number, before[number])

    before = {number: signal.signal(number, note) for number in STOPPING}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def at_once() -> Iterator[None]:
    """Inside `interruptible`: where no step is under way, the first signal stops at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
