"""A store of measured cells: one JSON record in a line for each (model, method, NFE, seed, budget, samples, tolerance).

A run asks for cells and computes those that are missing, so it may be interrupted and extended; tables and pictures are
drawn from the store alone.
"""

import datetime
import json
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import torch

from bespoke_solvers import Table, __version__

KEY = ("model", "method", "nfe", "seed", "budget", "samples", "tolerance")


class Store:
    """The records of a folder, a file for each model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        lines = (line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines())
        self.records: dict[tuple[Any, ...], dict[str, Any]] = {}
        for line in lines:
            try:
                record = json.loads(line)
            except json.JSONDecodeError:  # of a run that was killed while it wrote
                continue
            self.records[tuple(record[name] for name in KEY)] = record

    def cell(self, key: dict[str, Any], compute: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
        """The record of a cell, computed if it is missing; None (and nothing kept) where there can be none."""
        values = tuple(key[name] for name in KEY)
        if values not in self.records:
            found = compute()
            if found is None:
                return None
            record = key | found | _circumstances()
            with (self.folder / f"{re.sub('[:@]', '-', key['model'])}.jsonl").open("a") as file:
                file.write("\n" * _is_cut(file) + json.dumps(record, allow_nan=False) + "\n")
            self.records[values] = record
            measured = [f"{name} {record[name]:.5g}" for name in ("rmse", "fid", "seconds") if record.get(name)]
            print(f"{key['model']}, {key['nfe']} NFE, {key['method']}: {', '.join(measured) or 'astray'}", flush=True)
        return self.records[values]

    def of(self, model: str) -> Iterator[dict[str, Any]]:
        """All records of a model."""
        return (record for key, record in self.records.items() if key[0] == model)


def table_of(record: dict[str, Any]) -> Table:
    """The table of a fit's record."""
    return Table(*(torch.tensor(record["table"][name], dtype=torch.float64) for name in "tab"))


def _is_cut(file: IO[str]) -> bool:
    """Whether the last line of a file was not written to its end."""
    size = Path(file.name).stat().st_size
    return size > 0 and Path(file.name).read_bytes()[-1:] != b"\n"


def _circumstances() -> dict[str, Any]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "command": shlex.join(["python", "-m", f"bench.{Path(sys.argv[0]).stem}", *map(_name_only, sys.argv[1:])]),
        "date": datetime.date.today().isoformat(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "bespoke_solvers": __version__},
        "device": device,
    }


def _name_only(argument: str) -> str:
    """No folders of this machine in a record."""
    return Path(argument).name if "/" in argument else argument
