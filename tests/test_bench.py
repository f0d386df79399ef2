"""The benchmark's store, as the commands in the documentation use it."""

import importlib
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import diffusers
import pytest
import torch
from typer.testing import CliRunner

from benchmarks import ROOT, lines, run
from bespoke_solvers import cells, dedicated, fid, inception, toy, zoo
from bespoke_solvers.bank import Bank
from bespoke_solvers.cli import app
from bespoke_solvers.evaluation import held_out
from bespoke_solvers.generic import TABLEAUS, runge_kutta
from bespoke_solvers.judge import Judge
from bespoke_solvers.models import resolve
from bespoke_solvers.pictures import to_uint8
from bespoke_solvers.reference import solve
from bespoke_solvers.table import Table
from bespoke_solvers.velocity import noise_seeds
from picture_files import mnist_folder, prepare

QUICK = ["--nfe", "4", "5", "--paths", "16", "--samples", "16", "--batch-size", "16", "--adam", "5"]
METHODS = ["midpoint", "dpmpp-2m", "edm-heun", "ns, closed form", "ns, default", "bns from euler"]


def test_a_run_computes_only_what_is_missing(tmp_path):
    frontier = ["toy:checkerboard", *QUICK, "--store", tmp_path, "--method"]
    first = run("bench.frontier", *frontier, *METHODS[:3])
    assert first.count(" rmse ") == 6, "three methods at both, if with one evaluation less"
    file = tmp_path / "toy-checkerboard.jsonl"
    before = file.read_text()
    second = run("bench.frontier", *frontier, *METHODS)
    assert second.count(" rmse ") == 6
    assert "midpoint" not in second
    assert file.read_text().startswith(before)
    assert run("bench.frontier", *frontier, *METHODS).count(" rmse ") == 0
    other = [argument if argument != "16" else "12" for argument in frontier]
    assert run("bench.frontier", *other, "ns, closed form").count(" rmse ") == 2, "another budget is another cell"

    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert {"command", "date", "versions", "device", "rmse", "psnr", "samples"} <= set(records[0])
    assert records[0]["versions"]["source"] == cells.source()
    assert all(str(tmp_path) not in json.dumps(record) for record in records)
    fitted = next(record for record in records if record["method"] == "bns from euler")
    assert fitted["evaluations"]["backward"] == 5 * 16 * fitted["nfe"]
    spent = fitted["evaluations"]
    assert fitted["cost"] == spent["reference"] + spent["forward"] + 2 * spent["backward"]

    printed = run("bench.tables", "--store", tmp_path, "--cost-at", 4, "--pictures", tmp_path / "pictures")
    best = min(records, key=lambda record: record["rmse"] if record["nfe"] == 4 else 1)
    assert f"**{best['rmse']:.4f} / {best['psnr']:.1f}**" in printed
    used = {(record["method"], record["nfe"]): record.get("used") for record in records}
    assert used["midpoint", 5] == used["midpoint", 4] == 4
    assert used["edm-heun", 4] == 3
    assert "(4) |" in printed
    picture = f"toy-checkerboard-{tmp_path.name}.png"  # of a store that is not the frontier: that one's is not replaced
    assert (tmp_path / "pictures" / picture).stat().st_size > 10_000


def test_exact_paths_count_once_in_the_seconds_of_a_chain(tmp_path, monkeypatch):
    """Each batch takes ten seconds of this clock, and nothing else takes any."""
    now = itertools.count(0, 10)
    monkeypatch.setattr("bespoke_solvers.bank.time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr("bespoke_solvers.run.time", SimpleNamespace(monotonic=lambda: 0))
    given = ["toy:checkerboard", *QUICK[3:], "--store", str(tmp_path), "--choose", "16", "--nfe", "2", "--method"]
    monkeypatch.setattr("sys.argv", ["bench.frontier", *given, "ns, closed form", "ns, default"])
    importlib.import_module("bench.frontier").main()
    assert {r["method"]: r["seconds"] for r in lines(tmp_path / "toy-checkerboard.jsonl")} == {
        "ns, closed form": 20,
        "ns, default": 20,
    }


@pytest.mark.parametrize("method", ["bns from euler", "rk2-bespoke, bound"])
@pytest.mark.parametrize("rate", [2e-3, 1.0], ids=["it falls", "it only gets worse"])
def test_a_longer_fit_goes_on_from_a_shorter_one(tmp_path, rate, method):
    given = ["toy:checkerboard", *QUICK[:-2], "--store", tmp_path, "--learning-rate", rate, "--validate-every", 1]
    given += ["--method", method, "--nfe", 4, "--adam"]
    run("bench.frontier", *given, 5)
    run("bench.frontier", *given, 8)
    short, long = (json.loads(line) for line in (tmp_path / "toy-checkerboard.jsonl").read_text().splitlines())
    assert long["history"][: len(short["history"])] == short["history"]
    assert long["history"][-1][0] == 8
    assert long["best_iteration"] == min(long["history"], key=lambda row: row[2])[0]
    assert rate == 1 or long["history"][6][2] < short["history"][5][2] < short["history"][1][2]
    assert (long["best_iteration"] == 0) is (rate == 1)
    assert long["began"] == short["budget"]
    assert long["evaluations"]["backward"] == 8 * 16 * 4
    assert long["evaluations"]["reference"] == short["evaluations"]["reference"]


def test_a_longer_fit_may_be_slower(tmp_path):
    given = ["toy:checkerboard", *QUICK[3:-2], "--store", tmp_path, "--method", "bns from euler", "--nfe", 4, "--adam"]
    run("bench.frontier", *given, 2)
    for steps in (3, 4):
        run("bench.frontier", *given, steps, "--learning-rate", 1e-4, "--begin", 2e-3)
    fast, slow, slower = lines(tmp_path / "toy-checkerboard.jsonl")
    assert (slow["began"], slow["budget"]) == (fast["budget"], "16 paths, 3 steps at 0.0001")
    assert (slower["began"], slower["history"][-1][0]) == (slow["budget"], 4)


@pytest.fixture
def networks(tmp_path):
    """The zoo's networks under the names of the benchmarks'."""
    for name in ("cifar10-fm-ot", "cifar10-eps-vp"):
        network = tmp_path / "models" / name
        network.mkdir(parents=True)
        for file in ("config.json", "diffusion_pytorch_model.safetensors"):
            shutil.copy(zoo.folder(f"zoo:{name}") / file, network)
        (network / "training_log.json").write_text('{"seconds": 510.2}')
    return tmp_path / "models"


def test_all_is_measured_by_one_command(networks, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    from bench import networks as module

    given = f"{shlex.join(QUICK)} --minutes {{left}} --store {tmp_path}/store --method midpoint"
    lanes = {
        "one": [f"bench.frontier toy:checkerboard {given}", "bench.fid --real {real}", "bench.tables --no-such-option"],
        "two": [f"bench.frontier toy:digits {given}"],
    }
    monkeypatch.setattr(module, "STAGES", [lanes, {"three": ["bench.tables --store {work}/../store"]}])
    argv = ["networks.py", str(networks), "--work", str(tmp_path / "my work")]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit, match="True"):  # one failed
        module.main()
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 6
    assert [line.split(":")[0] for line in told].count("one") == 4
    assert any(line.startswith("one: left out without --real: bench.fid") for line in told)
    assert sum("one: failed with 2" in line for line in told) == 2  # it was tried again
    assert told[-1].startswith("three: done")
    assert "unrecognized arguments: --no-such-option" in (tmp_path / "my work" / "one.log").read_text()
    assert {file.name for file in (tmp_path / "store").iterdir()} == {"toy-checkerboard.jsonl", "toy-digits.jsonl"}
    monkeypatch.setattr(sys, "argv", [*argv, "--minutes", "0"])
    with pytest.raises(SystemExit, match="False"):
        module.main()
    assert capsys.readouterr().out.count("left out for want of time") == 4
    monkeypatch.setattr(sys, "argv", [*argv, "--minutes", "0", "--lane", "two", "three"])
    with pytest.raises(SystemExit, match="False"):
        module.main()
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["two", "three"]


def test_that_command_can_be_interrupted(networks, tmp_path):
    """Neither the line that runs nor those after it keep it."""
    wait = "timeit -n 1 -r 1 -s 'import time' 'time.sleep(60)'"
    lanes = {"a": [wait, wait], "b": [wait]}
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # in the background it is not
    code = f"{heard}; from bench import networks; networks.STAGES = [{lanes!r}]; networks.main()"
    command = [sys.executable, "-c", code, networks, "--work", tmp_path / "work"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as running:
        try:
            deadline = time.monotonic() + 60
            while not (tmp_path / "work" / "b.log").exists():
                assert time.monotonic() < deadline
                time.sleep(0.1)
            time.sleep(2)
            os.killpg(running.pid, signal.SIGINT)
            told, _ = running.communicate(timeout=30)
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode != 0
    assert sorted(line.split(":")[0] for line in told.splitlines()) == ["a", "b"]


def test_every_line_of_that_command_is_one_that_its_module_takes(networks, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    from bench import fid, frontier, models
    from bench import networks as module

    for name in models.PATHS:
        models.link(networks / name, tmp_path / "folders" / name)
    real = tmp_path / "real"
    prepare(mnist_folder(tmp_path / "mnist"), real)
    given = {"models": networks, "work": tmp_path, "real": real, "weights": tmp_path / "weights", "left": 0}
    known = {fid.EXACT, *dedicated.NAMES, *frontier.LEARNED, frontier.TRANSFERRED, frontier.REFINED}
    seen = set()
    for line in [line for lanes in module.STAGES for lane in lanes.values() for line in lane]:
        command, *arguments = shlex.split(line.format(**given))
        seen.add(command)
        if "--method" in arguments:
            methods = itertools.takewhile(
                lambda a: not a.startswith("--"), arguments[arguments.index("--method") + 1 :]
            )
            assert set(methods) <= known, line
        if command == "bench.frontier":
            monkeypatch.setattr(sys, "argv", ["frontier.py", *arguments])
            frontier.main()  # with no minutes left: it measures nothing, and loads no network
        elif command == "bespoke_solvers.cli":
            assert CliRunner().invoke(app, [*arguments, "--dry-run"]).exit_code == 0, line
        else:
            importlib.import_module(command).arguments().parse_args(arguments)
    benches = {f"bench.{name}" for name in ("frontier", "fid", "exchange", "tables", "zoo")}
    assert seen == {*benches, "bespoke_solvers.cli"}


def test_networks_become_folders_for_the_commands(networks, tmp_path):
    run("bench.models", tmp_path / "models", "--out", tmp_path / "linked")
    guided = resolve(str(tmp_path / "linked" / "cifar10-eps-vp"), 2.0, device="cpu")
    ours = resolve("zoo:cifar10-eps-vp", 2.0, device="cpu")
    assert (guided.schedule, guided.prediction, guided.labels) == (ours.schedule, ours.prediction, ours.labels)
    assert json.loads((tmp_path / "linked" / "cifar10-fm-ot" / "training.json").read_text())["seconds"] == 510.2


SCHEDULERS = ["--nfe", "4", "--samples", "2", "--grid-samples", "2", "--batch-size", "2", "--tolerance", "1e-2"]


@pytest.mark.filterwarnings("ignore:the reference's own RMSE")
def test_schedulers_of_diffusers_run_in_its_pipeline(tmp_path, monkeypatch):
    """FlowMatchEuler's figures are those of Euler's method at its times."""
    from bench import schedulers

    euler, ours = "FlowMatchEulerDiscreteScheduler", "BespokeScheduler"
    models = zoo.folder("zoo:cifar10-fm-ot").parent
    given = ["cifar10-fm-ot", "--models", str(models), *SCHEDULERS, "--tolerance", "1e-3", "--effort", "low"]
    where = ["--paths", "2", "--store", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["schedulers.py", *given, *where, "--method", euler, ours])
    monkeypatch.setattr(schedulers, "FLOWS", {euler: ({}, {"shift": (1.0,)})})
    schedulers.main()
    found = [json.loads(line) for line in (tmp_path / "cifar10-fm-ot.jsonl").read_text().splitlines()]
    assert [(record["method"], record["budget"]) for record in found] == [
        (euler, "options chosen"),
        (ours, "low effort, 2 paths"),
    ]
    model = resolve("zoo:cifar10-fm-ot", device="cpu")
    held = held_out(Bank(model, batch_size=2, rtol=1e-3, atol=1e-3), "report", 0, 2)
    grid = torch.tensor([0, 0.333, 0.666, 0.999, 1], dtype=torch.float64)
    assert found[0]["rmse"] == pytest.approx(held.quality(runge_kutta(TABLEAUS["euler"], grid), model).rmse, rel=1e-4)
    assert found[1]["rmse"] < 0.5 * found[0]["rmse"]


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # inside diffusers' Heun
def test_schedulers_of_diffusers_are_on_the_path_of_the_network():
    """Heun has other betas by default."""
    from bench import schedulers

    ddpm = diffusers.DDPMScheduler()
    for kind in schedulers.NOISE:
        assert torch.equal(schedulers.like(ddpm, kind).alphas_cumprod, ddpm.alphas_cumprod), kind


def test_fid_of_what_the_store_has(tmp_path, monkeypatch):
    """Features are the means of the colours' halves; the real pictures are the exact samples of other noise."""
    from bench import fid as command
    from bench import tables

    def features(pictures):
        return pictures.double().unflatten(2, (2, -1)).mean((3, 4)).flatten(1)[:, :2] / 64

    monkeypatch.setattr(inception, "load", lambda *_: features)
    model = toy.load("toy:digits")
    exact = solve(model, model.noise(noise_seeds("fit", 0, 0, 256)))
    fid.statistics([to_uint8(exact.x1).permute(0, 3, 1, 2)], features).save(tmp_path / "real.npz")
    quick = ["--nfe", "4", "--paths", "16", "--samples", "16", "--batch-size", "16", "--tolerance", "1e-4"]
    run(
        "bench.frontier", "toy:digits", *quick, "--store", tmp_path / "frontier", "--method", "euler", "ns, closed form"
    )

    def measure(*methods, nfe):
        options = ["--real", "real.npz", "--samples", "128", "--batch-size", "64", "--nfe", nfe, "--method", *methods]
        options += ["--statistics", "kept"]
        monkeypatch.setattr(sys, "argv", ["fid.py", "toy:digits", "--frontier", "frontier", "--store", "fid", *options])
        command.main()

    monkeypatch.chdir(tmp_path)
    measure("dopri5", "euler", "ns, closed form", nfe="4")
    records = [json.loads(line) for line in (tmp_path / "fid" / "toy-digits.jsonl").read_text().splitlines()]
    found = {record["method"]: record["fid"] for record in records}
    assert found["euler"] > found["ns, closed form"] > 0.8 * found["dopri5"]
    fitted = next(record for record in records if record["method"] == "ns, closed form")
    judge = Judge(fid.load("real.npz"), features, count=128, batch_size=64)
    kept = json.loads((tmp_path / "frontier" / "toy-digits.jsonl").read_text().splitlines()[-1])
    table = Table(*(torch.tensor(kept["table"][name], dtype=torch.float64) for name in "tab"))
    assert fitted["fid"] == judge.table(table, model)["fid"]
    kept = [fid.load(file) for file in (tmp_path / "kept").glob("toy-digits-*-128-*.npz")]
    assert {fid.fid(drawn, judge.real) for drawn in kept} == set(found.values())
    with pytest.raises(SystemExit, match="no euler at 5 NFE for toy:digits; measure it"):
        measure("euler", nfe="5")
    printed = tables.fid_table(records)
    exact_fid, euler = found["dopri5"], found["euler"]
    assert f"| euler |  | 128 | {exact_fid:.2f} | {euler:.2f} ({euler / exact_fid:.1%}) |" in printed


def test_a_solver_stands_for_the_exact_one_in_tables_of_fid_only_where_it_was_shown_to():
    from bench import tables

    def record(*values):
        return dict(zip(("model", "method", "nfe", "samples", "fid", "rmse"), values, strict=True)) | {"budget": ""}

    measured = [record("m", "dopri5", 0, 10_000, 20.0, None), record("m", "euler", 8, 50_000, 36.0, 0.1)]
    for close, expected in ((20.09, "| euler |  | 50,000 | 18.00 | 36.00 (200.0%) |"), (20.11, "50,000 |  | 36.00 |")):
        fine = [record("m@half", "ipndm", 60, *counted, 0.01) for counted in ((10_000, close), (50_000, 18.0))]
        assert expected in tables.fid_table([*measured, *fine])
    fitted = [record("m", "ns", 20, *counted, 0.001) for counted in ((10_000, 20.0), (50_000, 17.0))]
    assert "| euler |  | 50,000 | 17.00 |" in tables.fid_table([*measured, *fitted, *fine]), "the nearest stands for it"


def test_cells_of_several_seeds_are_shown_by_their_means():
    from bench import tables

    def record(seed, rmse):
        key = {"model": "m", "method": "ns", "nfe": 8, "seed": seed, "budget": "", "samples": 16, "tolerance": 1e-6}
        return key | {"rmse": rmse, "psnr": 100 * rmse}

    one, other = record(0, 0.2), record(1, 0.4)
    assert "| **0.3000 (0.2000 to 0.4000) / 30.0** |" in tables.table(tables.over_seeds([one, other]))
    assert tables.over_seeds([one, other | {"nfe": 10}]) == [one, other | {"nfe": 10}]
