"""The commands of the benchmarks, run as the documentation says, and the cells that they leave."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run(module: str, *arguments: object) -> str:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]
