import dataclasses

import numpy as np
import pytest
import torch
import torchdiffeq
from scipy.integrate import solve_ivp

from bespoke_solvers import Model, reference, toy
from bespoke_solvers.metrics import rmse
from bespoke_solvers.schedules import VP, CondOT
from bespoke_solvers.velocity import Counter, Noise, coefficients
from problems import F64, SCHEDULES, Linear, mixture, model_of, points


def solved(model, **options):
    return reference.solve(model, model.noise(range(8)), **options)


def exact_network(prediction, schedule):
    """A perfect network of that prediction for the mixture, from u = x_weight x + output_weight output."""

    def network(t, x):
        x_weight, output_weight = coefficients(prediction, schedule, t)
        return (mixture(schedule)(t, x) - x_weight * x) / output_weight

    return network


def test_a_linear_field_is_solved_to_the_tolerance_at_every_time():
    u = Linear(2.0)
    model = model_of(u)
    for tolerance, allowed in [(1e-4, 1e-3), (1e-6, 1e-5), (1e-9, 1e-8)]:
        paths = solved(model, rtol=tolerance, atol=tolerance)
        t = torch.linspace(0, 1, 33, dtype=F64)
        exact = u.path(t, paths.noise.x0)
        got = paths.at(t)
        assert (got.x - exact).abs().max() < allowed
        assert (got.dx - u(t, exact)).abs().max() < 100 * allowed
        torch.testing.assert_close(paths.x1, got.x[-1])


def test_agreement_with_scipy():
    """The same pair of methods takes nearly the same steps; the controllers differ a little."""
    u, x0 = mixture(CondOT()), points(1)
    ours = reference.dopri5(u, 0.0, 1.0, x0, rtol=1e-7, atol=1e-7, max_calls=5000)
    scipy = solve_ivp(
        lambda t, x: u(torch.tensor(t, dtype=F64), torch.from_numpy(x)[None])[0].numpy(),
        (0, 1), x0[0].numpy(), method="RK45", rtol=1e-7, atol=1e-7, dense_output=True,
        first_step=(ours.r[1] - ours.r[0]).item(),
    )  # fmt: skip
    model = model_of(u)
    paths = reference.solve(model, Noise(x0, None), rtol=1e-7, atol=1e-7)
    t = np.linspace(0, 1, 41)
    difference = paths.at(torch.from_numpy(t)).x[:, 0].numpy() - scipy.sol(t).T
    assert np.abs(difference).max() < 2e-6
    assert abs(len(ours.r) - len(scipy.t)) <= 2


def test_the_quartic_is_scipys(monkeypatch):
    """One step of given length: SciPy's dense output and ours are the same polynomial."""
    u, x0 = mixture(CondOT()), points(1)
    loose = {"rtol": 1.0, "atol": 1e3}
    scipy = solve_ivp(
        lambda t, x: u(torch.tensor(t, dtype=F64), torch.from_numpy(x)[None])[0].numpy(),
        (0, 0.3), x0[0].numpy(), method="RK45", dense_output=True, first_step=0.3, **loose,
    )  # fmt: skip
    model = Model(velocity=lambda t, x: 0.3 * u(0.3 * t, x), shape=(3,), schedule=CondOT(), dtype=F64)

    def one_step(u, r_lo, r_hi, x, **options):
        ks = reference.stages(reference.DOPRI5, u, torch.tensor(0.0, dtype=F64), x, 1.0)
        x1 = x + reference.weighted_sum(reference.DOPRI5.b, ks)
        middle = x + reference.weighted_sum(reference.MIDDLE, ks)
        return reference.Solution(
            torch.tensor([0.0, 1.0], dtype=F64), torch.stack([x, x1]), torch.stack([ks[0], ks[-1]]), middle[None]
        )

    monkeypatch.setattr(reference, "dopri5", one_step)
    paths = reference.solve(model, Noise(x0, None))
    p = np.linspace(0, 1, 11)
    np.testing.assert_allclose(paths.at(torch.from_numpy(p)).x[:, 0].numpy(), scipy.sol(0.3 * p).T, atol=1e-12)


@pytest.mark.parametrize("name", ["toy:digits", "toy:digits-fm-v-cs", "toy:digits-vp", "toy:checkerboard"])
def test_agreement_with_torchdiffeq(name):
    model = dataclasses.replace(toy.load(name), dtype=F64)
    noise = model.noise(range(6))
    t = torch.linspace(0, 1, 11, dtype=F64)
    fine = {"rtol": 1e-9, "atol": 1e-9}
    inside = model.bind()
    theirs = torchdiffeq.odeint(lambda t, x: inside(t.clamp(0, 1), x), noise.x0, t, method="dopri5", **fine)
    ours = reference.solve(model, noise, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(ours.at(t).x, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("prediction", ["flow", "epsilon", "v", "x-start", "score"])
def test_u_is_never_called_outside_the_domain(schedule, prediction):
    """Nor is it singular: whatever the prediction and the path, a mild mixture takes a few dozen evaluations."""
    schedule = SCHEDULES[schedule]
    model = Model.from_network(
        exact_network(prediction, schedule), prediction=prediction, schedule=schedule, shape=(3,), dtype=F64
    )
    times = []
    spied = dataclasses.replace(model, velocity=lambda t, x: times.append(t.item()) or model.velocity(t, x))
    paths = solved(spied)
    assert model.t_lo <= min(times)
    assert max(times) <= model.t_hi
    assert max(times) == pytest.approx(model.t_hi, abs=1e-9)
    assert paths.evaluations == len(times) < 320
    assert paths.x1.isfinite().all()


@pytest.mark.parametrize("prediction", ["epsilon", "v", "x-start", "score"])
@pytest.mark.parametrize("schedule", ["CondOT", "Cosine", "VP", "EDM"])
def test_the_regular_path_ends_where_the_models_own_does(schedule, prediction):
    """Solved through the transform and mapped back, x(t) is the path of the model's own field."""
    schedule = SCHEDULES[schedule]
    fields = {"shape": (3,), "schedule": schedule, "dtype": F64}
    model = Model.from_network(exact_network(prediction, schedule), prediction=prediction, **fields)
    own = Model(velocity=mixture(schedule), domain=model.domain, **fields)
    fine = {"rtol": 1e-8, "atol": 1e-8, "max_evaluations": 20000}
    through, native = solved(model, **fine), solved(own, **fine)
    assert through.regular is not None
    assert native.regular is None
    t = torch.linspace(model.t_lo, model.t_hi, 9, dtype=F64)
    torch.testing.assert_close(through.at(t).x, native.at(t).x, rtol=1e-6, atol=2e-6)
    torch.testing.assert_close(through.at(t[1:-1]).dx, native.at(t[1:-1]).dx, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(through.x1, native.x1, rtol=0, atol=2e-6)


def test_after_the_domain_a_path_goes_to_x1_hat():
    model = Model.from_network(
        exact_network("epsilon", VP()), prediction="epsilon", schedule=VP(), shape=(3,), domain=(0.0, 0.9), dtype=F64
    )
    paths = solved(model)
    t = torch.tensor([0.9 - 1e-9, model.t_hi + 1e-7, 0.95, 1.0], dtype=F64)
    x, dx = paths.at(t)
    torch.testing.assert_close(x[0], x[1], rtol=0, atol=1e-5)
    alpha, sigma, d_alpha, d_sigma = VP()(t[2])
    x0_hat = (x[2] - alpha * paths.x1) / sigma
    torch.testing.assert_close(dx[2], d_alpha * paths.x1 + d_sigma * x0_hat)
    assert torch.equal(x[3], paths.x1)


def test_the_worst_sample_controls_the_step():
    """One stiff sample in a batch is as exact as alone; torchdiffeq's single norm over the batch lets it be worse."""

    def u(t, x):
        return 30 * x[:, :1] * torch.cos(20 * t + x) * torch.ones_like(x)

    rates = torch.zeros(64, 3, dtype=F64)
    rates[0] = 1.0
    model = model_of(u)
    together = reference.solve(model, Noise(rates, None))
    exact = reference.solve(model, Noise(rates[:1], None), rtol=1e-10, atol=1e-10, max_evaluations=50000)
    ours = rmse(together.x1[:1], exact.x1)
    theirs = torchdiffeq.odeint(u, rates, torch.tensor([0.0, 1.0], dtype=F64), rtol=1e-5, atol=1e-5)[-1][:1]
    assert ours < 1e-4
    assert ours < rmse(theirs, exact.x1)


def test_evaluations_are_counted():
    counter = Counter(mixture(CondOT()))
    paths = solved(model_of(counter))
    assert paths.evaluations == counter.calls
    assert (counter.calls - 1) % 6 == 0


def test_the_cap_on_evaluations_is_explained():
    with pytest.raises(RuntimeError, match=r"not finished after \d+ evaluations.*Loosen rtol = 1e-05.*smooth"):
        solved(model_of(lambda t, x: torch.sin(5000 * x)), max_evaluations=300)


@pytest.mark.parametrize("when", [-1.0, 0.5])
def test_a_velocity_that_is_not_finite_is_named(when):
    def u(t, x):
        return torch.where(t > when, torch.nan, 1.0) * x

    with pytest.raises(ValueError, match="velocity is not finite"):
        solved(model_of(u))


def test_own_error_is_of_the_size_of_the_true_error():
    paths = solved(model_of(mixture(CondOT())))
    exact = reference.solve(paths.model, paths.noise, rtol=1e-10, atol=1e-10)
    true = rmse(paths.x1, exact.x1)
    assert reference.own_error(paths.model, paths.noise, paths.x1) == pytest.approx(true, rel=0.3)


def test_own_error_is_true_where_a_loose_tolerance_takes_the_same_steps_as_a_tenth_of_it():
    def u(t, x):
        return -x / (1 + t) + torch.tanh(3 * t * x)

    model = Model(u, (128,), CondOT())
    noise = model.noise(range(8))
    loose, tight = (reference.solve(model, noise, rtol=tolerance, atol=tolerance) for tolerance in (1e-1, 1e-2))
    assert loose.evaluations == tight.evaluations
    exact = reference.solve(model, noise, rtol=1e-6, atol=1e-6).x1
    found = reference.own_error(model, noise, loose.x1, rtol=1e-1, atol=1e-1)
    assert found == pytest.approx(rmse(loose.x1, exact), rel=0.1)


def test_tf32_and_autocast_are_off_inside_and_as_they_were_outside():
    def switches():
        return torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision

    inside, before = [], switches()
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            solved(model_of(lambda t, x: inside.append((*switches(), torch.is_autocast_enabled("cpu"))) or x))
        assert set(inside) == {("ieee", "ieee", False)}
        assert switches() == ("tf32", before[1])
    finally:
        torch.backends.cuda.matmul.fp32_precision = before[0]


def test_a_path_of_conditions_is_solved_with_them():
    model = Model(
        velocity=lambda t, x, c: c[:, None].to(x) * torch.ones_like(x),
        shape=(2,),
        schedule=CondOT(),
        draw_condition=lambda generator: torch.randint(10, (), generator=generator),
    )
    noise = model.noise(range(5))
    paths = reference.solve(model, noise)
    torch.testing.assert_close(paths.x1, noise.x0 + noise.condition[:, None])
