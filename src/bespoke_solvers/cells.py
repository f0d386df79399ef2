"""A store of measured cells: one JSON record in a line for each of them, found again by the fields of its key.

A run asks for cells and computes those that are missing, so it may be interrupted and extended; tables, pictures and
reports are drawn from the store alone.
"""

import datetime
import functools
import hashlib
import json
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bespoke_solvers import __version__
from bespoke_solvers.table import Table

Record = dict[str, Any]


@functools.cache
def source() -> str:
    """A mark of the package's own code: versions are few, and figures change between them."""
    found, package = hashlib.sha256(), Path(__file__).parent
    for file in sorted(package.rglob("*.py")):
        found.update(f"{file.relative_to(package).as_posix()}\n".encode() + file.read_bytes())
    return found.hexdigest()[:8]


class Store:
    """The records of a folder, a file for each model; `key` names the fields that tell cells apart, `model` first.

    command: what made the cells that are added, for their provenance. say: is told of each of them.
    """

    def __init__(
        self, folder: Path, key: Sequence[str], command: str = "", say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.folder, self.key, self.command, self.say = folder, tuple(key), command, say
        self.records: dict[tuple[Any, ...], Record] = {}
        for file in sorted(folder.glob("*.jsonl")):
            for number, line in enumerate(file.read_text().splitlines(), 1):
                try:
                    record = json.loads(line)
                except json.JSONDecodeError:  # of a run that was killed while it wrote
                    continue
                if not isinstance(record, dict) or (missing := [name for name in self.key if name not in record]):
                    got = f"has no {', '.join(missing)}" if isinstance(record, dict) else f"is {line[:40]}"
                    raise ValueError(
                        f"line {number} of {file} is no cell of this kind: it {got}; expected a record with "
                        f"{', '.join(self.key)}. Remove the line, or give another folder"
                    )
                self.records[self._values(record)] = record

    def _values(self, key: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(key[name] for name in self.key)

    def get(self, key: Mapping[str, Any]) -> Record | None:
        """The record of a cell, if it is there."""
        return self.records.get(self._values(key))

    def cell(self, key: Mapping[str, Any], compute: Callable[[], Record | None]) -> Record | None:
        """The record of a cell, computed if it is missing; None (and nothing kept) where there can be none."""
        values = self._values(key)
        if values not in self.records:
            found = compute()
            if found is None:
                return None
            self.add(dict(key) | found | circumstances(self.command))
        return self.records[values]

    def add(self, record: Record) -> None:
        """Keep a record that says itself by what it was measured."""
        values = self._values(record)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{re.sub('[^A-Za-z0-9_.,=-]+', '-', str(values[0]))}.jsonl"
        cut = path.exists() and path.stat().st_size > 0 and path.read_bytes()[-1:] != b"\n"
        line = ("\n" * cut + json.dumps(record, allow_nan=False) + "\n").encode()
        with path.open("ab", buffering=0) as file:  # in one piece, so that several processes may add to it
            if file.write(line) != len(line):
                raise OSError(f"there is no room for a cell in {path}; make some, and give the same command again")
        self.records[values] = record
        self.say(f"{record['model']}, {record['nfe']} NFE, {record['method']}: {_in_words(record)}")

    def of(self, model: str) -> Iterator[Record]:
        """All records of a model."""
        return (record for key, record in self.records.items() if key[0] == model)


def _in_words(record: Record) -> str:
    """The figures of a cell; one without any is told by what it is."""
    if "rmse" in record and record["rmse"] is None:
        return "astray"
    figures = (f"{name} {record[name]:.5g}" for name in ("rmse", "fid", "seconds") if record.get(name) is not None)
    return ", ".join(figures) or str(record.get("measured", "measured"))


def numbers_of(table: Table) -> Record:
    """A table in a record, with ten digits, of which float32 knows seven."""
    parts = {name: getattr(table, name).tolist() for name in "tab"}
    return json.loads(json.dumps(parts), parse_float=lambda text: float(f"{float(text):.10g}"))  # type: ignore[no-any-return]


def table_of(record: Mapping[str, Any]) -> Table:
    """The table of a fit's record."""
    return Table(*(torch.tensor(record["table"][name], dtype=torch.float64) for name in "tab"))


def circumstances(command: str) -> Record:
    """By what, when, with which versions and on what a cell was measured."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    own = {"bespoke_solvers": __version__, "source": source()}
    return {
        "command": command,
        "date": datetime.date.today().isoformat(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, **own},
        "device": device,
    }


def name_only(argument: str) -> str:
    """An argument without the folders of this machine."""
    return Path(argument).name if "/" in argument else argument
