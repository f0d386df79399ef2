import math
from itertools import permutations

import pytest
import torch

from bespoke_solvers.generic import uniform_grid
from bespoke_solvers.scale_time import (
    Between,
    ScaleTime,
    Transformed,
    identity,
    transformed_velocity,
    transformed_velocity_general,
)
from bespoke_solvers.schedules import CondOT, Cosine, DiscreteVP, Schedule
from problems import F64, SCHEDULES, mixture, points, solve_finely, stable_diffusion_alphas

PAIRS = list(permutations(SCHEDULES, 2))
COARSE = SCHEDULES | {
    "discrete": DiscreteVP(stable_diffusion_alphas()[9::10]),
    "zero-terminal": DiscreteVP(stable_diffusion_alphas(zero_terminal=True)[9::10]),
}


def smooth(r):
    """A transform with s_0 = 1 = s_1."""
    t = r + 0.1 * torch.sin(math.pi * r) * r
    dt = 1 + 0.1 * (math.pi * torch.cos(math.pi * r) * r + torch.sin(math.pi * r))
    return ScaleTime(t, dt, 1 + r * (1 - r), 1 - 2 * r)


def common_times(source: Schedule, target: Schedule, count: int = 17):
    """Times r of the target whose snr the source has too, on the domains of both."""
    ends = [schedule.log_snr(torch.tensor(schedule.domain, dtype=F64)) for schedule in (source, target)]
    low, high = max(ends[0][0], ends[1][0]).clamp(min=-9), min(ends[0][1], ends[1][1]).clamp(max=9)
    return target.time(torch.linspace(low.item(), high.item(), count, dtype=F64))


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_theorem_2_3_the_transformed_field_is_the_other_schedules_own(source, target):
    source, target = SCHEDULES[source], SCHEDULES[target]
    between = Between(source, target)
    u_bar, own = transformed_velocity(mixture(source), between), mixture(target)
    for r in common_times(source, target):
        path = target(r)
        x = path.alpha * points(seed=1) + path.sigma * points(seed=2)
        expected = own(r, x)
        error = (u_bar(r, x) - expected).abs().max() / expected.abs().max().clamp(min=1)
        assert error < 1e-9, f"at r = {r.item()}"


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_theorem_2_3_s_and_t_are_smooth_functions_with_these_derivatives(source, target):
    between = Between(SCHEDULES[source], SCHEDULES[target])
    r, h = common_times(SCHEDULES[source], SCHEDULES[target], 101)[1:-1], 1e-7
    r = r[[all(1e-4 < 1000 * time % 1 < 1 - 1e-4 for time in (t, between(t).t)) for t in r]]  # off discrete kinks
    before, at, after = between(r - h), between(r), between(r + h)
    torch.testing.assert_close((after.t - before.t) / (2 * h), at.dt, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close((after.s - before.s) / (2 * h), at.ds, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(between.inverse(at.t), r, rtol=0, atol=1e-9)


def solved(schedule, t, t_end, x):
    """From t to t_end by RK4 on the schedule's own field, in steps even in log-snr or between discrete indices."""
    ends = schedule.log_snr(torch.tensor([t, t_end], dtype=F64)).clamp(-9, 9)
    middle = schedule.time(torch.linspace(ends[0].item(), ends[1].item(), 400, dtype=F64))
    if isinstance(schedule, DiscreteVP):  # d_alpha jumps at an index: keep the intervals off it
        indices, halves = (uniform_grid(k * len(schedule.alphas_cumprod)) for k in (1, 2))
        middle = torch.cat([indices - 1e-10, indices + 1e-10, halves[1::2]]).sort().values
    inside = middle[(middle > t + 1e-11) & (middle < t_end - 1e-11)]
    grid = torch.cat([torch.tensor([t], dtype=F64), inside, torch.tensor([t_end], dtype=F64)])
    return solve_finely(mixture(schedule), grid, x)


@pytest.mark.parametrize(
    ("source", "target"), [pair for pair in PAIRS if "CondOT" in pair] + [("VP", "EDM"), ("discrete", "VP")]
)
def test_theorem_2_3_samples_agree_when_the_start_is_mapped(source, target):
    source, target = COARSE[source], COARSE[target]
    between, x0 = Between(source, target), points()
    start = target.time(torch.maximum(*(s.log_snr(torch.tensor(0.0, dtype=F64)) for s in (source, target))))
    end = common_times(source, target)[-1]
    first, last = between(start), between(end)
    x = solved(source, first.t.item(), last.t.item(), x0)
    x_bar = solved(target, start.item(), end.item(), first.s * x0)
    torch.testing.assert_close(x_bar, last.s * x, rtol=0, atol=2e-6)
    if source(torch.tensor(0.0)).alpha == 0 == target(torch.tensor(0.0)).alpha:
        assert first.s.item() == pytest.approx(1, abs=1e-12), "from the same noise"


def test_the_unmapped_start_is_not_the_same_path():
    """Why the start is mapped: from the same x0 the samples of FM-OT and VP differ."""
    ot, vp = CondOT(), SCHEDULES["VP"]
    last = Between(ot, vp)(torch.tensor(0.99, dtype=F64))
    difference = solved(vp, 0.0, 0.99, points()) - last.s * solved(ot, 0.0, last.t.item(), points())
    assert 1e-4 < difference.square().mean().sqrt() < 0.1


def test_theorem_2_3_ii_a_transform_makes_another_gaussian_path():
    schedule = Transformed(CondOT(), smooth)
    own, u_bar = mixture(schedule), transformed_velocity(mixture(CondOT()), smooth)
    for r in torch.linspace(0.05, 0.95, 9, dtype=F64):
        torch.testing.assert_close(own(r, points()), u_bar(r, points()), rtol=1e-9, atol=1e-9)
    r = torch.linspace(0.1, 0.9, 5, dtype=F64)
    torch.testing.assert_close(schedule.time(schedule.log_snr(r)), r, rtol=0, atol=1e-12)
    assert schedule.prior_scale == 1
    there_and_back = Between(CondOT(), schedule)(r)
    for got, expected in zip(there_and_back, smooth(r), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def test_there_and_back_is_nothing():
    u = mixture(CondOT())
    there = transformed_velocity(u, Between(CondOT(), Cosine()))
    back = transformed_velocity(there, Between(Cosine(), CondOT()))
    for t in torch.linspace(0.05, 0.95, 7, dtype=F64):
        torch.testing.assert_close(back(t, points()), u(t, points()), rtol=1e-10, atol=1e-10)


def test_the_identity_changes_nothing():
    u, t = mixture(CondOT()), torch.tensor(0.4, dtype=F64)
    assert torch.equal(transformed_velocity(u, identity)(t, points()), u(t, points()))


def test_per_sample_times():
    u_bar, r = transformed_velocity(mixture(CondOT()), smooth), torch.linspace(0.1, 0.9, 8, dtype=F64)
    one_by_one = torch.cat([u_bar(r_i, x[None]) for r_i, x in zip(r, points(8), strict=True)])
    torch.testing.assert_close(u_bar(r, points(8)), one_by_one)


def test_proposition_2_1_contains_the_scale_time_transform():
    u = mixture(CondOT())
    general = transformed_velocity_general(
        u, lambda r: smooth(r).t, lambda r, x: smooth(r).s * x, lambda r, x: x / smooth(r).s
    )
    for r in torch.linspace(0.1, 0.9, 5, dtype=F64):
        torch.testing.assert_close(general(r, points()), transformed_velocity(u, smooth)(r, points()))


def test_proposition_2_1_for_a_nonlinear_phi():
    """x_bar(r) = phi_r(x(t_r)) of a solved path solves the transformed equation."""
    u, x0 = mixture(CondOT()), points()

    def phi(r, x):
        return x + 0.3 * r * torch.tanh(x)

    def inverse(r, x):
        y = x.clone()
        for _ in range(12):
            y = y - (phi(r, y) - x) / (1 + 0.3 * r / torch.cosh(y) ** 2)
        return y

    u_bar = transformed_velocity_general(u, lambda r: r**2, phi, inverse)
    x1, x1_bar = (solve_finely(field, uniform_grid(150), x0) for field in (u, u_bar))
    torch.testing.assert_close(x1_bar, phi(torch.tensor(1.0, dtype=F64), x1), rtol=0, atol=1e-6)
