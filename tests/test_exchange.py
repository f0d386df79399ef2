"""Cells that the benchmarks and `bespoke paper` take from each other."""

import sys

import torch

from benchmarks import lines, run
from bespoke_solvers.cells import Store as Cells
from bespoke_solvers.judge import mark
from bespoke_solvers.paper.plan import KEY
from picture_files import mnist_folder, prepare


def test_the_paper_and_the_frontier_share_their_cells(tmp_path):
    """What each would measure is what it gets from the other, but for the history's details and the commands."""
    counts = ["--paths", 16, "--choose", 16, "--samples", 16, "--batch-size", 16, "--learning-rate", 1e-2]
    counts += ["--tolerance", 1e-6, "--nfe", 4]
    paper = ["paper", "toy:checkerboard", *counts, "--quiet", "--iterations", 5]
    fits = ["--only", "fig:euler_vs_midpoint", "--out", tmp_path / "paper"]
    run("bespoke_solvers.cli", *paper, *fits)
    frontier = ["toy:checkerboard", *counts, "--adam", 5, "--store", tmp_path / "own", "--method"]
    run("bench.frontier", *frontier, "rk4", "dpm-2", "ns, default", "edm-heun")
    for _ in range(2):
        run("bench.exchange", tmp_path / "paper", "--store", tmp_path / "own")
    own = {record["method"]: record for record in lines(tmp_path / "own" / "toy-checkerboard.jsonl")}
    assert len(own) == 4 + 2

    run("bench.frontier", *frontier[:-2], tmp_path / "bound", "--method", "rk1-bespoke, bound", "rk2-bespoke, bound")
    for mine in lines(tmp_path / "bound" / "toy-checkerboard.jsonl"):
        taken = own[mine["method"]]
        assert "bespoke paper" in taken["command"]
        assert set(mine) == set(taken)
        for name in set(mine) - {"command", "date", "seconds", "history"}:
            assert mine[name] == taken[name], name

    curves = ["--only", "fig:nfe_vs_psnr_imagenet", "--out", tmp_path / "curves"]
    run("bespoke_solvers.cli", *paper, *curves)
    given = {(r["measured"], r["method"]): r for r in lines(tmp_path / "paper" / "cells" / "toy-checkerboard.jsonl")}
    for mine in lines(tmp_path / "curves" / "cells" / "toy-checkerboard.jsonl"):
        taken = given.pop((mine["measured"], mine["method"]))
        assert set(mine) == set(taken)
        if mine["method"] in ("RK4", "DPM-2", "NS (ours)"):
            assert "bench.frontier" in taken["command"]
        for name in set(mine) - {"command", "date", "seconds", "history", "theta", "evaluations"}:
            assert mine[name] == taken[name], name  # the frontier's default is three fits, each validated at its start
    assert {method for _, method in given} == {"RK1-Bespoke"}, "what the curves do not show"


def test_the_paper_takes_fid_of_the_same_tables(tmp_path):
    from bench.exchange import fid_to_paper
    from bench.store import Store

    own = {"model": "m", "seed": 0, "tolerance": 1e-6, "nfe": 8}
    table, other = {"t": [0.0, 1.0]}, {"t": [0.0, 0.9]}
    frontier, paper = Store(tmp_path / "frontier"), Cells(tmp_path / "paper", KEY)
    for method, budget, more in (
        ("midpoint", "", {"used": 8, "name": "midpoint"}),
        ("rk4", "", {"used": 4, "name": "rk4"}),
        ("dpm-2", "grid chosen", {"used": 8, "name": "dpm-2@karras"}),
        ("ns, default", "64 paths", {"table": table}),
        ("ns, default", "128 paths", {"table": other}),
    ):
        frontier.add(own | {"method": method, "budget": budget, "samples": 16, "rmse": 0.1} | more)
    for measured, method, budget, more in (
        ("error", "RK2", "", {}),
        ("error", "RK4", "", {}),
        ("error", "DPM-2", "", {"grid": "dpm-2@quadratic"}),
        ("fit", "NS (ours)", "64 paths, 64 at a time", {"table": table}),
    ):
        paper.add(own | {"measured": measured, "method": method, "budget": budget, "samples": 16, "real": ""} | more)

    def taken(method, budget="", **more):
        measured = own | {"method": method, "budget": budget, "samples": 10_000, "fid": 5.0, "command": "bench.fid"}
        measured |= {"rmse": 0.1}
        return fid_to_paper(paper, frontier, measured | more, "mark")

    given = taken("ns, default", "64 paths")
    assert {name: given[name] for name in KEY} == own | {
        **{"measured": "fid", "method": "NS (ours)", "budget": "64 paths, 64 at a time"},
        **{"samples": 10_000, "real": "mark"},
    }
    assert (given["fid"], given["command"]) == (5.0, "bench.fid")
    assert taken("ns, default", "64 paths", rmse=0.2) is None, "fitted again since"
    assert taken("midpoint", rmse=0.2)["method"] == "RK2"
    assert taken("ns, default", "128 paths") is None, "another table"
    assert taken("rk4") is None, "it had fewer evaluations"
    assert taken("dpm-2", "grid chosen") is None, "on another grid"
    paper.add(
        own | {"measured": "error", "method": "DPM-2", "budget": "", "samples": 16, "real": "", "grid": "dpm-2@karras"}
    )
    assert taken("dpm-2", "grid chosen")["method"] == "DPM-2"
    assert taken("ipndm", "grid chosen", nfe=60, name="ipndm@quadratic", rmse=0.0043) is None, "it is not close"
    solved = taken("dopri5", nfe=0, tolerance=1e-4)
    assert (solved["method"], solved["by"]) == ("exact", "dopri5 to 0.0001")
    assert solved["tolerance"] == own["tolerance"]
    exact = taken("ipndm", "grid chosen", nfe=60, name="ipndm@quadratic", rmse=0.0018)
    assert (exact["method"], exact["nfe"], exact["by"]) == ("exact", 0, "ipndm@quadratic, 60 NFE, 0.0018 from them")


def test_the_command_marks_fid_as_the_paper_does(tmp_path, monkeypatch):
    from bench import exchange
    from bench.store import Store

    key = {"model": "m", "method": "midpoint", "nfe": 8, "seed": 0, "budget": "", "tolerance": 1e-6, "samples": 16}
    Store(tmp_path / "frontier").add(key | {"used": 8, "name": "midpoint", "rmse": 0.1})
    Store(tmp_path / "fid").add(key | {"samples": 10_000, "fid": 5.0, "rmse": 0.1})
    cells = Cells(tmp_path / "paper" / "cells", KEY)
    cells.add(key | {"measured": "error", "method": "RK2", "real": "", "rmse": 0.1})
    network = torch.nn.Linear(2, 2)
    monkeypatch.setattr(exchange.inception, "load", lambda weights, device: network)
    prepare(mnist_folder(tmp_path / "mnist"), tmp_path / "real")
    given = ["--store", tmp_path / "frontier", "--fid", tmp_path / "fid", "--real", tmp_path / "real"]
    monkeypatch.setattr(sys, "argv", ["exchange.py", str(tmp_path / "paper"), *map(str, given)])
    for _ in range(2):
        exchange.main()
    *_, fid = lines(tmp_path / "paper" / "cells" / "m.jsonl")
    assert (fid["measured"], fid["method"], fid["fid"]) == ("fid", "RK2", 5.0)
    assert fid["real"] == mark(tmp_path / "real", network)
    assert len(lines(tmp_path / "paper" / "cells" / "m.jsonl")) == 2
