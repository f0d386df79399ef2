import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from bespoke_solvers import load, toy, zoo
from bespoke_solvers.cli import main
from bespoke_solvers.cli.common import LARGEST_SEED, in_figures, numbers
from bespoke_solvers.dedicated import NAMES
from bespoke_solvers.metrics import decimals
from bespoke_solvers.report import significant
from bespoke_solvers.solver import available, save
from bespoke_solvers.table import Table
from commands import QUICK, refused, run


def size(path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def test_fit_writes_a_solver_and_keeps_the_bank_but_not_the_checkpoint(solver, capsys):
    names = sorted(file.name for file in solver.parent.iterdir())
    assert names == ["board.json", "toy-checkerboard.bank"]
    assert load(solver).nfe == 4


def test_a_second_fit_takes_its_paths_from_the_bank(solver, tmp_path, monkeypatch):
    monkeypatch.setattr("bespoke_solvers.bank.solve", lambda *a, **k: pytest.fail("solved again"))
    bank = solver.parent / "toy-checkerboard.bank"
    run("fit", "toy:checkerboard", "--nfe", 6, "--family", "rk1", "--bank", bank, "--out", tmp_path / "s.json", *QUICK)
    assert load(tmp_path / "s.json").family == "rk1"


def test_sample_draws_by_seed(solver, here):
    run("sample", "toy:checkerboard", "--solver", solver, "--seeds", "0-9", "--out", "all.safetensors", "--quiet")
    run("sample", "toy:checkerboard", "--solver", solver, "--seeds", "7,3", "--out", "two.safetensors", "--quiet")
    everything, two = load_file("all.safetensors"), load_file("two.safetensors")
    assert everything["samples"].shape == (10, 2)
    torch.testing.assert_close(two["samples"], everything["samples"][[7, 3]])
    run("sample", "toy:checkerboard", "--solver", solver, "--out", "points.png", "--quiet")
    assert size("points.png") == (675, 675)


def test_sample_of_pictures_is_a_grid(here):
    run("fit", "own:picture", "--nfe", 2, "--out", "s.json", "--family", "rk2", *QUICK)
    run("sample", "own:picture", "--solver", "s.json", "--seeds", "0-8", "--out", "g.png", "--quiet")
    assert size("g.png") == (12 * 16, 12 * 16)


def test_eval_compares_on_the_same_noise(solver, here, capsys):
    arguments = ["--solver", solver, "--baselines", "euler,midpoint,rk4", "--nfe", "4,6,8", "--samples", 16]
    run("eval", "toy:checkerboard", *arguments, "--batch-size", 8, "--out", "results", "--quiet")
    printed = capsys.readouterr().out
    result = json.loads(Path("results/results.json").read_text())
    rows = {(row["method"], row["nfe"]): row for row in result["rows"]}
    assert {nfe for method, nfe in rows if method == "rk4"} == {4, 8}, "6 is no multiple of 4"
    assert ("ns-bespoke", 4) in rows
    assert f"{rows['midpoint', 8]['rmse']:.4f} / {rows['midpoint', 8]['psnr']:.1f}" in printed
    assert rows["midpoint", 8]["rmse"] < rows["midpoint", 4]["rmse"]
    for name in ("errors", "samples", "paths", "theta", "fit"):
        assert min(size(f"results/{name}.png")) > 100, name
    page = Path("results/report.html").read_text()
    assert f"<pre>bespoke eval toy:checkerboard --solver {solver.name} --baselines euler,midpoint,rk4" in page
    assert f"RMSE {significant(rows['ns-bespoke', 4]['rmse'])}" in page


def test_eval_with_all_baselines_puts_each_on_its_best_grid(solver, here, capsys):
    arguments = ["--solver", solver, "--nfe", "4,5", "--samples", 16, "--batch-size", 16, "--quiet"]
    run("eval", "toy:checkerboard", *arguments, "--baselines", "all", "--out", "best")
    run("eval", "toy:checkerboard", *arguments, "--baselines", "ddim,dpmpp-2m@karras", "--out", "named")
    best, named = (json.loads(Path(f"{folder}/results.json").read_text())["rows"] for folder in ("best", "named"))
    rmse = {(row["method"], row["nfe"]): row["rmse"] for row in best}
    assert {name for name, _ in rmse} == {*NAMES, "ns-bespoke"}
    assert ("edm-heun", 5) in rmse
    assert ("edm-heun", 4) not in rmse
    assert "dpmpp-2m@karras" in {row["method"] for row in named}
    assert min(size("best/errors.png")) > 100
    run("eval", "toy:checkerboard", *arguments, "--baselines", "none", "--out", "alone")
    assert {row["method"] for row in json.loads(Path("alone/results.json").read_text())["rows"]} == {"ns-bespoke"}


def test_eval_puts_a_named_baseline_on_its_best_grid_and_names_what_is_left_out(solver, here, capsys):
    arguments = ["--solver", solver, "--nfe", 4, "--samples", 64, "--batch-size", 64, "--quiet"]
    methods = "dpmpp-2m,dpmpp-2m@uniform,edm-heun"
    run("eval", "toy:checkerboard", *arguments, "--baselines", methods, "--out", "results")
    printed = capsys.readouterr().out
    rows = json.loads(Path("results/results.json").read_text())["rows"]
    found = {(row["method"], row["nfe"]): row for row in rows}
    assert found["dpmpp-2m", 4]["rmse"] <= found["dpmpp-2m@uniform", 4]["rmse"] * 1.1
    assert "grid" not in found["dpmpp-2m@uniform", 4]
    assert f"  dpmpp-2m: {found['dpmpp-2m', 4]['grid']} (4)" in printed
    assert "edm-heun cannot have 4 evaluations: left out" in printed
    assert 0 < found["dpmpp-2m", 4]["rmse_se"] < found["dpmpp-2m", 4]["rmse"]
    assert "its standard error is at most" in printed


def test_a_model_may_be_named_itself(solver, here):
    """`own:board` is a Model, `own:model` a function that returns one."""
    run("sample", "own:board", "--solver", solver, "--seeds", "3", "--out", "named.safetensors", "--quiet")
    run("sample", "own:model", "--solver", solver, "--seeds", "3", "--out", "made.safetensors", "--quiet")
    torch.testing.assert_close(load_file("named.safetensors"), load_file("made.safetensors"))


def test_one_file_for_several_nfe(here, capsys):
    run("fit", "own:model", "--nfe", "3-5,7", "--out", "s.json", "--effort", "low", *QUICK[:-3], "--quiet")
    assert available("s.json") == [3, 4, 5, 7]
    assert capsys.readouterr().out.count("s.json: ns, ") == 4
    assert sorted(file.name for file in here.iterdir() if file.suffix != ".py" and file.name != "__pycache__") == [
        "own-model.bank",
        "s.json",
    ]
    assert [load("s.json", nfe).validation["rmse"] for nfe in (3, 7)] == sorted(
        (load("s.json", nfe).validation["rmse"] for nfe in (3, 7)), reverse=True
    )


def test_a_fit_can_begin_at_the_best_baseline(here, capsys):
    run("fit", "own:model", "--nfe", 4, "--out", "s.json", "--start", "best", "--objective", "endpoint", *QUICK)
    said = capsys.readouterr()
    begun = float(re.search(r"4 NFE begins at \S+, RMSE (\S+)", said.err)[1])
    history = load("s.json").fit["history"]
    assert history[0][2] == pytest.approx(begun, abs=1e-4)
    assert load("s.json").fit["stages"] == ["endpoint"]
    assert history[-1][2] < begun


def test_show_explains_a_file(solver, here, capsys):
    run("show", solver, "--out", "theta.png")
    printed = capsys.readouterr().out
    assert "4 evaluations, family ns, 19 learned numbers" in printed
    assert "path CondOT" in printed
    assert re.search(r"evaluations spent: [\d,]+ reference, [\d,]+ forward, [\d,]+ backward", printed)
    assert len(re.findall(r"^  \d   (?:\d\.\d{5}|result)", printed, re.MULTILINE)) == 5
    assert size("theta.png")[0] > 1000


def test_show_tells_what_was_measured_also_without_a_base_method(capsys):
    run("show", "zoo:cifar10-fm-ot")
    file = zoo.folder("zoo:cifar10-fm-ot") / zoo.RK2_BESPOKE
    measured = [load(file, nfe).validation for nfe in available(file)]
    assert len(measured) >= 2
    told = re.findall(
        r"on 512 samples: RMSE (\S+) \((\S+) dB\); exact: (\d+) NFE$", capsys.readouterr().out, re.MULTILINE
    )
    figures = [(each["rmse"], each["psnr"], each["reference_evaluations"]) for each in measured]
    assert told == [(decimals(error), f"{ratio:.1f}", f"{spent:.0f}") for error, ratio, spent in figures]


def test_show_says_what_a_solver_was_made_for(solver, here, capsys):
    made = load(solver)
    begun = Table(made.table.t[1:], made.table.a[1:], made.table.b[1:, 1:])
    guided = dataclasses.replace(made, model=made.model | {"guidance": 3.5}, starts={1: begun})
    save([guided], "guided.json")
    run("show", "guided.json")
    printed = capsys.readouterr().out
    assert ", guidance 3.5" in printed
    assert "with tables that start at evaluation 1" in printed


def test_dry_runs_write_nothing(solver, here, capsys):
    run("fit", "own:model", "--nfe", 10, "--out", "s.json", "--dry-run")
    printed = capsys.readouterr().out
    assert "76 numbers to learn: closed-form, projection, endpoint" in printed
    assert "paths       512, 32 at a time" in printed
    run("fit", "zoo:cifar10-fm-ot", "--guidance", 2, "--nfe", 8, "--out", "s.json", "--dry-run")
    assert "64, 32 at a time, in zoo-cifar10-fm-ot-w2.bank" in capsys.readouterr().out, "another guidance, other paths"
    run("eval", "toy:checkerboard", "--solver", solver, "--out", "results", "--dry-run")
    assert "evaluations" in capsys.readouterr().out
    run("sample", "own:model", "--solver", solver, "--seeds", "0-9", "--out", "points.png", "--dry-run")
    assert "10 samples of own:model" in (printed := capsys.readouterr().out)
    assert "4 evaluations each, 40 in all; output points.png" in printed
    assert [file.name for file in here.iterdir() if file.name != "__pycache__"] == ["own.py"]


def test_a_dry_run_of_eval_counts_all_that_it_would_do(solver, here, capsys, monkeypatch):
    """Batches of 8 are those of the tables: a fingerprint takes 4 samples, and the picture of paths 3."""
    model, batches = toy.checkerboard(), []

    def velocity(t, x):
        batches.append(len(x))
        return model.velocity(t, x)

    counted = dataclasses.replace(model, velocity=velocity)
    monkeypatch.setattr("bespoke_solvers.cli.eval.resolve", lambda *arguments, **options: counted)
    methods = "euler,dpmpp-2m,ipndm@karras,edm-heun"
    command = ["eval", "own:model", "--solver", solver, "--out", "r", "--baselines", methods, "--nfe", "5,6", "--quiet"]
    command += ["--samples", 8, "--batch-size", 8]
    run(*command, "--dry-run")
    compared, searched, exact, _ = capsys.readouterr().out.splitlines()
    run(*command)
    assert int(re.match(r"and (\d+) exact samples", exact)[1]) == 8 * len(list(here.glob("r/bank/*-0-0*.safetensors")))
    batches.clear()
    run(*command)  # with the exact samples of the first time
    expected = sum(int(re.search(r"(\S+) evaluations", line)[1].replace(",", "")) for line in (compared, searched))
    assert sum(size for size in batches if size == 8) == expected
    capsys.readouterr()
    run(*command, "--baselines", "euler,ipndm@karras", "--dry-run")
    assert "time grids" not in capsys.readouterr().out, "no grid is to be chosen"


def test_eval_leaves_no_picture_of_another_comparison(solver, here):
    arguments = ["--solver", solver, "--samples", 8, "--batch-size", 8, "--out", "results", "--quiet"]
    run("eval", "toy:checkerboard", *arguments, "--nfe", "4,6")
    assert Path("results/errors.png").exists()
    run("eval", "toy:checkerboard", *arguments, "--nfe", 4)
    assert not Path("results/errors.png").exists(), "there is but one NFE to draw"
    result = json.loads(Path("results/results.json").read_text())
    assert result["command"].startswith("bespoke eval toy:checkerboard --solver")
    assert result["tolerance"] == 1e-5


def test_what_eval_leaves_names_no_folder(solver, here, monkeypatch):
    """It is sent to others."""
    folder = here / "models of mine" / "net"
    folder.mkdir(parents=True)
    monkeypatch.setattr("bespoke_solvers.cli.eval.resolve", lambda *arguments, **options: toy.checkerboard())
    out = here / "results"
    run("eval", folder, "--solver", here / solver, "--samples", 8, "--batch-size", 8, "--out", out, "--quiet")
    for file in ("report.html", "results.json"):
        assert str(here) not in (text := (out / file).read_text())
        assert "of mine" not in text
        assert "bespoke eval net --solver" in text


def test_eval_warns_of_figures_that_are_the_references_own(solver, here, capsys, monkeypatch):
    monkeypatch.setattr("bespoke_solvers.bank.own_error", lambda *arguments, **options: 0.5)
    arguments = ["--solver", solver, "--samples", 8, "--batch-size", 8, "--out", "results", "--quiet"]
    run("eval", "toy:checkerboard", *arguments)
    told = "own RMSE, 5.0e-01, is over a third of the solver"
    assert f"warning: the reference's {told}" in capsys.readouterr().out
    assert told in Path("results/report.html").read_text()


def test_a_fit_that_learned_nothing_says_so():
    same = {"rmse": 0.1, "psnr": 20.0, "baseline": "midpoint", "baseline_rmse": 0.1, "baseline_psnr": 20.0}
    assert "nothing was learned" in in_figures(same)
    assert "not closer in RMSE" in in_figures(same | {"rmse": 0.2})
    assert in_figures(same | {"rmse": 0.05}).endswith("midpoint at the same cost 0.1000 (20.0 dB)")


def test_an_error_of_the_users_own_code_names_the_place(here, capsys):
    Path("own.py").write_text("def model():\n    raise ValueError('bad thing')\n")
    with pytest.raises(SystemExit):
        main(["fit", "own:model", "--nfe", "8", "--out", "s.json"])
    assert re.search(r"error: bad thing \(.*own\.py, line 2; `bespoke --traceback", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "import nothing_like_it\n",
            r"own failed: ModuleNotFoundError: No module named 'nothing_like_it' \(.*own\.py, line 1;",
        ),
        ("def model(:\n", r"own failed: SyntaxError: .*line 1"),
        (
            "import bespoke_solvers as bs\nmodel = bs.Model(lambda t, x: x)\n",
            r"own failed: TypeError: .*'shape'.*line 2;",
        ),
        ("def model():\n    return nonsense\n", r"own:model failed: NameError: name 'nonsense' .*own\.py, line 2;"),
        ("def model():\n    return {}['weights']\n", r"own:model failed: KeyError: 'weights' .*own\.py, line 2;"),
        ("raise RuntimeError('size mismatch')\n", r"own failed: RuntimeError: size mismatch .*own\.py, line 1;"),
        (
            "import bespoke_solvers as bs\nmodel = bs.Model(lambda t, x: {}['u'], (2,), bs.schedules.CondOT())\n",
            r"the model failed on a t of .* and an x of .*: KeyError: 'u'\. Check",
        ),
    ],
)
def test_a_module_that_fails_is_told_in_one_line(here, capsys, code, told):
    Path("own.py").write_text(code)
    sys.modules.pop("own", None)
    assert re.search(told, refused(capsys, "fit", "own:model", "--nfe", "8", "--out", "s.json"))


def test_conditions_do_not_take_the_place_of_samples(here, capsys):
    Path("own.py").write_text(
        "import torch, bespoke_solvers as bs\n"
        "def model():\n"
        "    draw = lambda generator: {'samples': torch.rand(3, generator=generator)}\n"
        "    return bs.Model(lambda t, x, c: -x, (2,), bs.schedules.CondOT(), draw_condition=draw)\n"
    )
    run("fit", "own:model", "--nfe", 2, "--out", "s.json", *QUICK)
    with pytest.raises(SystemExit):
        main(["sample", "own:model", "--solver", "s.json", "--out", "drawn.safetensors"])
    assert "the conditions of own:model are named samples" in capsys.readouterr().err
    assert not Path("drawn.safetensors").exists()


def test_traceback_on_request(here):
    with pytest.raises(ValueError, match="unknown model"):
        main(["--traceback", "fit", "nothing", "--nfe", "8", "--out", "s.json"])


def test_numbers():
    assert numbers("0-3,8") == [0, 1, 2, 3, 8]
    assert numbers("10") == [10]
    with pytest.raises(ValueError, match="runs backwards"):
        numbers("5-3")
    with pytest.raises(ValueError, match="'8-1001' goes beyond 1,000"):
        numbers("8-1001")
    with pytest.raises(ValueError, match="more than 1,000,000 numbers"):
        numbers("0-1000000", LARGEST_SEED)


def test_help_names_every_command(capsys):
    run("--help")
    printed = capsys.readouterr().out
    assert all(command in printed for command in ("demo", "fit", "sample", "eval", "show", "pretrain"))


@pytest.mark.parametrize("family", ["rk2", "ns"])
def test_a_killed_fit_goes_on_and_ends_with_the_same_table(here, family):
    """SIGKILL while exact paths are solved and twice just after a checkpoint."""
    command = [sys.executable, "-c", "from bespoke_solvers.cli import main; main()", "fit", "own:model", "--nfe", "4"]
    options = ["--paths", "16", "--validation-paths", "8", "--batch-size", "4", "--quiet"]
    options += ["--family", family, "--iterations", "100" if family == "rk2" else "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    undisturbed = [*command, *options, "--out", "whole.json", "--bank", "other.bank"]
    subprocess.run(undisturbed, env=environment, check=True, capture_output=True)

    def work_done() -> int:
        """Grows with every batch of the bank and every checkpoint."""
        checkpoint = Path("s.json.4.checkpoint")
        return len(list(here.glob("own-model.bank/*"))) + (checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0)

    for after in (3, "checkpoint", "checkpoint"):
        process = subprocess.Popen([*command, *options, "--out", "s.json"], env=environment, stderr=subprocess.DEVNULL)
        before = work_done()
        while process.poll() is None and not (
            work_done() - before >= after if isinstance(after, int) else work_done() > max(before, 10**9)
        ):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "killed at work, not after it"
        assert not Path("s.json").exists()
    subprocess.run([*command, *options, "--out", "s.json"], env=environment, check=True, capture_output=True)
    assert not Path("s.json.4.checkpoint").exists()
    whole, resumed = (json.loads(Path(name).read_text())["tables"]["4"] for name in ("whole.json", "s.json"))
    assert all(whole[key] == resumed[key] for key in ("t", "a", "b", "theta", "validation"))
    assert whole["fit"]["history"] == resumed["fit"]["history"]
    assert whole["fit"]["evaluations"] == resumed["fit"]["evaluations"]
