import pytest
import torch

from bespoke_solvers import Model, fit, schedules, toy, zoo
from bespoke_solvers.doubts import doubt, far_from_data, strange_noise
from bespoke_solvers.models import resolve
from bespoke_solvers.velocity import ends
from problems import SCHEDULES, mixture

CONDOT, COSINE, VP = schedules.CondOT(), schedules.Cosine(), schedules.VP()
PREDICTED = {  # by the exact mixture, as a network would
    "epsilon": lambda path, x0, x1: x0,
    "v": lambda path, x0, x1: path.alpha * x0 - path.sigma * x1,
    "x-start": lambda path, x0, x1: x1,
}


def network(schedule, what):
    u = mixture(schedule)

    def output(t, x):
        return PREDICTED[what](schedule(t), *ends(schedule, t, x, u(t, x)))

    return output


def model(schedule, velocity, prediction="flow", **more):
    return Model(velocity, (3,), schedule, prediction=prediction, dtype=torch.float64, **more)


@pytest.mark.parametrize("prediction", ["flow", "epsilon", "x-start", "score"])
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_exact_models_raise_none(schedule, prediction):
    assert doubt(model(schedule, mixture(schedule), prediction)) is None


@pytest.mark.parametrize("name", ["toy:digits", "toy:digits-vp", "toy:checkerboard", "toy:checkerboard-edm"])
def test_neither_do_toys(name):
    assert doubt(resolve(name, device="cpu")) is None


@pytest.mark.parametrize("name", zoo.NAMES)
@pytest.mark.parametrize("guidance", [None, 4.0])
def test_neither_do_trained_networks(name, guidance):
    assert doubt(resolve(name, guidance, device="cpu")) is None


def test_a_time_that_runs_backwards_or_a_wrong_sign():
    u = mixture(CONDOT)
    for wrong in (lambda t, x: -u(t, x), lambda t, x: u(1 - t, x)):
        assert "whether t = 0 is noise" in doubt(model(CONDOT, wrong, domain=(0.0, 0.999)))


@pytest.mark.parametrize(("trained", "said"), [("epsilon", "v"), ("v", "epsilon"), ("x-start", "epsilon")])
@pytest.mark.parametrize("schedule", [COSINE, VP], ids=["Cosine", "VP"])
def test_another_prediction_than_the_networks(schedule, trained, said):
    given = {"shape": (3,), "schedule": schedule, "domain": (0.002, 0.999), "dtype": torch.float64}
    right, wrong = (
        Model.from_network(network(schedule, trained), prediction=name, **given) for name in (trained, said)
    )
    assert doubt(right) is None
    assert f"predicts {said!r}" in doubt(wrong)


def test_a_fit_tells_of_it_and_goes_on():
    u = toy.load("toy:checkerboard").velocity
    reversed_time = Model(lambda t, x: -u(t, x), (2,), CONDOT)
    with pytest.warns(UserWarning, match=r"depends on the noise with a slope of 2\.0.*whether t = 0 is noise"):
        fit(reversed_time, nfe=4, effort="low", paths=4, validation_paths=4, progress=False)


def test_a_path_that_begins_with_data():
    """alphas in the place of their products."""
    alphas = 1 - torch.linspace(1e-4, 0.02, 100, dtype=torch.float64)
    wrong, right = (
        Model.from_network(lambda t, x: x, prediction="epsilon", schedule=schedules.DiscreteVP(of.tolist()), shape=(3,))
        for of in (alphas, alphas.cumprod(0) ** 10)
    )
    assert "begins, at t = 0, with more data than noise (alpha 0.99, sigma 0.14)" in doubt(wrong)
    assert doubt(right) is None


def test_a_network_that_is_told_another_time():
    """1000 (1 - t) in place of t: at noise it takes x for data, and predicts next to none of the noise in it."""
    trained = network(VP, "epsilon")
    told = {"shape": (3,), "schedule": VP, "prediction": "epsilon", "domain": (0.0, 0.999), "dtype": torch.float64}
    wrong = Model.from_network(trained, network_time=lambda t: (1 - t) * 0.999, **told)
    assert doubt(Model.from_network(trained, **told)) is None
    assert "trained with (network_time)" in doubt(wrong)


@pytest.mark.filterwarnings("ignore:the reference's own RMSE")
def test_samples_that_no_data_is_as_large_as():
    x1 = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    x1 = x1 / x1.square().mean((1, 2, 3), keepdim=True).sqrt()
    assert far_from_data(x1) is None
    assert far_from_data(255 * x1.abs()) is None
    assert "have the size 1e+06 (root mean square)" in far_from_data(1e6 * x1)
    grows = Model(lambda t, x: 20 * x, (2,), CONDOT)
    with pytest.warns(UserWarning, match="so that solvers for them are worthless"):
        fit(grows, nfe=4, effort="low", paths=4, validation_paths=4, progress=False)


def test_noise_that_is_scaled():
    x0 = torch.randn(4, 3, 4, 4)
    assert strange_noise(x0) is None
    assert strange_noise(x0[:1, :1, 0, :1]) is None, "one number has no spread"
    assert f"has a standard deviation of {80 * x0.std():.3g}; expected" in strange_noise(80 * x0)
    model = toy.load("toy:digits-edm")
    solver = fit(model, nfe=2, effort="low", paths=4, validation_paths=4, progress=False)
    with pytest.warns(UserWarning, match=r"expected N\(0, I\), which a solver scales by itself"):
        solver.sample(model, 80 * torch.randn(4, 1, 8, 8))
