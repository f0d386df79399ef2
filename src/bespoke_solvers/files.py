"""Files that are whole or not there at all, and JSON that a person can read."""

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO


def _opened(unfinished: Path, path: Path) -> BinaryIO:
    try:
        return unfinished.open("wb")
    except OSError as error:
        words = f"{error.strerror}: {path.name} cannot be written there"
        raise type(error)(error.errno, words, str(path.parent)) from error


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that at any moment there is the whole old one or the whole new one."""
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(6)}.unfinished")
    try:
        with _opened(unfinished, path) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        with suppress(OSError):  # there is none, or the folder cannot be changed, which was said
            unfinished.unlink()


def write_new(path: str | os.PathLike[str], content: bytes) -> bool:
    """Write a file, whole, unless there is one: of several processes one writes it. Returns whether this one did."""
    path = Path(path)
    own = path.with_name(f".{path.name}.{secrets.token_hex(6)}.new")
    write_atomically(own, content)
    try:
        os.link(own, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if path.exists():
            return False
        os.replace(own, path)
    finally:
        own.unlink(missing_ok=True)
    return True


def readable(value: Any, indent: int = 0) -> str:
    """JSON with one line for each list of numbers, so that a person can read a table; NaN is refused."""
    inner = " " * (indent + 2)
    if isinstance(value, dict) and value:
        rows = [f"{inner}{json.dumps(key)}: {readable(item, indent + 2)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + "\n" + " " * indent + "}"
    if isinstance(value, list) and any(isinstance(item, list | dict) for item in value):
        rows = [inner + readable(item, indent + 2) for item in value]
        return "[\n" + ",\n".join(rows) + "\n" + " " * indent + "]"
    return json.dumps(value, allow_nan=False)
