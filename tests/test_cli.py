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
from bespoke_solvers.cli.common import numbers
from bespoke_solvers.dedicated import NAMES
from bespoke_solvers.metrics import decimals
from bespoke_solvers.report import significant
from bespoke_solvers.solver import available, save
from bespoke_solvers.table import Table

QUICK = ["--paths", "8", "--validation-paths", "8", "--batch-size", "8", "--iterations", "25", "--quiet"]

OWN = """
import time
import torch
from bespoke_solvers import Model, schedules, toy

board = toy.checkerboard()

def slow(t, x):
    time.sleep(0.003)
    return board.velocity(t, x)

def model():
    return Model(velocity=slow, shape=(2,), schedule=schedules.CondOT())

def broken(returned):
    return lambda: Model(velocity=lambda t, x: returned(x), shape=(2,), schedule=schedules.CondOT())

shrinking = broken(lambda x: -x)
nan = broken(lambda x: x * torch.nan)
shape = broken(lambda x: x[:, :1])
dtype = broken(lambda x: x.double())
picture = lambda: Model(velocity=lambda t, x: -x, shape=(3, 4, 4), schedule=schedules.CondOT())
latent = lambda: Model(velocity=lambda t, x: -x, shape=(4, 4, 4), schedule=schedules.CondOT())
number = lambda: 3
text = "a model"
given = lambda scale: model()
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in, with a module of the user's own."""
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("own", None)


def run(*arguments: str) -> None:
    """The command as the shell runs it; fails unless it ends well."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    assert end.value.code == 0


def size(path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def refused(capsys, *arguments: str) -> str:
    """The one line that a command prints when it refuses something."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    assert end.value.code == 1
    printed = capsys.readouterr().err.strip().splitlines()
    assert len(printed) == 1, printed
    assert printed[0].startswith("error: ")
    return printed[0]


@pytest.fixture(scope="module")
def solver(tmp_path_factory):
    path = tmp_path_factory.mktemp("solver") / "board.json"
    run("fit", "toy:checkerboard", "--nfe", 4, "--out", path, *QUICK)
    return path


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
    assert f"<pre>bespoke eval toy:checkerboard --solver {solver} --baselines euler,midpoint,rk4 --nfe 4,6,8" in page
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
    measured = [load(zoo.folder("zoo:cifar10-fm-ot") / zoo.RK2_BESPOKE, nfe).validation for nfe in (8, 10)]
    told = re.findall(
        r"on 512 samples: RMSE (\S+) \((\S+) dB\); exact: 241 NFE$", capsys.readouterr().out, re.MULTILINE
    )
    assert told == [(decimals(each["rmse"]), f"{each['psnr']:.1f}") for each in measured]


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
    assert "paths       256, 32 at a time" in printed
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


FIT = "--nfe 8 --out s.json " + " ".join(QUICK)
PNG = "--out s.png"
REFUSALS = {
    "fit own:model --nfe 4 --out board.json": "board.json is there already; give another --out, or --overwrite",
    "fit toy:digits --nfe 7 --family rk2 --out s.json": "multiple of 2, got 7",
    f"fit digits {FIT}": "unknown model 'digits'; expected zoo:cifar10-eps-vp, ",
    f"fit toy:digit {FIT}": "unknown toy model 'toy:digit'",
    f"fit mine:model {FIT}": "there is no module 'mine'",
    f"fit own:modell {FIT}": "a bespoke_solvers.Model, or a function that returns one; the module has no 'modell'",
    f"fit own:text {FIT}": "own:text must be a bespoke_solvers.Model, or a function that returns one; it is a str",
    f"fit own:number {FIT}": "returned a int; it must return a bespoke_solvers.Model",
    f"fit own:given {FIT}": "takes the arguments scale; it must take none",
    f"fit own:nan {FIT}": "velocity is not finite",
    f"fit own:shape {FIT}": "(4, 1) for an x of torch.float32 (4, 2)",
    f"fit own:dtype {FIT}": "returned torch.float64",
    "fit own:model --nfe 8 --out no/s.json": "there is no folder no",
    "fit own:model --nfe 8 --out s.txt": "must end in .json",
    "fit own:model --nfe 8 --out folder.json": "is a folder; expected the name of a file",
    f"sample own:model --solver board.json --seeds 0..9 {PNG}": "expected for example",
    "show nothing.json": "there is no solver file nothing.json",
    "show foreign.json": "foreign.json is not a solver file",
    "show truncated.json": "truncated.json is not a solver file, or a damaged one",
    "show edited.json": "edited.json: table 4: b must be zero on and above the diagonal",
    f"sample toy:checkerboard-vp --solver board.json {PNG}": "schedule {'name': 'CondOT'} (here {'name': 'VP'",
    f"sample own:picture --solver board.json {PNG}": "shape [2] (here [3, 4, 4])",
    f"sample own:model --solver board.json --nfe 8 {PNG}": "holds tables for nfe = 4",
    "eval own:model --solver board.json --out r --baselines rk5": "unknown method 'rk5'; expected one of euler",
    "fit own:model --nfe 8 --start dpmpp-9m --out s.json": "unknown method 'dpmpp-9m'",
    "fit own:model --nfe 6 --start rk4 --out s.json": "rk4 can have 4, 8, 12, ... evaluations, got nfe = 6",
    "fit own:model --nfe 8 --learn time --out s.json": "learn = 'time' is for rk1 and rk2",
    f"fit own:model --objective bound {FIT}": "unknown objective 'bound' for ns; expected one of closed-form",
    f"fit own:model --fresh {FIT}": "--paths 8 does not go with it",
    "fit own:model --fresh --nfe 8 --out s.json": "new paths in every iteration are for the bound",
    "fit own:model --nfe 8 --family rk2 --effort low --out s.json": "effort 'low' for rk2",
    "fit own:model --nfe 8 --tolerance 0 --out s.json": "the tolerance must be positive",
    f"fit own:model --family rk2 --start euler {FIT}": "has a start of its own",
    f"fit own:model --fid nowhere {FIT}": "there is no nowhere; expected a folder of bespoke data, or an .npz file",
    "eval own:model --solver board.json --out r --fid folder.json": "there is no prepared data set in folder.json",
    "eval own:model --solver board.json --out r --fid own.py": "own.py is damaged or no file of statistics",
    "paper own:model --out r --real nowhere": "there is no nowhere; expected a folder",
    "eval own:model --solver board.json --out own.py --dry-run": "own.py is a file; expected a folder",
    f"sample own:picture --solver board.json {PNG} --dry-run": "shape [2] (here [3, 4, 4])",
    "eval own:model --solver board.json --out own.py": "own.py is a file; expected a folder",
}


@pytest.mark.parametrize("command", REFUSALS)
def test_bad_input_ends_in_one_sentence_and_leaves_nothing(command, here, capsys, solver):
    content = solver.read_text()
    Path("board.json").write_text(content)
    Path("foreign.json").write_text('{"format": "something else"}')
    Path("truncated.json").write_text(content[:300])
    edited = json.loads(content)
    edited["tables"]["4"]["b"][0][3] = 1.0
    Path("edited.json").write_text(json.dumps(edited))
    Path("folder.json").mkdir()
    before = sorted(here.rglob("*"))
    assert REFUSALS[command] in refused(capsys, *command.split())
    left = [path for path in sorted(here.rglob("*")) if path not in before and "__pycache__" not in path.parts]
    assert [path.name for path in left] == []


def test_an_unwritable_output_is_refused(here, capsys, monkeypatch):
    """As root the permissions do not count, so the question to the system is answered for it."""
    monkeypatch.setattr("os.access", lambda path, mode, **options: mode != os.W_OK)
    assert "s.json cannot be written" in refused(capsys, "fit", "own:model", "--nfe", "8", "--out", "s.json")
    assert "results cannot be written" in refused(
        capsys, "eval", "toy:checkerboard", "--solver", _solver_file(here), "--out", "results"
    )


def _solver_file(here):
    from bespoke_solvers import Solver
    from bespoke_solvers.generic import baseline

    Solver(baseline("midpoint", 4)).save(here / "plain.json")
    return here / "plain.json"


def test_samples_without_a_picture_need_another_ending(here, capsys):
    run("fit", "own:latent", "--nfe", "2", "--out", "s.json", "--family", "rk2", *QUICK)
    message = refused(capsys, "sample", "own:latent", "--solver", "s.json", "--out", "s.png", "--quiet")
    assert "shape (4, 4, 4) make no PNG" in message
    assert not Path("s.png").exists()
    run("sample", "own:latent", "--solver", "s.json", "--out", "s.safetensors", "--quiet")


def test_a_nan_sample_is_no_picture(here, capsys, solver):
    message = refused(capsys, "sample", "own:nan", "--solver", solver, "--out", "s.png", "--quiet", "--seeds", "0-3")
    assert "not finite" in message
    assert not Path("s.png").exists()


def test_a_transferred_solver_is_warned_of(here, solver):
    with pytest.warns(UserWarning, match="made for a model with other weights"):
        run("sample", "own:shrinking", "--solver", solver, "--out", "s.png", "--quiet")
    assert Path("s.png").exists()


def test_traceback_on_request(here):
    with pytest.raises(ValueError, match="unknown model"):
        main(["--traceback", "fit", "nothing", "--nfe", "8", "--out", "s.json"])


def test_numbers():
    assert numbers("0-3,8") == [0, 1, 2, 3, 8]
    assert numbers("10") == [10]
    with pytest.raises(ValueError, match="runs backwards"):
        numbers("5-3")


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
