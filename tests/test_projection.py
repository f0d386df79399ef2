import math

import pytest
import torch

from bespoke_solvers import regression
from bespoke_solvers.bank import Bank, Batches
from bespoke_solvers.families import NonStationary
from bespoke_solvers.gauss_newton import GaussNewton
from bespoke_solvers.generic import baseline
from bespoke_solvers.projection import Projection
from bespoke_solvers.regression import closed_form, errors, log_mean
from bespoke_solvers.schedules import CondOT
from bespoke_solvers.table import Table, sample
from bespoke_solvers.velocity import Model
from memory import Memory
from problems import F64, counted, exactly, full_table, mixture, model_of, ones


@pytest.fixture(scope="module")
def batches():
    model = model_of(mixture(CondOT()))
    return [exactly(model), exactly(model, first=8)]


def test_projections_derivatives_are_those_of_its_samples(batches):
    problem = Projection(NonStationary(full_table(4)), batches)
    theta = problem.start()
    weights = list(torch.rand(2, 8, generator=torch.Generator().manual_seed(0), dtype=F64))
    linearised = list(problem.linearise(theta, weights, 1e-6))
    h = 1e-5
    for k in range(len(theta)):
        up, down = theta.clone(), theta.clone()
        up[k] += h
        down[k] -= h
        for (y, dy), more, less, here in zip(
            linearised, problem.samples(up), problem.samples(down), problem.samples(theta), strict=True
        ):
            torch.testing.assert_close(y, here)
            central = (more - less) / (2 * h)
            torch.testing.assert_close(dy[k], central, rtol=1e-2, atol=1e-3 * central.abs().max().item())


def test_projection_fits_again_only_the_rows_after_a_time(batches):
    """n evaluations for the rows as they are, then n - k for each time k."""
    batches, counter = counted(batches)
    problem = Projection(NonStationary(full_table(5)), batches)
    list(problem.linearise(problem.start(), ones(batches), 1e-3))
    assert counter.evaluations == 16 * (5 + 5 + 4 + 3 + 2 + 1)


def test_projection_begins_at_the_familys_times(batches):
    model = batches[0].model
    family = NonStationary(full_table(4))
    problem = Projection(family, batches)
    theta = problem.start()
    torch.testing.assert_close(problem.times(theta), family().t.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(problem.times(-theta), family().t.detach(), rtol=0, atol=1e-12)
    assert problem.times(theta + 0.3)[-1] == model.t_hi, "the times do not pass the data"
    problem.accept(theta)
    expected = closed_form(full_table(4).t, batches).table
    torch.testing.assert_close(family().on(model).b.detach(), expected.b, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(family().t.detach(), full_table(4).t, rtol=0, atol=1e-12)


def test_memory_does_not_grow_with_the_evaluations_nor_with_the_paths(monkeypatch):
    """Beside the samples themselves, a few of which are at work at a time; what is kept of each path lies in files."""
    monkeypatch.setattr(regression, "AT_ONCE", 2**15)
    w = torch.randn(3, 3, 3, 3, generator=torch.Generator().manual_seed(0)) / 5
    monkeypatch.setattr(regression, "SMALL", 0)
    schedule, size = CondOT(), (3, 32, 32)

    def u(t, x):
        return torch.nn.functional.conv2d(x, w, padding=1).tanh() - t.reshape(-1, 1, 1, 1) * x

    def most(nfe, batches):
        model = Model(velocity=u, shape=size, schedule=schedule)
        bank = Bank(model, batch_size=8, rtol=1e-2, atol=1e-2)
        problem = Projection(
            NonStationary(baseline("euler", nfe)), Batches(bank, model, 0, bank.fill(0, 8 * batches, False))
        )
        with torch.no_grad(), Memory() as memory:
            for _ in problem.linearise(problem.start(), ones(problem.batches), 1e-2):
                pass
        return memory.most

    few, sample_bytes = most(4, 1), 4 * math.prod(size)
    assert few > 8 * sample_bytes
    assert most(16, 1) < 1.2 * few
    assert most(4, 4) < few + 4 * 24 * sample_bytes


@pytest.mark.parametrize("method", ["heun", "rk4"])
def test_projection_begins_at_any_table(batches, method):
    """A stage of Heun's method and of RK4 lies at t = 1, and others at one time, so that some times cannot move."""
    family, model = NonStationary(baseline(method, 4)), batches[0].model
    stage = GaussNewton(Projection(family, batches))
    regressed = log_mean(errors(closed_form(family().t.detach(), batches).samples, batches))
    loss = stage.step()
    assert loss < regressed - 0.1, "a step that pays"
    samples = [sample(family().detach().on(model), model.bind(p.noise.condition), p.noise.x0) for p in batches]
    assert log_mean(errors(samples, batches)) == pytest.approx(loss, abs=1e-3)


def test_times_that_cannot_move_leave_the_rows_to_be_fitted(batches):
    """All at the data's end: no step pays, and the family still holds the regressions there, whose loss is told."""
    model = batches[0].model
    family = NonStationary(Table(torch.ones(3, dtype=F64), *(getattr(full_table(3), name) for name in "ab")))
    problem = Projection(family, batches)
    *_, (_, dy) = problem.linearise(problem.start(), ones(batches), 1e-3)
    assert not dy[1:].any()
    loss = GaussNewton(problem).step()
    samples = [sample(family().detach().on(model), model.bind(p.noise.condition), p.noise.x0) for p in batches]
    assert log_mean(errors(samples, batches)) == pytest.approx(loss, abs=1e-3)


@pytest.mark.parametrize("times", [[0.0, 0.3, 0.6, 0.95], [0.0, 0.5, 0.9, 0.93]])
def test_projection_takes_large_differences_near_the_data(batches, times):
    """As networks in half precision need them."""
    table = Table(torch.tensor(times, dtype=F64), *(getattr(full_table(4), name) for name in "ab"))
    problem = Projection(NonStationary(table), batches)
    theta = problem.start()
    large = next(problem.linearise(theta, ones(batches), 1e-1)).dy.flatten(1)
    small = next(problem.linearise(theta, ones(batches), 1e-3)).dy.flatten(1)
    alike = torch.nn.functional.cosine_similarity(large, small)
    assert alike.min() > 0, "not even the sign is right"
