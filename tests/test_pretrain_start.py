"""Trainings that go on from the weights of another one."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch

from bespoke_solvers import model_folder
from bespoke_solvers.cli import main
from bespoke_solvers.cli.paper import _seconds
from bespoke_solvers.data import FORMAT
from bespoke_solvers.data.cifar import CLASSES
from bespoke_solvers.pretrain import Training, train
from bespoke_solvers.pretrain_plan import Plan
from trainings import CPU, TINY, made

WEIGHTS, TRAINING = "diffusion_pytorch_model.safetensors", "training.json"


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The folder of a training that has ended, in float16."""
    out = tmp_path_factory.mktemp("first")
    train(Plan(TINY, made(), steps=120), out, half=True, command="bespoke pretrain tiny", progress=False)
    return out


def record(folder):
    return json.loads((folder / TRAINING).read_text())


def test_it_begins_where_the_other_ended_and_says_so(first, tmp_path):
    before = record(first)
    plan = Plan(TINY, made(), steps=50, start=model_folder.start(first))
    more = train(plan, tmp_path, progress=False)
    assert more["losses"][0][2] < 0.6 * before["losses"][0][2], "it does not begin anew"
    assert (more["images"], more["start"]["images"]) == (400, 960)
    assert more["start"]["command"] == "bespoke pretrain tiny"
    assert _seconds(tmp_path) == pytest.approx(before["seconds"] + more["seconds"])
    told = f"| begun from | 960 pictures in {before['seconds'] / 60:.1f} minutes, weights {plan.start.digest}: `bespoke"
    assert told in (tmp_path / "README.md").read_text()
    train(dataclasses.replace(plan, steps=60), tmp_path, progress=False)  # the same command with a larger limit
    for start in (None, model_folder.start(tmp_path)):
        with pytest.raises(ValueError, match="is of another training: start"):
            train(dataclasses.replace(plan, steps=70, start=start), tmp_path, progress=False)


def test_the_weights_are_taken_and_the_draws_are_not(first):
    start = model_folder.start(first)
    new, going_on = (Training(Plan(TINY, made(), steps=1, start=each), CPU, compiled=False) for each in (None, start))
    kept = dict(going_on.network.named_parameters())
    assert all(torch.equal(kept[name], value.float()) for name, value in start.weights.items())
    again = Training(Plan(TINY, made(), steps=1), CPU, compiled=False)
    draws = []
    for plan in (new.plan, again.plan, going_on.plan):
        training = Training(plan, CPU, compiled=False)
        draws.append(training.source.draw(8, TINY.schedule).pixels)
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_a_card_tells_all_that_came_before_and_which_fid_is_whose(first):
    known = record(first)
    one = {"digest": "ab", "steps": 120, "images": 960, "seconds": 60.0, "fid": [[60, 30.0, 9.0], [120, 60.0, 8.0]]}
    two = one | {"start": one | {"digest": "cd"}, "fid": [[60, 30.0, 9.0]]}
    card = model_folder.card(known | {"start": one})
    assert "| begun from | 960 pictures in 1.0 minutes, weights ab, FID 8.00 |" in card
    card = model_folder.card(known | {"start": two})
    assert "| begun from | 1,920 pictures in 2.0 minutes, weights ab |" in card, "its FID is not that of its end"
    assert f"| in all | {known['images'] + 1920:,} pictures in " in card
    assert "begun from" not in model_folder.card(known)


def changed(folder, **changes):
    whole = record(folder)
    (folder / TRAINING).write_text(json.dumps({k: v for k, v in (whole | changes).items() if v is not None}))


DAMAGE = {
    "no record": (lambda folder: (folder / TRAINING).unlink(), "there is no .*training.json; a training starts from"),
    "no figures": (lambda folder: changed(folder, images=None, seconds=None), "has no images, seconds; expected the"),
    "no data": (lambda folder: changed(folder, data=None), "has no classes, shape; expected the record"),
    "another network": (lambda folder: changed(folder, config="tinier"), "the configuration tinier, expected tiny"),
    "other colours": (
        lambda folder: changed(folder, data=record(folder)["data"] | {"shape": [3, 8, 8]}),
        r"the shape \(3, 8, 8\), expected \(1, 8, 8\), to start from",
    ),
    "other classes": (
        lambda folder: changed(folder, data=record(folder)["data"] | {"classes": ["cat"]}),
        r"the classes \['cat'\], expected",
    ),
    "no shape": (
        lambda folder: changed(folder, data=record(folder)["data"] | {"shape": 5}),
        r"shape and classes in .*training\.json are no lists",
    ),
    "cut weights": (lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-9]), "is damaged"),
    "no weights": (lambda folder: (folder / WEIGHTS).write_bytes(b""), "is damaged"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_what_is_no_start_is_refused(what, first, tmp_path):
    folder = tmp_path / "first"
    shutil.copytree(first, folder)
    damage, words = DAMAGE[what]
    damage(folder)
    with pytest.raises(ValueError, match=words):
        Plan(TINY, made(), steps=1, start=model_folder.start(folder))


def test_a_network_that_is_not_the_one_of_its_configuration_is_refused(first):
    start = model_folder.start(first)
    name = next(iter(start.weights))
    wrong = dataclasses.replace(start, weights=start.weights | {name: torch.zeros(1)})
    with pytest.raises(ValueError, match="is not the one of its configuration"):
        Training(Plan(TINY, made(), steps=1, start=wrong), CPU, compiled=False)


def test_the_command_takes_a_name_of_the_zoo(tmp_path, capsys):
    np.save(tmp_path / "pixels.npy", np.zeros((4, 3, 32, 32), np.uint8))
    np.save(tmp_path / "labels.npy", np.arange(4))
    facts = {"format": FORMAT, "name": "blacks", "classes": CLASSES, "count": 4, "shape": [3, 32, 32]}
    (tmp_path / "data.json").write_text(json.dumps(facts))
    given = ["pretrain", "small-fm-ot", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--steps", "1"]
    with pytest.raises(SystemExit) as end:
        main([*given, "--start", "zoo:cifar10-fm-ot", "--dry-run"])
    assert end.value.code == 0
    assert "with 512 pictures in a step, from the weights of zoo:cifar10-fm-ot; output" in capsys.readouterr().out
