import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bespoke_solvers.schedules import EDM, VP, CondOT, Cosine, DiscreteVP, Path, Schedule, Sech, Tanh
from problems import F64, SCHEDULES, stable_diffusion_alphas

ALL = {**SCHEDULES, "Sech": Sech(5.7), "Tanh": Tanh(6.0)}
EVERY = pytest.mark.parametrize("schedule", ALL.values(), ids=ALL)


def inner_times(schedule: Schedule, count: int = 201) -> torch.Tensor:
    """Times away from the ends and from the kinks of a discrete schedule."""
    return torch.linspace(0, 1, count, dtype=F64)[1:-1] - 0.37e-3


@EVERY
def test_derivatives_are_those_of_the_values(schedule):
    t, h = inner_times(schedule), 1e-6
    before, at, after = schedule(t - h), schedule(t), schedule(t + h)
    torch.testing.assert_close((after.alpha - before.alpha) / (2 * h), at.d_alpha, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close((after.sigma - before.sigma) / (2 * h), at.d_sigma, rtol=1e-5, atol=1e-5)


@EVERY
def test_time_inverts_log_snr_and_both_increase(schedule):
    t = inner_times(schedule)
    log_snr = schedule.log_snr(t)
    assert (log_snr.diff() > 0).all()
    torch.testing.assert_close(schedule.time(log_snr), t, rtol=0, atol=1e-12)
    alpha, sigma, _, _ = schedule(t)
    torch.testing.assert_close(log_snr, (alpha / sigma).log(), rtol=0, atol=1e-10)


@EVERY
def test_the_inverse_by_bisection_agrees_with_the_closed_form(schedule):
    log_snr = schedule.log_snr(inner_times(schedule, 23))
    torch.testing.assert_close(Schedule.time(schedule, log_snr), schedule.time(log_snr), rtol=0, atol=1e-12)


@EVERY
def test_variance_rate_is_sigma_times_its_derivative(schedule):
    t = inner_times(schedule)
    path = schedule(t)
    torch.testing.assert_close(schedule.variance_rate(t), path.sigma * path.d_sigma)
    assert schedule.variance_rate(torch.tensor([0.0, 1.0], dtype=F64)).isfinite().all()


@EVERY
def test_float32_times_give_float64_values(schedule):
    t = torch.tensor([0.25, 0.75])
    for single, double in zip(schedule(t), schedule(t.double()), strict=True):
        assert single.dtype == F64
        torch.testing.assert_close(single, double, rtol=0, atol=0)


ENDS = {  # alpha_0, sigma_0, alpha_1, sigma_1
    "CondOT": (0, 1, 1, 0),
    "Cosine": (0, 1, 1, 0),
    "VP": (math.exp(-5.025), math.sqrt(-math.expm1(-10.05)), 1, 0),
    "EDM": (1, 80, 1, 0),
    "discrete": (math.sqrt(stable_diffusion_alphas()[-1]), math.sqrt(1 - stable_diffusion_alphas()[-1]), 1, 0),
    "zero-terminal": (0, 1, 1, 0),
    "Sech": (1 / math.cosh(5.7), math.tanh(5.7), 1, 0),
    "Tanh": (0, 1, math.tanh(6.0), 1 / math.cosh(6.0)),
}


@pytest.mark.parametrize("name", ALL)
def test_ends(name):
    path = ALL[name](torch.tensor([0.0, 1.0], dtype=F64))
    got = (*path.alpha.tolist()[:1], *path.sigma.tolist()[:1], path.alpha[1].item(), path.sigma[1].item())
    assert got == pytest.approx(ENDS[name], abs=1e-12, rel=1e-12)
    times = ALL[name].time(torch.tensor([-math.inf, math.inf], dtype=F64))
    assert times.tolist() == [0, 1]


def test_published_figures():
    assert VP()(torch.tensor(0.0)).alpha.item() == pytest.approx(0.0066, abs=5e-5)
    assert SCHEDULES["discrete"](torch.tensor(0.0)).alpha.item() == pytest.approx(0.068, abs=5e-4)
    t_hi = torch.tensor(SCHEDULES["discrete"].domain[1], dtype=F64)
    assert SCHEDULES["discrete"](t_hi).sigma.item() == pytest.approx(0.029, abs=5e-4)


@given(st.floats(1e-7, 1e-2))
def test_vp_does_not_cancel_next_to_the_data(s):
    t = torch.tensor(1 - s, dtype=F64)
    s = 1 - t.item()
    exact = math.sqrt(-math.expm1(-(s * s * 19.9 / 2 + s * 0.1)))
    assert VP()(t).sigma.item() == pytest.approx(exact, rel=1e-12)
    assert math.exp(-VP().log_snr(t).item()) == pytest.approx(exact / math.sqrt(1 - exact**2), rel=1e-12)


def test_edm_times_are_those_of_karras():
    edm, n = EDM(), 18
    i = torch.arange(n, dtype=F64)
    ramp = (80 ** (1 / 7) + i / (n - 1) * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7
    torch.testing.assert_close(edm(i / (n - 1) * edm.domain[1]).sigma, ramp, rtol=1e-12, atol=0)
    at_kink = edm(torch.tensor([edm.domain[1] - 1e-9, edm.domain[1] + 1e-9], dtype=F64))
    assert at_kink.d_sigma[0].item() == pytest.approx(at_kink.d_sigma[1].item(), rel=1e-6)


def test_discrete_indices_keep_their_alphas():
    alphas = stable_diffusion_alphas()
    k = torch.tensor([999, 500, 123, 1, 0])
    path = DiscreteVP(alphas)(1 - (k.double() + 1) / 1000)
    torch.testing.assert_close(path.alpha**2, torch.tensor(alphas, dtype=F64)[k], rtol=1e-12, atol=0)


def test_discrete_log_snr_is_linear_between_indices():
    schedule = DiscreteVP(stable_diffusion_alphas())
    left, middle, right = schedule.log_snr(torch.tensor([0.5, 0.5005, 0.501], dtype=F64))
    assert middle.item() == pytest.approx((left + right).item() / 2, abs=1e-12)


@EVERY
def test_values_can_be_differentiated_in_t(schedule):
    t = inner_times(schedule, 9).requires_grad_()
    (slope,) = torch.autograd.grad(schedule(t).alpha.sum() - schedule(t).sigma.sum(), t)
    path = schedule(t.detach())
    torch.testing.assert_close(slope, path.d_alpha - path.d_sigma)


def test_an_own_schedule_needs_the_path_alone():
    class Quadratic(Schedule):
        def __call__(self, t):
            return Path(t**2, (1 - t) ** 2, 2 * t, -2 * (1 - t))

    t = torch.linspace(0.1, 0.9, 9, dtype=F64)
    torch.testing.assert_close(Quadratic().time(Quadratic().log_snr(t)), t, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: VP(B=0.1, b=20.0), "B = 0.1"),
        (lambda: EDM(sigma_min=0.0), "sigma_min > 0"),
        (lambda: DiscreteVP((0.1, 0.9)), "that decrease"),
        (lambda: DiscreteVP((0.5, 0.0)), "three where the last is 0"),
        (lambda: DiscreteVP((0.5,)), "at least two"),
        (lambda: DiscreteVP(torch.rand(2, 3)), "must be a list of numbers, got the shape"),
    ],
)
def test_wrong_parameters_are_named(make, named):
    with pytest.raises(ValueError, match=named):
        make()


def test_equal_schedules_are_equal():
    assert CondOT() == CondOT()
    assert Cosine() != CondOT()
    assert VP(B=10.0) != VP()


@pytest.mark.parametrize("kind", [torch.tensor, np.array, list, tuple])
def test_noise_levels_may_come_as_they_are_kept(kind):
    """diffusers has a tensor, others an array."""
    values = [0.9, 0.5, 0.1]
    schedule = DiscreteVP(kind(values))
    assert schedule.alphas_cumprod == pytest.approx(values)
    assert schedule(torch.tensor(0.5)).alpha == pytest.approx(DiscreteVP(tuple(values))(torch.tensor(0.5)).alpha)
    hash(schedule)
