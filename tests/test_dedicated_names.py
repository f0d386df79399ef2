"""The baselines by their names, with their grids and the evaluations that they can have."""

import pytest
import torch

from bespoke_solvers import generic
from bespoke_solvers.dedicated import METHODS, NAMES, at_times, baseline, possible
from bespoke_solvers.grids import grid
from bespoke_solvers.schedules import VP, CondOT
from bespoke_solvers.velocity import Model
from problems import F64, mixture


def mixture_on(schedule):
    return Model(mixture(schedule), (3,), schedule, dtype=F64)


def test_generic_methods_are_among_the_baselines():
    model = mixture_on(VP())
    table, expected = baseline("midpoint", 6, model), generic.baseline("midpoint", 6).on(model)
    torch.testing.assert_close(table.b, expected.b)
    assert set(NAMES) == set(generic.TABLEAUS) | set(METHODS)


def test_a_grid_may_be_named():
    model = mixture_on(CondOT())
    torch.testing.assert_close(baseline("dpmpp-2m@karras", 5, model).t, grid("karras", model, 5))
    torch.testing.assert_close(baseline("dpmpp-2m@log-snr:0.03", 5, model).t, grid("log-snr:0.03", model, 5))
    torch.testing.assert_close(baseline("dpmpp-2m", 5, model).t, grid(METHODS["dpmpp-2m"].grid, model, 5))


@pytest.mark.parametrize(
    ("name", "can", "cannot"),
    [
        ("ddim", [1, 2, 7], [0, -1]),
        ("dpm-2@karras", [2, 10], [0, 1, 5]),
        ("edm-heun", [1, 9], [0, 2, 10]),
        ("rk4", [4, 8], [0, 6]),
        ("midpoint", [2], [3]),
    ],
)
def test_possible_nfe(name, can, cannot):
    model = mixture_on(CondOT())
    for nfe in can:
        assert possible(name, nfe)
        assert baseline(name, nfe, model).nfe == nfe
    for nfe in cannot:
        assert not possible(name, nfe)
        with pytest.raises(ValueError, match=rf"can have .*, \.\.\. evaluations, got nfe = {nfe}$"):
            baseline(name, nfe, model)


@pytest.mark.parametrize("name", ["dpm", "rk5", "dpm@karras", "euler@karras", ""])
def test_unknown_methods_are_answered_with_the_known_ones(name):
    for ask in (lambda: possible(name, 4), lambda: baseline(name, 4, mixture_on(CondOT()))):
        with pytest.raises(ValueError, match=f"unknown method '{name}'; expected one of euler, .*edm-heun.* karras"):
            ask()


def test_unknown_grids_are_answered_with_the_known_ones():
    for ask in (lambda: possible("ddim@lin", 4), lambda: baseline("ddim@lin", 4, mixture_on(CondOT()))):
        with pytest.raises(ValueError, match="unknown grid 'lin'; expected one of uniform, "):
            ask()


@pytest.mark.parametrize("times", [[0.1, 0.5], [0.0, 0.5, 0.5], [0.0, 0.5, 1.0], [0.0, 0.4, 0.2]])
def test_times_must_lie_in_the_domain(times):
    with pytest.raises(ValueError, match=r"must increase from t_lo .* got \[0"):
        at_times("ddim", torch.tensor(times, dtype=F64), mixture_on(CondOT()))


def test_given_times_need_a_dedicated_method():
    with pytest.raises(ValueError, match="unknown method 'euler'; expected one of ddim, "):
        at_times("euler", torch.tensor([0.0, 0.5], dtype=F64), mixture_on(CondOT()))
