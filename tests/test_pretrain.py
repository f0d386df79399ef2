import dataclasses
import itertools
import json
import os
import re
import signal
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from bespoke_solvers import generic, model_folder, pretrain
from bespoke_solvers.adapters.diffusers import load
from bespoke_solvers.pretrain import Training, ema_decay, train
from bespoke_solvers.pretrain_configs import unet
from bespoke_solvers.pretrain_plan import Plan
from bespoke_solvers.table import sample
from trainings import CPU, TINY, made


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A training that has ended, its folder and its record."""
    out = tmp_path_factory.mktemp("trained")
    record = train(Plan(TINY, made(), steps=120), out, progress=False)
    return out, record


def test_the_loss_falls_and_a_record_is_kept(trained):
    out, record = trained
    assert [point[0] for point in record["losses"]] == [50, 100, 120]
    assert record["losses"][-1][2] < 0.6 * record["losses"][0][2]
    assert json.loads((out / "training.json").read_text()) == json.loads(json.dumps(record))
    assert (record["images"], record["steps"], record["schedule"]) == (960, 120, {"name": "CondOT"})
    assert record["data"] == {"name": "greys", "pictures": 32, "shape": (1, 8, 8), "classes": made().classes}
    card = (out / "README.md").read_text()
    assert "# tiny on greys" in card
    assert "| the network predicts | noise - data |" in card
    assert '3 is "no class"' in card
    with Image.open(out / "samples-000120.png") as image:
        assert image.width / image.height == 8 / 3, "a row for each class"


def test_diffusers_loads_the_averaged_weights(trained, tmp_path):
    from diffusers import UNet2DModel

    out, record = trained
    average = unet(TINY, 1, 3)
    average.load_state_dict(torch.load(out / "checkpoint.pt", weights_only=True)["average"])
    arguments = torch.randn(4, 1, 8, 8), torch.tensor(300.5), torch.arange(4)
    with torch.no_grad():
        expected = average.eval()(*arguments).sample
        loaded = UNet2DModel.from_pretrained(out).eval()
        torch.testing.assert_close(loaded(*arguments).sample, expected)
        model_folder.save(average, record | {"weights": "float16"}, tmp_path, half=True)
        halved = UNet2DModel.from_pretrained(tmp_path, torch_dtype=torch.float32).eval()
        torch.testing.assert_close(halved(*arguments).sample, expected, atol=0.02, rtol=0.02)
    size = [(folder / model_folder.WEIGHTS).stat().st_size for folder in (tmp_path, out)]
    assert size[0] < 0.7 * size[1]


def test_the_model_in_the_folder_samples_its_classes(trained):
    model = load(trained[0])
    x0 = model.noise(range(24)).x0
    labels = torch.arange(3).repeat_interleave(8)
    with torch.no_grad():
        x1 = sample(generic.baseline("midpoint", 20).on(model), model.bind(labels), x0)
    assert x1.isfinite().all()
    brightness = x1.reshape(3, -1).mean(1).tolist()
    assert brightness == sorted(brightness), "the darker the lower the class"


def states(folder):
    """The checkpoint but for what the clock decides."""
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    return state | {"seconds": 0, "history": [(step, loss) for step, _, loss in state["history"]]}


def assert_same(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list | tuple):
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_an_interrupted_training_ends_where_an_undisturbed_one_does(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrain, "REPORT", 5)
    plan = Plan(dataclasses.replace(TINY, warmup=4), made(), steps=12, seed=3)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    before = torch.get_rng_state()
    train(plan, whole, progress=False)
    assert torch.equal(torch.get_rng_state(), before), "the caller's random numbers are as they were"
    step = Training.step

    def interrupted(self, progress):
        if self.steps in (3, 7):
            os.kill(os.getpid(), signal.SIGINT)  # in the middle of a step
        step(self, progress)

    monkeypatch.setattr(Training, "step", interrupted)
    for done in (4, 8):
        with pytest.raises(KeyboardInterrupt):
            train(plan, parts, progress=False)
        assert states(parts)["steps"] == done
        assert [file.name for file in parts.iterdir()] == ["checkpoint.pt"]
        torch.randn(3)
    train(plan, parts, progress=False)
    assert_same(states(parts), states(whole))
    read = [(folder / model_folder.WEIGHTS).read_bytes() for folder in (whole, parts)]
    assert read[0] == read[1]
    monkeypatch.setattr(Training, "step", lambda *_: pytest.fail("it had ended"))
    train(plan, parts, progress=False)


def test_a_time_limit_ends_the_training_and_the_learning_rate(tmp_path, monkeypatch):
    """A clock that a step puts forward by a second, and an interruption after 20 of them."""
    clock, rates = itertools.count(), []
    now = [0.0]
    monkeypatch.setattr(pretrain, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(pretrain, "PAUSE", 25.0)

    def step(self, progress):
        rates.append(self.learning_rate(progress))
        now[0] += 1
        self.steps += 1
        if next(clock) == 19:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Training, "step", step)
    monkeypatch.setattr(Training, "draw_samples", lambda self, folder: drawn.append(self.steps))
    drawn = []
    plan = Plan(dataclasses.replace(TINY, warmup=10), made(), minutes=1.0)
    with pytest.raises(KeyboardInterrupt):
        train(plan, tmp_path, progress=False)
    now[0] = 5000.0
    record = train(plan, tmp_path, progress=False)
    assert (record["steps"], record["seconds"]) == (60, 60)
    assert drawn == [46, 60], "after the pause, and at the end"
    assert rates[:10] == pytest.approx([4e-3 * (i + 1) / 10 * (1 - i / 60) for i in range(10)])
    assert rates[10:] == pytest.approx([4e-3 * (1 - i / 60) for i in range(10, 60)])
    assert rates[-1] < 0.02 * max(rates)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_does_not_wait_for_an_fid(tmp_path, number):
    """The step before it is in the checkpoint already."""
    plan, ended = Plan(TINY, made(), steps=2), []

    def rate(table, model):
        os.kill(os.getpid(), number)
        ended.append(table)
        return 1.0

    with pytest.raises(KeyboardInterrupt):
        train(plan, tmp_path, rate=rate, progress=False)
    assert not ended
    assert states(tmp_path)["steps"] == 2
    assert signal.getsignal(number) == before(number)
    assert train(plan, tmp_path, rate=lambda table, model: 1.0, progress=False)["fid"][0][2] == 1.0


def before(number):
    return {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}[number]


def test_fid_is_measured_along_the_way_in_time_that_does_not_count(tmp_path, monkeypatch):
    """A step takes a second, a measurement a hundred; the second run goes on with a larger limit."""
    now = [0.0]
    monkeypatch.setattr(pretrain, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(pretrain, "PAUSE", 9.5)

    def step(self, progress):
        now[0] += 1
        self.steps += 1

    def rate(table, model):
        assert (table.nfe, model.shape) == (20, (1, 8, 8))
        now[0] += 100
        asked.append(table)
        return 50.0 - 2 * len(asked)

    asked = []
    monkeypatch.setattr(Training, "step", step)
    for minutes, steps in ((0.5, 30), (0.6, 36), (0.6, 36)):
        record = train(Plan(TINY, made(), minutes=minutes), tmp_path, rate=rate, progress=False)
        assert (record["steps"], record["seconds"]) == (steps, steps)
    assert [entry[:3] for entry in record["fid"]] == [(10, 10.0, 48), (20, 20.0, 46), (30, 30.0, 44), (36, 36.0, 42)]
    along = ", ".join(f"{fid:.2f} after {seconds / 60:.1f} minutes" for _, seconds, fid, _ in record["fid"])
    assert along.startswith("48.00 after 0.2 minutes, 46.00 after 0.3 minutes")
    assert f"| FID along the way | {along} |" in (tmp_path / "README.md").read_text()


def test_fid_is_told_with_what_it_was_measured_by(tmp_path):
    """Two runs with other samples: neither the record nor the card mixes them."""

    class Rating:
        def __init__(self, mark):
            self.mark = mark

        def __call__(self, table, model):
            return float(self.mark)

    for steps, mark in ((1, "8"), (2, "8"), (2, "16"), (2, "16")):
        record = train(Plan(TINY, made(), steps=steps), tmp_path, rate=Rating(mark), progress=False)
    assert [(steps, fid, by) for steps, _, fid, by in record["fid"]] == [(1, 8, "8"), (2, 8, "8"), (2, 16, "16")]
    told = r"along the way \| 8.00 after \S+ minutes, 8.00 after \S+ minutes \(8\); 16.00 after \S+ minutes \(16\) \|"
    assert re.search(told, (tmp_path / "README.md").read_text())
    begun = record | {"start": record | {"digest": "ab"}}
    assert "weights ab, FID 16.00 (16) |" in model_folder.card(begun)
    plain = record | {"fid": [entry[:3] for entry in record["fid"]]}
    assert re.search(r"16.00 after \S+ minutes \|", model_folder.card(plain)), "earlier ones do not say"


def test_fid_that_cannot_be_measured_ends_no_training(tmp_path):
    def rate(table, model):
        raise ValueError("samples 3 of 8 are not finite")

    with pytest.warns(UserWarning, match="FID was not measured after 2 steps: samples 3 of 8 are not finite"):
        record = train(Plan(TINY, made(), steps=2), tmp_path, rate=rate, progress=False)
    assert "fid" not in record
    assert (tmp_path / model_folder.WEIGHTS).exists()


def test_the_average_follows_with_a_warm_up():
    assert ema_decay(0) == pytest.approx(0.1)
    assert ema_decay(1000) == pytest.approx(1001 / 1010)
    assert ema_decay(10**6) == pretrain.EMA_DECAY
    with torch.random.fork_rng():
        training = Training(Plan(TINY, made(), steps=9), CPU, compiled=False)
        expected = training.parameters[0].detach().clone()
        for k in range(4):
            training.step(0.0)
            expected.lerp_(training.parameters[0].detach(), 1 - (1 + k) / (10 + k))
    assert torch.equal(training.averages[0], expected)
    assert not torch.equal(expected, training.parameters[0])


def test_a_step_follows_a_huge_gradient_only_so_far(monkeypatch):
    with torch.random.fork_rng():
        training = Training(Plan(TINY, made(), steps=9), CPU, compiled=False)
    training.optimizer = torch.optim.SGD(training.parameters, lr=1.0)

    def gradient(self):
        for parameter in self.parameters:
            parameter.grad = torch.full_like(parameter, 1e3)
        return torch.tensor(0.0)

    monkeypatch.setattr(Training, "gradient", gradient)
    before = [parameter.detach().clone() for parameter in training.parameters]
    training.step(0.0)
    moved = torch.nn.utils.get_total_norm(torch._foreach_sub(before, training.parameters)).item()
    assert moved == pytest.approx(TINY.learning_rate * pretrain.LARGEST_GRADIENT, rel=1e-3)


def test_dropout_is_for_the_training_and_not_for_the_average():
    with torch.random.fork_rng():
        training = Training(Plan(TINY, made(), steps=9), CPU, compiled=False)
        training.step(0.0)
    dropouts = [module for module in training.network.modules() if isinstance(module, torch.nn.Dropout)]
    assert TINY.dropout in {each.p for each in dropouts if each.training}
    assert not any(module.training for module in training.average.modules())


def test_the_curve_is_short_and_a_loss_without_number_stops(monkeypatch):
    with torch.random.fork_rng():
        training = Training(Plan(TINY, made(), steps=9), CPU, compiled=False)
    training.history = [(50 * (i + 1), 1.0 * i, float(i)) for i in range(999)]
    training.steps = 50 * 999
    curve = training.curve()
    assert len(curve) == 200
    assert curve[0] == [250, 4.0, 2.0]
    assert curve[-1][:2] == [49_950, 998.0]
    training.steps += 50
    training.running += torch.nan
    with pytest.raises(ValueError, match=r"the loss is nan after 50000 steps; .* smaller --learning-rate"):
        training.report()


@pytest.mark.parametrize("steps", [1, 3])
def test_weights_that_are_no_numbers_are_not_kept(tmp_path, monkeypatch, steps):
    """Also where the loss was not reported since, or is that of the step before."""
    grow = torch._foreach_lerp_

    def to_nowhere(averages, parameters, weight):
        parameters[0].data.fill_(torch.inf)
        return grow(averages, parameters, weight)

    monkeypatch.setattr(torch, "_foreach_lerp_", to_nowhere)
    found = "the weights are not finite after 1 steps" if steps == 1 else "the loss is nan after 3 steps"
    with pytest.raises(ValueError, match=f"{found}; give the command again with a smaller"):
        train(Plan(TINY, made(), steps=steps), tmp_path / "out", progress=False)
    assert not list(tmp_path.glob("out/*"))


def test_compiling_leaves_no_trace_and_is_not_counted(monkeypatch):
    """A compiled training, with a compiler that takes a minute, against one that is not compiled."""
    now, trainings = [0.0], []
    monkeypatch.setattr(pretrain, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def compiler(function, dynamic):
        def compiled(*args):
            now[0] += 60.0 if not trainings else 0.0
            return function(*args)

        return compiled

    monkeypatch.setattr(torch, "compile", compiler)
    for compiled in (True, False):
        with torch.random.fork_rng():
            training = Training(Plan(TINY, made(), steps=9), CPU, compiled=compiled)
            training.compile()
            assert now[0] == 60.0
            trainings.append(training)
            for _ in range(3):
                training.step(0.0)
    assert trainings[0].running > 0
    assert torch.equal(trainings[0].running, trainings[1].running)
    assert all(torch.equal(*pair) for pair in zip(*(t.averages for t in trainings), strict=True))


def test_the_speed_is_that_of_the_steps_since_it_was_last_told(tmp_path, monkeypatch, capsys):
    """A step of 8 pictures takes a second, in a run that goes on from step 3 and stops for a checkpoint, too."""
    now = [0.0]
    monkeypatch.setattr(pretrain, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(pretrain, "REPORT", 5)
    monkeypatch.setattr(pretrain, "PAUSE", 4.0)
    step, look = Training.step, Training.look

    def stepped(self, progress):
        now[0] += 1
        step(self, progress)
        if self.steps == 3:
            os.kill(os.getpid(), signal.SIGINT)

    def looked(self, *arguments):
        now[0] += 100
        look(self, *arguments)

    monkeypatch.setattr(Training, "step", stepped)
    monkeypatch.setattr(Training, "look", looked)
    for steps in (5, 5, 15):
        try:
            train(Plan(TINY, made(), steps=steps), tmp_path)
        except KeyboardInterrupt:
            assert steps == 5
    assert set(re.findall(r"([\d,]+) images/s", capsys.readouterr().err)) == {"8"}


def test_the_time_of_compiling_is_none_of_the_limit(monkeypatch, tmp_path):
    now = [0.0]
    monkeypatch.setattr(pretrain, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def passing(seconds):
        def pass_by(self, *args):
            now[0] += seconds
            self.steps += seconds == 1

        return pass_by

    monkeypatch.setattr(Training, "compile", passing(1000))
    monkeypatch.setattr(Training, "step", passing(1))
    record = train(Plan(TINY, made(), minutes=0.5), tmp_path, progress=False)
    assert (record["steps"], record["seconds"]) == (30, 30)


def test_a_network_without_labels_has_no_classes(tmp_path):
    config = dataclasses.replace(TINY, objective="fm-v-cs", residual=True)
    record = train(Plan(config, dataclasses.replace(made(), labels=None), steps=1), tmp_path, progress=False)
    assert (record["prediction"], record["data"]["classes"]) == ("v", [])
    assert "The network has no classes." in (tmp_path / "README.md").read_text()
    model = load(tmp_path)
    assert model.velocity(torch.tensor(0.5), model.noise([0]).x0).isfinite().all()
    assert Plan(dataclasses.replace(TINY, label_dropout=None), made(), steps=1).classes == []
