"""The paper's claims on exact models, as the benchmark measures them, and on the zoo, as `bespoke paper` does.

In processes of their own: the shape checks of the tests would make these fits several times slower.
"""

import json
import re
from html import escape

import pytest

from benchmarks import lines, run
from bespoke_solvers.paper import plan

METHODS = ["euler", "midpoint", "rk1-bespoke, bound", "rk2-bespoke, bound"]
ADAM = ["--adam", "250", "--learning-rate", "1e-2", "--validate-every", "50"]
COUNTS = ["--paths", "128", "--choose", "512", "--samples", "512"]
SETTINGS = [*COUNTS, "--batch-size", "32", "--tolerance", "1e-5", *ADAM]
ZOO = ["zoo:cifar10-fm-ot", "zoo:cifar10-eps-vp"]
FEW = ["--nfe", "6", "--paths", "4", "--batch-size", "4", "--choose", "4", "--samples", "16", "--tolerance", "3e-3"]


def errors(folder):
    """RMSE by model, method and NFE."""
    records = (record for file in folder.glob("*.jsonl") for record in lines(file))
    return {(each["model"], each["method"], each["nfe"]): each["rmse"] for each in records if "rmse" in each}


def test_all_experiments_on_the_zoo(tmp_path):
    """Two networks on two paths; with eight steps of Adam some statements of the paper do not hold, which is told."""
    adam = ["--iterations", "8", "--learning-rate", "3e-2"]
    run("bespoke_solvers.cli", "paper", *ZOO, *FEW, *adam, "--out", tmp_path, "--quiet")
    rmse = errors(tmp_path / "cells")
    for model in ZOO:
        ns, rk2_bespoke, rk2, rk1 = (rmse[model, name, 6] for name in ("NS (ours)", "RK2-Bespoke", "RK2", "RK1"))
        assert ns < rk2_bespoke / 2
        assert rk2_bespoke < rk2 < rk1
        assert rk2_bespoke < rmse[model, "RK1-Bespoke", 6]
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["models"] == dict(zip(ZOO, ("FM-OT", "eps-VP"), strict=True))
    told = {each["claim"]: each["verdict"] for each in content["statements"]}
    assert set(told.values()) == {"held", "did not hold", "not measured"}
    assert told["RK2-Bespoke has a lower RMSE than RK2 at every NFE"] == "held"
    (across,) = (each for each in content["statements"] if "transferred across paths" in each["claim"])
    assert len(across["cases"]) == 2
    report = (tmp_path / "report.html").read_text()
    titles = set(re.findall(r"<h2[^>]*>(.*?)</h2>", report))
    drawn = {experiment.name for experiment in plan.EXPERIMENTS} - {plan.TABLES.name}
    assert {escape(name) for name in drawn} <= titles
    assert len(list(tmp_path.glob("*.png"))) == 5 + 4 * len(ZOO)


@pytest.mark.parametrize(
    ("name", "at_most"), [("toy:digits", 0.75), ("toy:digits-fm-v-cs", 0.40), ("toy:digits-vp", 0.25)]
)
def test_rk2_bespoke_beats_the_others(name, at_most, tmp_path):
    run("bench.frontier", name, "--nfe", 8, 10, *SETTINGS, "--store", tmp_path, "--method", *METHODS)
    rmse = errors(tmp_path)
    for nfe in (8, 10):
        rk1, rk2, rk1_bespoke, rk2_bespoke = (rmse[name, method, nfe] for method in METHODS)
        assert rk2_bespoke <= at_most * rk2
        assert rk2_bespoke < min(rk1, rk2, rk1_bespoke)
