"""The paper's claim on exact models, as the benchmark in the repository measures it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("name", "at_most"), [("toy:digits", 0.75), ("toy:digits-fm-v-cs", 0.40), ("toy:digits-vp", 0.25)]
)
def test_rk2_bespoke_beats_the_others(name, at_most, tmp_path):
    """In a process of its own: the shape checks of the tests would make these fits several times slower."""
    subprocess.run(
        [sys.executable, "-m", "bench.toy_paper", "--model", name, "--json", tmp_path / "figures.json"],
        cwd=Path(__file__).parent.parent,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
    )
    rows = json.loads((tmp_path / "figures.json").read_text())[name]
    assert sorted(rows) == ["10", "8"]
    for found in rows.values():
        assert found["rk2-bespoke"] <= at_most * found["midpoint"]
        assert found["rk2-bespoke"] < min(found["euler"], found["midpoint"])
        assert found["rk2-bespoke"] < found["rk1-bespoke"]
