"""Files that are whole or not there at all."""

import os
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that at any moment there is the whole old one or the whole new one."""
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        with open(unfinished, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
