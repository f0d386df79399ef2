"""What tells models apart, and what does not."""

import dataclasses
import json
import threading
import time

import pytest
import torch

from bespoke_solvers import Model, fit, load, precision, regression, schedules, toy
from bespoke_solvers.bank import Bank
from bespoke_solvers.description import (
    alike,
    apart,
    describe,
    describe_schedule,
    differences,
    in_words,
    schedule_of,
)
from bespoke_solvers.scale_time import Transformed, identity
from bespoke_solvers.stages import check_gradient

PATHS = [schedules.CondOT(), schedules.VP(), schedules.Cosine(), schedules.EDM()]


def digits(first, schedule, scale=1.0, dtype=torch.float32):
    """300 of the digits, from the `first` on."""
    pictures = toy.files("bespoke_solvers") / "digits.safetensors"
    centres = toy.load_file(pictures)["pixels"][first : first + 300, None] / 8 - 1
    return toy.gaussian_mixture(scale * centres, 0.15, schedule, dtype=dtype)


@pytest.mark.parametrize("schedule", PATHS, ids=lambda schedule: type(schedule).__name__)
def test_models_of_the_same_kind_of_pictures_differ(schedule):
    """On noise alone two such models are nearly the same, and on EDM's path u is that of the noise."""
    model = digits(0, schedule)
    kept = describe(model)
    assert list(differences(kept, describe(digits(300, schedule)), tolerance=0.05)) == ["fingerprint"]
    assert list(differences(kept, describe(digits(0, schedule, scale=0.97)))) == ["fingerprint"]
    assert not differences(kept, describe(digits(0, schedule, dtype=torch.float64)), tolerance=1e-3)
    rounded = dataclasses.replace(model, velocity=lambda t, x: model.velocity(t, x.bfloat16().float()))
    assert apart(rounded, model) < 0.01 < 0.1 < apart(digits(300, schedule), model)


def test_a_fit_refuses_a_bank_of_other_pictures():
    with pytest.raises(ValueError, match="the bank was made for another model"):
        fit(digits(0, schedules.CondOT()), nfe=4, bank=Bank(digits(300, schedules.CondOT())))


def test_numbers_of_a_schedule_are_compared_to_rounding():
    """Processors round a product of a thousand betas in their own ways."""
    betas = torch.linspace(1e-4, 0.02, 1000)
    one, other = ((1 - betas.to(dtype)).cumprod(0).double() for dtype in (torch.float32, torch.float64))
    assert not torch.equal(one, other)
    kept, given = (describe_schedule(schedules.DiscreteVP(tuple(each.tolist()))) for each in (one, other))
    assert alike(json.loads(json.dumps(kept)), given)
    given["alphas_cumprod"][-1] *= 1.01
    assert not alike(kept, given)
    assert not alike(kept, given | {"alphas_cumprod": given["alphas_cumprod"][:-1]})


def test_a_path_of_ones_own_that_is_called_like_ours_is_another(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Cosine(schedules.Schedule):
        offset: float = 0.008

        def __call__(self, t):
            return schedules.CondOT()(t)

    own = describe_schedule(Cosine())
    assert own["name"].endswith("Cosine")
    assert own["name"] != "Cosine"
    assert schedule_of(own) is None
    model = toy.gaussian_mixture(torch.tensor([[-1.0], [1.0]]), 0.1, Cosine())
    fit(model, nfe=2, effort="low", paths=32, validation_paths=16, progress=False).save(tmp_path / "s.json")
    kept = load(tmp_path / "s.json")
    kept.check(model)
    with pytest.raises(ValueError, match="schedule"):
        kept.check(toy.gaussian_mixture(torch.tensor([[-1.0], [1.0]]), 0.1, schedules.Cosine()))


def test_a_schedule_made_of_another_is_described_by_names():
    described = describe_schedule(Transformed(schedules.VP(), identity))
    assert described["source"] == {"name": "VP", "B": 20.0, "b": 0.1}
    assert described["transform"] == "bespoke_solvers.scale_time.identity"


@pytest.mark.parametrize("share", [0.2, -0.2])
def test_a_velocity_that_mixes_the_samples_of_a_batch_is_refused(share):
    model = Model(lambda t, x: -x + share * x.mean(0, keepdim=True), (32,), schedules.CondOT())
    with pytest.raises(ValueError, match="depends on the others of its batch"):
        describe(model)


def test_batch_normalisation_left_in_training_is_named():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 32))
    model = Model(lambda t, x: network(x), (32,), schedules.CondOT())
    with pytest.raises(ValueError, match=r"batch normalisation\? Call net\.eval"):
        describe(model)
    network.eval()
    describe(model)


def test_conditions_that_do_not_come_from_the_generator_are_seen_in_all_their_numbers():
    def condition(generator):
        return torch.cat([torch.zeros(10), torch.rand(1980), torch.zeros(10)])

    model = Model(lambda t, x, c: -x, (2,), schedules.CondOT(), draw_condition=condition)
    with pytest.raises(ValueError, match="draw_condition gave other conditions for the same seeds"):
        describe(model)


@pytest.fixture
def tf32():
    """TF32 in convolutions, as it is by default, and as it was before at the end."""
    if not hasattr(torch.backends.cudnn, "conv"):
        pytest.skip("before PyTorch 2.9 the switch has another name")
    switches = torch.backends.cudnn.conv
    before, switches.fp32_precision = switches.fp32_precision, "tf32"
    yield switches
    switches.fp32_precision = before


def test_full_float32_is_shared_by_threads(tf32):
    """The switches are the process's: the first thread to leave must not turn them back under the second."""
    seen = []

    def work(before, after):
        time.sleep(before)
        with precision.full_float32(torch.device("cpu")):
            time.sleep(after)
            seen.append(tf32.fp32_precision)

    threads = [threading.Thread(target=work, args=waits) for waits in ((0.0, 0.1), (0.05, 0.2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (seen, tf32.fp32_precision) == (["ieee"] * 2, "tf32")


def test_a_velocity_that_tf32_disturbs_is_no_other_for_that(tf32):
    """What a network adds to x is small beside it near the noise, where its rounding is not."""

    def velocity(t, x):
        return (1e-3 if tf32.fp32_precision == "ieee" else 2e-3) * x

    describe(Model(velocity, (32,), schedules.CondOT()))


class Net(torch.nn.Module):
    """Its weights want a gradient, whatever x does."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, t, x):
        return self.layer(x)


@pytest.mark.parametrize("stop", [torch.no_grad(), None], ids=["no_grad", "detached"])
def test_a_velocity_without_gradient_is_refused_where_one_is_needed(stop):
    net = Net()
    velocity = stop(net.forward) if stop else lambda t, x: net(t, x.detach())
    model = Model(velocity, (2,), schedules.CondOT())
    with pytest.raises(ValueError, match=r"passes no gradient to x .*torch.no_grad, or detached.* endpoint"):
        fit(model, nfe=4, family="rk2", progress=False)


@pytest.mark.parametrize("prediction", ["epsilon", "v", "x-start", "score"])
def test_a_network_without_gradient_is_refused_where_its_output_is_added_to_x(prediction):
    """dx/dt knows x then, but not by the network."""
    net = Net()
    torch.nn.init.eye_(net.layer.weight)

    def model(network):
        return Model.from_network(network, prediction=prediction, schedule=schedules.VP(), shape=(2,))

    check_gradient(model(net))
    with pytest.raises(ValueError, match=r"passes no gradient to x at t = 0\.\d+, or not its network's"):
        check_gradient(model(torch.no_grad()(net.forward)))


@pytest.mark.parametrize("name", ["toy:digits", "toy:digits-vp", "toy:digits-fm-v-cs", "toy:checkerboard"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rough_gradient_is_a_gradient(name, dtype):
    """That of sharp modes, and of a network that rounds its output."""
    exact = toy.load(name)

    def velocity(t, x):
        return exact.velocity(t, x).to(dtype).to(x.dtype)

    check_gradient(dataclasses.replace(exact, velocity=velocity))


def test_a_disk_without_room_is_an_error_and_no_signal(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(regression.os, "posix_fallocate", full, raising=False)
    with pytest.raises(
        OSError, match=r"No space left on device: the fit needs 32 bytes in .*; make room, or set TMPDIR"
    ):
        regression.on_disk((2, 4), torch.float32)


def test_a_condition_that_the_network_cannot_take_is_a_suspect():
    model = Model(
        lambda t, x, c: x * torch.eye(2)[c], (2,), schedules.CondOT(), draw_condition=lambda _: torch.tensor(7)
    )
    with pytest.raises(ValueError, match=r"index 7 is out of bounds.*, the conditions, and the precision"):
        describe(model)


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no GPU that torch can use for device = 'cuda:0'; give device='cpu'"):
        Model(lambda t, x: -x, (2,), schedules.CondOT(), device="cuda:0")


@pytest.mark.parametrize("missing", [OSError(95, "Operation not supported"), AttributeError("posix_fallocate")])
def test_where_no_room_can_be_reserved_the_file_is_made_all_the_same(monkeypatch, missing):
    def fail(*_):
        raise missing

    monkeypatch.setattr(regression.os, "posix_fallocate", fail, raising=False)
    made = regression.on_disk((2, 4), torch.float32)
    made.fill_(3)
    assert made.sum() == 24


def test_of_many_numbers_the_one_that_differs_most_is_named():
    words = in_words("network time", [900, 700, 500, 300, 100, 0], [900, 700, 500, 300.05, 100, 7])
    assert words == "network time[5] 0 (here 7)"
    assert in_words("classes", list("abcdefg"), list("abcdefh")).startswith("classes ['a', 'b', ")
