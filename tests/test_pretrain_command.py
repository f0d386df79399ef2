"""`bespoke pretrain`: its courses and its refusals."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bespoke_solvers import pretrain
from bespoke_solvers.cli import main
from bespoke_solvers.data import FORMAT
from bespoke_solvers.pretrain_configs import CONFIGS, unet
from trainings import TINY, made


@pytest.fixture
def folder(tmp_path):
    """The greys as a folder of data."""
    data = made()
    np.save(tmp_path / "pixels.npy", data.pixels)
    np.save(tmp_path / "labels.npy", data.labels)
    (tmp_path / "data.json").write_text(card(data.name))
    return tmp_path


def card(name):
    """What `bespoke data` would have written of the greys."""
    facts = {"format": FORMAT, "name": name, "classes": made().classes, "count": 32, "shape": [1, 8, 8]}
    return json.dumps(facts)


def command(capsys, *arguments) -> tuple[int, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return end.value.code, printed.out + printed.err


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(CONFIGS, "tiny", TINY)


def test_the_command_trains_goes_on_and_refuses_another_training(folder, capsys, tiny, monkeypatch):
    arguments = ["pretrain", "tiny", "--data", folder, "--out", folder / "out", "--quiet", "--steps"]
    code, printed = command(capsys, *arguments, 2, "--batch-size", 4, "--half")
    assert (code, "tiny, 2 steps, 8 pictures seen" in printed) == (0, True)
    code, printed = command(capsys, *arguments, 3, "--batch-size", 4, "--dry-run")
    assert (code, "for 3 steps with 4 pictures in a step, from step 2 on" in printed) == (0, True)
    code, printed = command(capsys, *arguments, 3, "--batch-size", 4)
    assert (code, "3 steps, 12 pictures" in printed, "no step was added" in printed) == (0, True, False)
    code, printed = command(capsys, *arguments, 2, "--batch-size", 4)
    assert (code, "3 steps" in printed, "more than --steps 2 before, so no step" in printed) == (0, True, True)
    code, printed = command(capsys, *arguments, 3, "--batch-size", 5, "--seed", 1)
    assert (code, len(printed.strip().splitlines())) == (1, 1)
    assert "is of another training: batch_size 4 (here 5); seed 0 (here 1)" in printed
    monkeypatch.setitem(CONFIGS, "tiny", dataclasses.replace(TINY, name="tinier"))
    (folder / "data.json").write_text(card("blues"))
    _, printed = command(capsys, *arguments, 3, "--batch-size", 4)
    assert "config tiny (here tinier); data greys (here blues)" in printed
    (folder / "data.json").write_text(card("blues")[:-1] + ', "sha256": "ab"}')
    _, printed = command(capsys, *arguments, 3, "--batch-size", 4)
    assert "; pictures (32,) (here (32, 'ab'))" in printed, "other pictures under the same name"
    (folder / "out" / "checkpoint.pt").write_text("something")
    _, printed = command(capsys, *arguments, 3)
    assert "checkpoint.pt is no checkpoint of a training; remove it" in printed
    (folder / "out" / "checkpoint.pt").unlink()
    _, printed = command(capsys, *arguments, 3)
    assert "README.md, which a training would replace, and no checkpoint of it; give another --out" in printed
    (folder / "mine").mkdir()
    (folder / "mine" / "README.md").write_text("mine")
    code, printed = command(capsys, *arguments[:5], folder / "mine", "--quiet", "--steps", 2)
    assert (code, "mine holds README.md, which a training" in printed) == (1, True)
    assert (folder / "mine" / "README.md").read_text() == "mine"


def test_a_dry_run_trains_nothing(folder, capsys, tiny):
    arguments = ["pretrain", "tiny", "--data", folder, "--out", folder / "out", "--minutes", 2.5, "--dry-run"]
    code, printed = command(capsys, *arguments)
    assert code == 0
    assert "would train tiny on greys: 32 pictures of 1 x 8 x 8\nfor 2.5 minutes with 8 pictures in a step;" in printed
    assert not (folder / "out").exists()


REFUSALS = {
    "tinny --data . --out o --steps 1": "unknown configuration 'tinny'; expected one of small-fm-ot, small-fm-v-cs",
    "tiny --data . --out o": "give either steps or minutes, got steps = None and minutes = None",
    "tiny --data . --out o --steps 1 --minutes 2": "got steps = 1 and minutes = 2.0",
    "tiny --data . --out o --steps 0": "steps or minutes must be positive and finite, got 0",
    "tiny --data . --out o --steps 1 --learning-rate 0": "the learning rate must be positive and finite, got 0",
    "tiny --data . --out o --minutes -1": "must be positive and finite, got -1.0",
    "tiny --data . --out o --minutes nan": "must be positive and finite, got nan",
    "tiny --data none --out o --steps 1": "there is no prepared data set in none",
    "tiny --data . --out data.json --steps 1": "data.json is a file; expected a folder",
    "tiny --data . --out data.json --steps 1 --dry-run": "data.json is a file; expected a folder",
    "tiny --data . --out o --steps 1 --fid none": "there is no none; expected a folder of bespoke data",
    "tiny --data . --out o --steps 1 --start none": "there is no none/diffusion_pytorch_model.safetensors; a training",
    "tiny --data . --out o --steps 1 --start zoo:cifar10-fm-ot": "trained with the configuration small-fm-ot, expected",
    "small-fm-ot --data . --out o --steps 1": "pictures of 1 or 3 colours x 32 x 32, but greys has 1 x 8 x 8",
}


@pytest.mark.parametrize("arguments", REFUSALS)
def test_bad_input_ends_in_one_sentence_and_leaves_nothing(arguments, folder, capsys, tiny, monkeypatch):
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    code, printed = command(capsys, "pretrain", *arguments.split())
    assert code == 1
    assert REFUSALS[arguments] in printed
    assert len(printed.strip().splitlines()) == 1
    assert sorted(folder.rglob("*")) == before


def test_diffusers_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ValueError, match="pip install diffusers"):
        unet(TINY, 1, 0)


def test_a_source_tree_runs_without_the_tools_of_the_tests():
    code = (
        "import sys, runpy; sys.modules['beartype'] = None; sys.argv = ['bespoke', 'pretrain', '--help'];"
        "runpy.run_module('bespoke_solvers.cli', run_name='__main__')"
    )
    source = Path(pretrain.__file__).parent.parent
    environment = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--minutes" in done.stdout
