import math
from itertools import product

import numpy as np
import pytest
import torch

from bespoke_solvers.grids import GRIDS, WARPS, grid, straightness, times_of, warp
from bespoke_solvers.schedules import EDM, VP, CondOT, DiscreteVP
from bespoke_solvers.velocity import PREDICTIONS, Model
from problems import F64, SCHEDULES, mixture, model_of, stable_diffusion_alphas

DISCRETE = DiscreteVP(stable_diffusion_alphas())


def model_on(schedule, domain=None, prediction="flow"):
    return Model(mixture(schedule), (3,), schedule, prediction=prediction, domain=domain)


def levels(model, times):
    """sigma / alpha."""
    return (-model.schedule.log_snr(times)).exp()


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("name", [*GRIDS, "karras:0.03"])
def test_a_grid_increases_inside_the_domain(name, schedule):
    if name == "trailing" and not isinstance(schedule, DiscreteVP):
        pytest.skip("not discrete")
    for prediction, n in product(PREDICTIONS, [1, 2, 10, 20]):
        model = model_on(schedule, prediction=prediction)
        times = grid(name, model, n)
        assert times.shape == (n,)
        assert times.dtype == F64
        assert times[0] == model.t_lo
        assert (times.diff() > 0).all()
        assert times[-1] <= model.t_hi
        assert model.schedule(times[-1]).sigma > 0
        assert (times.float().double() == times).all()


def test_uniform_and_quadratic():
    on = model_on(CondOT(), domain=(0.25, 1.0))
    torch.testing.assert_close(grid("uniform", on, 3), torch.tensor([0.25, 0.5, 0.75], dtype=F64), rtol=0, atol=1e-7)
    expected = 1 - torch.tensor([1.0, 2 / 3, 1 / 3], dtype=F64) ** 2 * 0.75
    torch.testing.assert_close(grid("quadratic", on, 3), expected, rtol=0, atol=1e-7)


def test_straight_is_even_where_every_path_is_as_straight_as_that_of_flows():
    flow, vp = model_on(CondOT()), model_on(VP())
    torch.testing.assert_close(grid("straight", flow, 4), grid("uniform", flow, 4), rtol=0, atol=1e-6)
    r = straightness(vp.schedule, grid("straight", vp, 4))
    torch.testing.assert_close(r.diff(), r.diff().mean().expand(3), rtol=1e-4, atol=0)
    assert (grid("straight:2:1", flow, 4) <= grid("uniform", flow, 4)).all(), "more at the noise"
    assert (grid("straight:1:2", flow, 4) >= grid("uniform", flow, 4)).all(), "more at the data"


def test_quadratic_never_passes_the_end_of_the_domain():
    model = model_on(DISCRETE)
    assert grid("quadratic", model, 300)[-1] < model.t_hi


@pytest.mark.parametrize("name", ["log-snr", "karras"])
@pytest.mark.parametrize(
    ("schedule", "most", "least"),
    [(CondOT(), 80, 0.002), (VP(), 80, math.sqrt(math.expm1(1e-4 * (0.1 + 19.9 * 5e-5)))), (DISCRETE, 14.6, 0.02917)],
    ids=["CondOT", "VP", "discrete"],
)
def test_levels_of_noise(name, schedule, most, least):
    """Equal steps in log rho or in rho^(1/7), from 80 or where the domain begins; but the first time is t_lo."""
    model, n = model_on(schedule), 9
    times = grid(name, model, n)
    scale = torch.log if name == "log-snr" else lambda rho: rho ** (1 / 7)
    expected = torch.linspace(scale(torch.tensor(most)), scale(torch.tensor(least)), n, dtype=F64)
    torch.testing.assert_close(scale(levels(model, times))[1:], expected[1:], rtol=2e-3, atol=1e-3)
    assert levels(model, times)[0] >= most * 0.99


def test_karras_on_edm_is_uniform():
    """EDM's time is that ramp."""
    model = model_on(EDM())
    torch.testing.assert_close(grid("karras", model, 5), torch.linspace(0, model.t_hi, 5, dtype=F64), rtol=0, atol=1e-7)


def test_karras_on_edm_begins_at_its_own_level():
    """500 where that is sigma_max: the second time is a step of the ramp from there."""
    model = model_on(EDM(sigma_max=500.0))
    ramp = torch.linspace(500 ** (1 / 7), 0.002 ** (1 / 7), 5, dtype=F64) ** 7
    torch.testing.assert_close(levels(model, grid("karras", model, 5)), ramp, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ["log-snr", "karras"])
def test_a_cut_off_is_where_the_grid_ends(name):
    model = model_on(CondOT())
    assert levels(model, grid(f"{name}:0.03", model, 6))[-1].item() == pytest.approx(0.03, rel=1e-5)
    assert levels(model, grid(name, model, 6))[-1].item() == pytest.approx(0.002, rel=1e-4)


def test_trailing_is_on_the_training_indices():
    """999, 666, 333 of a thousand with three steps, and 499.5 rounded to even with an odd spacing."""
    model = model_on(DISCRETE)
    assert (1000 * (1 - grid("trailing", model, 3)) - 1).round().tolist() == [999, 666, 332]
    assert (1000 * (1 - grid("trailing", model, 16)) - 1).round().tolist()[:3] == [999, 937, 874]


def test_trailing_rounds_halves_as_diffusers_does():
    """At 48, 96 and 112 some step lies next to a half, where the last bit decides."""
    model = model_on(DISCRETE)
    for n in (6, 7, 16, 48, 96, 112, 250):
        expected = np.round(np.arange(1000, 0, -1000 / n))
        assert (1000 * (1 - grid("trailing", model, n))).round().tolist() == expected.tolist()


def test_trailing_needs_indices():
    with pytest.raises(ValueError, match=r"trailing needs .*\(DiscreteVP\), got CondOT"):
        grid("trailing", model_on(CondOT()), 4)


@pytest.mark.parametrize("name", ["linear", "", "karras@0.03", "Uniform"])
def test_unknown_names_are_answered_with_the_known_ones(name):
    with pytest.raises(ValueError, match=f"unknown grid '{name}'; expected one of {', '.join(GRIDS)}"):
        grid(name, model_on(CondOT()), 4)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("uniform:0.03", "'uniform:0.03': expected uniform$"),
        ("karras:small", "'karras:small': expected karras or karras:0.03, say"),
        ("karras:", "'karras:': expected karras or karras:0.03, say"),
        ("karras:0", "must lie between 0 and 80, got 0"),
        ("log-snr:100", "must lie between 0 and 80, got 100"),
        ("log-snr:nan", "must lie between 0 and 80, got nan"),
        ("straight:2", "'straight:2': expected straight or straight:1.5:2, say"),
        ("straight:2:0", "must be positive, got 2 and 0"),
    ],
)
def test_a_wrong_cut_off_is_refused(name, named):
    with pytest.raises(ValueError, match=named):
        grid(name, model_on(CondOT()), 4)


@pytest.mark.parametrize(("name", "n"), [("uniform", 0), ("uniform", 5000), ("trailing", 1001)])
def test_impossible_numbers_of_times_are_refused(name, n):
    with pytest.raises(ValueError, match=r"at least one time, got n = 0|has no .* different times in the domain"):
        grid(name, model_on(DISCRETE), n)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_straightness_and_its_inverse(schedule):
    model = Model(velocity=lambda t, x: x, shape=(3,), schedule=schedule)
    t = torch.linspace(model.t_lo, model.t_hi, 9, dtype=F64)
    r = straightness(schedule, t)
    assert (r.diff() > 0).all()
    torch.testing.assert_close(times_of(model, r), t, rtol=0, atol=1e-9)
    ends = times_of(model, torch.tensor([0.0, 1.0], dtype=F64))
    assert ends.tolist() == [model.t_lo, model.t_hi]
    if schedule == CondOT():
        torch.testing.assert_close(r, t)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_warps_are_increasing_times_in_the_domain(schedule):
    model = Model(velocity=lambda t, x: x, shape=(3,), schedule=schedule)
    r_lo = straightness(schedule, torch.tensor(model.t_lo)).item()
    for c, p, q in WARPS:
        t = warp(model, 8, c, p, q)
        assert (t.diff() > 0).all()
        assert t[0] >= model.t_lo
        assert t[-1] <= model.t_hi
        assert straightness(schedule, t[:1]).item() == pytest.approx(max(c / 8, r_lo), abs=1e-6)


def test_the_plain_warp_is_the_uniform_grid():
    model = model_of(mixture(CondOT()))
    torch.testing.assert_close(warp(model, 4, 0.0, 1.0, 1.0), torch.tensor([0, 0.25, 0.5, 0.75], dtype=F64))
    bent = warp(model, 4, 0.4, 2.0, 0.5)
    assert bent[1].item() == pytest.approx(0.1 + 0.9 * (1 - (1 - 1 / 16) ** 0.5))
