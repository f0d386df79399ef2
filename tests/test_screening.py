"""Which time grids promise most, before any is tried."""

import dataclasses

import pytest
import torch

from bespoke_solvers import screening, toy
from bespoke_solvers.bank import Bank
from bespoke_solvers.grids import WARPS, warp
from bespoke_solvers.regression import RIDGE, closed_form, errors, log_mean
from bespoke_solvers.schedules import CondOT
from bespoke_solvers.screening import screen
from bespoke_solvers.stages import TRIED
from bespoke_solvers.velocity import Counter
from problems import F64, exactly, mixture, model_of

T = torch.tensor([0.1, 0.4, 0.8], dtype=F64)


@pytest.fixture(scope="module")
def model():
    return model_of(mixture(CondOT()))


@pytest.fixture(scope="module")
def batches(model):
    return [exactly(model, 8, first) for first in (0, 8)]


@pytest.mark.parametrize("scale", [None, 0.7])
def test_the_score_is_that_of_regressions_on_the_paths_own_velocities(model, batches, scale, monkeypatch):
    """By least squares on everything at once, u_0 alone being the network's."""
    monkeypatch.setattr(screening, "AT_ONCE", 50)  # numbers, so that each batch comes in parts
    x0 = torch.cat([paths.noise.x0 for paths in batches])
    x, dx = (torch.cat(parts, 1) for parts in zip(*(paths.at(T) for paths in batches), strict=True))
    starts = []
    for paths in batches:
        one, begun = paths.noise.x0, paths.at(T[:1]).x[0]
        starts.append((scale or (begun * one).sum() / one.square().sum()) * one)
    us = torch.cat([model.velocity(T[0], torch.cat(starts))[None], dx[1:]])
    targets = torch.cat([x[1:], torch.cat([paths.x1 for paths in batches])[None]])
    weights = torch.ones(16, dtype=F64)
    for _ in range(2):
        left = []
        for k, target in enumerate(targets, 1):
            basis = torch.stack([x0, *us[:k]], -1)
            root = weights.sqrt()[:, None]
            c = torch.linalg.lstsq((root[..., None] * basis).flatten(0, 1), (root * target).flatten()).solution
            left.append((basis @ c - target).square().mean(1))
        weights = left[-1].median() / (left[-1] + left[-1].median())
    expected = sum(left).log().mean().item()
    assert screen([T], batches, scale) == [pytest.approx(expected, abs=1e3 * RIDGE)]
    assert abs(expected - screen([T], batches, 0.9)[0]) > 1e-3, "a_0 counts"


def test_grids_that_begin_together_share_the_one_evaluation(model):
    counter = Counter(model.velocity)
    counting = dataclasses.replace(model, velocity=counter)
    batches = [exactly(counting, 8, first) for first in (0, 8)]
    counter.evaluations = counter.calls = 0
    other = torch.tensor([0.1, 0.5, 0.7], dtype=F64)
    late = torch.tensor([0.2, 0.5, 0.7], dtype=F64)
    screen([T, other, late], batches)
    assert (counter.calls, counter.evaluations) == (4, 2 * 16)


def test_many_paths_are_not_all_looked_at(model, batches, monkeypatch):
    monkeypatch.setattr(screening, "MOST", 10)
    few = [batches[0], batches[1].split(2)[0]]
    assert screen([T], batches * 3) == pytest.approx(screen([T], few), abs=1e-2)
    monkeypatch.setattr(screening, "MOST", 8)
    assert screen([T], batches) == screen([T], batches[:1])


def test_a_grid_that_begins_where_the_velocity_overflows_comes_last(model, batches):
    def velocity(t, x):
        return model.velocity(t, x).masked_fill(t > 0.15, torch.inf)

    broken = dataclasses.replace(model, velocity=velocity)
    replaced = [dataclasses.replace(paths, model=broken) for paths in batches]
    late = torch.tensor([0.2, 0.5, 0.7], dtype=F64)
    found = screen([late, T], replaced)
    assert found == [torch.inf, screen([T], batches)[0]]


@pytest.mark.parametrize("name", ["toy:digits", "toy:digits-vp"])
@pytest.mark.parametrize("nfe", [4, 8, 16])
def test_the_best_grid_is_among_the_most_promising(name, nfe):
    """Or one within a decibel of it; the grids that are not tried are worse by far in the mean."""
    bank = Bank(toy.load(name))
    batches = [bank.paths(0, index) for index in range(2)]
    grids = [warp(bank.model, nfe, *each) for each in WARPS]
    scores = screen(grids, batches)
    order = sorted(range(len(grids)), key=scores.__getitem__)
    reached = [log_mean(errors(closed_form(t, batches, 2).samples, batches)) for t in grids]
    promising, others = ([reached[i] for i in part] for part in (order[:TRIED], order[TRIED:]))
    assert min(promising) < min(reached) + 0.2
    assert sum(promising) / len(promising) < sum(others) / len(others) - 0.5
