"""What the command refuses, and that nothing is left of it."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from commands import QUICK, refused, run

FIT = "--nfe 8 --out s.json " + " ".join(QUICK)
PNG = "--out s.png"
REFUSALS = {
    "fit own:model --nfe 4 --out board.json": "board.json is there already; give another --out, or --overwrite",
    "fit toy:digits --nfe 4-7 --family rk2 --out s.json": "rk2 has an even number of evaluations, two for each step; "
    "got 5, 7",
    f"fit no/folder {FIT}": "there is no folder no/folder; expected zoo:cifar10-eps-vp, ",
    f"fit own:net {FIT}": "own:net is a network, a Identity; expected a bespoke_solvers.Model",
    f"fit own:channel {FIT}": "the network returned torch.float32 (4, 1) for an x of torch.float32 (4, 2)",
    f"fit own:half {FIT}": "and the precision: x is torch.float32",
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
    f"sample own:model --solver board.json --seeds 4294967296 {PNG}": "goes beyond 4,294,967,295",
    f"fit own:model --tolerance inf {FIT}": "the tolerance must be positive and finite, got rtol = inf",
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
    "fit own:model --nfe 0 --out s.json": "--nfe 0: a sample takes 1 evaluation or more",
    "eval own:model --solver board.json --nfe 0,8 --out r": "--nfe 0,8: a sample takes 1 evaluation or more",
    "fit own:model --nfe abc --out s.json": "--nfe: 'abc' is no list of numbers; expected for example 10",
    "fit own:model --nfe 8 --out own.py/s.json": "own.py is a file; expected a folder for the output s.json",
    f"fit own:nan --dry-run {FIT}": "velocity is not finite at t = ",
    f"fit own:channel --dry-run {FIT}": "the network returned torch.float32 (4, 1) for an x of torch.float32 (4, 2)",
    f"fit own:model --learning-rate 5 {FIT}": "learning_rate = 5 is for Adam and the bound; endpoint has none",
    "eval own:model --solver board.json --solver s.json --out r": "got 2 files with --solver; compare one at a time",
    "fit own:model --nfe 8 --learn time --out s.json": "learn = 'time' is for rk1 and rk2",
    f"fit own:model --objective bound {FIT}": "unknown objective 'bound' for ns; expected one of closed-form",
    f"fit own:model --fresh {FIT}": "--paths 8 does not go with it",
    "fit own:model --fresh --nfe 8 --out s.json": "new paths in every iteration are for the bound",
    "fit own:model --nfe 8 --family rk2 --effort low --out s.json": "effort 'low' for rk2",
    f"fit own:model --objective closed-form --dry-run {FIT}": "closed-form cannot have 25 iterations",
    "fit own:model --nfe 8 --tolerance 0 --out s.json": "the tolerance must be positive",
    f"fit own:model --family rk2 --start euler {FIT}": "has a start of its own",
    f"fit own:model --fid nowhere {FIT}": "there is no nowhere; expected a folder of bespoke data, or an .npz file",
    "eval own:model --solver board.json --out r --fid folder.json": "there is no prepared data set in folder.json",
    "eval own:model --solver board.json --out r --fid own.py": "own.py is damaged or no file of statistics",
    f"fit own:model --fid real.npz {FIT}": "samples of the shape (2,) are no pictures, which FID is of",
    f"fit own:latent --fid real.npz --dry-run {FIT}": "samples of the shape (4, 4, 4) are no pictures",
    "eval own:model --solver board.json --out r --fid real.npz": "samples of the shape (2,) are no pictures",
    "eval own:model --solver board.json --out r --fid real.npz --dry-run": "samples of the shape (2,) are no pictures",
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
    np.savez("real.npz", mu=np.zeros(2), sigma=np.eye(2))
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


def test_of_several_models_the_wrong_one_is_named(here, capsys):
    message = refused(capsys, "paper", "toy:checkerboard", "own:nan", "--nfe", "4", "--out", "o", "--quiet")
    assert message.startswith("error: own:nan: the velocity is not finite")
