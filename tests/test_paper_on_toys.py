"""The paper's claim on exact models, as the benchmark in the repository measures it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

METHODS = ["euler", "midpoint", "rk1-bespoke, bound", "rk2-bespoke, bound"]
ADAM = ["--adam", "250", "--learning-rate", "1e-2", "--validate-every", "50"]
COUNTS = ["--paths", "128", "--choose", "512", "--samples", "512"]
SETTINGS = [*COUNTS, "--batch-size", "32", "--tolerance", "1e-5", *ADAM]


@pytest.mark.parametrize(
    ("name", "at_most"), [("toy:digits", 0.75), ("toy:digits-fm-v-cs", 0.40), ("toy:digits-vp", 0.25)]
)
def test_rk2_bespoke_beats_the_others(name, at_most, tmp_path):
    """In a process of its own: the shape checks of the tests would make these fits several times slower."""
    command = ["-m", "bench.frontier", name, "--nfe", "8", "10", *SETTINGS, "--store", tmp_path, "--method", *METHODS]
    root = Path(__file__).parent.parent
    subprocess.run([sys.executable, *command], cwd=root, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)
    (file,) = tmp_path.iterdir()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    rmse = {(record["nfe"], record["method"]): record["rmse"] for record in records}
    for nfe in (8, 10):
        rk1, rk2, rk1_bespoke, rk2_bespoke = (rmse[nfe, method] for method in METHODS)
        assert rk2_bespoke <= at_most * rk2
        assert rk2_bespoke < min(rk1, rk2, rk1_bespoke)
