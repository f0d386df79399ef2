"""A store of measured cells: one JSON record in a line for each (model, method, NFE, seed, budget).

A run asks for cells and computes those that are missing, so it may be interrupted and extended; tables and pictures are
drawn from the store alone.
"""

import datetime
import json
import platform
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from bespoke_solvers import __version__

KEY = ("model", "method", "nfe", "seed", "budget")


class Store:
    """The records of a folder, a file for each model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        lines = (line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines())
        self.records: dict[tuple[Any, ...], dict[str, Any]] = {}
        for line in lines:
            record = json.loads(line)
            self.records[tuple(record[name] for name in KEY)] = record

    def cell(
        self, model: str, method: str, nfe: int, seed: int, budget: str, compute: Callable[[], dict[str, Any] | None]
    ) -> dict[str, Any] | None:
        """The record of a cell, computed if it is missing; None (and nothing kept) where there can be none."""
        key = (model, method, nfe, seed, budget)
        if key not in self.records:
            found = compute()
            if found is None:
                return None
            record = dict(zip(KEY, key, strict=True)) | found | _circumstances()
            with (self.folder / f"{model.replace(':', '-')}.jsonl").open("a") as file:
                file.write(json.dumps(record, allow_nan=False) + "\n")
            self.records[key] = record
            print(f"{model}, {nfe} NFE, {method}: RMSE {record['rmse']:.4f}, {record['psnr']:.1f} dB", flush=True)
        return self.records[key]

    def of(self, model: str) -> Iterator[dict[str, Any]]:
        """All records of a model."""
        return (record for key, record in self.records.items() if key[0] == model)


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
