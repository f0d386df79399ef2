import dataclasses
import math
from itertools import pairwise

import pytest
import torch

from bespoke_solvers import fit, toy
from bespoke_solvers.endpoint import EndPoint
from bespoke_solvers.families import make
from bespoke_solvers.gauss_newton import DIFFERENCES, GaussNewton, Problem, smoothest_difference
from bespoke_solvers.projection import Projection
from bespoke_solvers.regression import errors, log_mean
from bespoke_solvers.schedules import CondOT
from bespoke_solvers.table import TableError, sample
from bespoke_solvers.velocity import Model
from problems import F64, exactly, mixture, model_of, non_stationary


@pytest.fixture(scope="module")
def batches():
    model = model_of(mixture(CondOT()))
    return [exactly(model), exactly(model, first=8)]


PROBLEMS = {
    "endpoint of ns": lambda batches: EndPoint(non_stationary(batches[0].model), batches),
    "endpoint of rk2": lambda batches: EndPoint(make("rk2", 4), batches),
    "projection": lambda batches: Projection(non_stationary(batches[0].model), batches),
}


def actual(problem, batches):
    """E log MSE of what the family is now."""
    table = problem.family().detach().on(problem.model)
    return log_mean(errors([sample(table, p.model.bind(), p.noise.x0) for p in batches], batches))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("endpoint of ns", torch.float32),
        ("endpoint of ns", torch.float64),
        ("endpoint of rk2", torch.float32),
        ("projection", torch.float32),
    ],
)
def test_no_step_is_for_the_worse_and_the_end_is_seen(name, dtype):
    model = dataclasses.replace(model_of(mixture(CondOT())), dtype=dtype)
    batches = [exactly(model, 16, tolerance=1e-6)]
    problem = PROBLEMS[name](batches)
    stage = GaussNewton(problem)
    losses = [log_mean(errors(problem.samples(stage.theta), batches))]
    while not stage.finished and len(losses) < 40:
        losses.append(stage.step())
        if isinstance(problem, EndPoint):
            assert actual(problem, batches) == pytest.approx(losses[-1], abs=1e-2), "the family is at what is reported"
    assert stage.finished
    assert 2 <= len(losses) < 40
    assert all(after <= before for before, after in pairwise(losses))
    assert losses[-1] < losses[0] - 1
    assert problem.family().t.dtype == F64


def test_a_step_of_projection_leaves_the_family_at_what_it_reports(batches):
    """Where it was for the better."""
    problem = PROBLEMS["projection"](batches)
    stage = GaussNewton(problem)
    loss = stage.step()
    assert stage.gain > 0
    assert actual(problem, batches) == pytest.approx(loss, abs=1e-3)


class Scale(Problem):
    """y = theta x0, from a wrong start; a theta beyond `limit` is no table."""

    def __init__(self, batches, limit=math.inf):
        super().__init__(batches)
        self.limit, self.accepted = limit, None

    def start(self):
        return torch.tensor([-1.0], dtype=F64)

    def accept(self, theta):
        self.accepted = theta
        return theta

    def samples(self, theta):
        if theta > self.limit:
            raise TableError("no table")
        return [theta * paths.noise.x0 for paths in self.batches]

    def linearise(self, theta, weights, difference):
        for paths in self.batches:
            yield theta * paths.noise.x0, paths.noise.x0[None]


def still(batches):
    """Paths that stand still, whose exact samples are the noise."""
    paths = exactly(model_of(lambda t, x: 0 * x))
    return [paths, paths]


def test_a_linear_problem_is_solved_in_one_step(batches):
    problem = Scale(still(batches))
    stage = GaussNewton(problem)
    assert not stage.finished
    stage.step()
    assert problem.accepted.item() == pytest.approx(1, abs=1e-3)


class Counted(Scale):
    """Counts the candidates."""

    tried = 0

    def samples(self, theta):
        self.tried += 1
        return super().samples(theta)


def test_few_dampings_are_tried_and_fewer_near_the_last_one(batches):
    """The first step goes from the middle of the eight to the least; the next one begins there."""
    problem = Counted(still(batches))
    stage = GaussNewton(problem)
    stage.step()
    assert problem.tried == 1 + 5, "where it stands, and the dampings from 0.3 to 3e-7"
    assert problem.accepted.item() == pytest.approx(1, abs=1e-6)
    problem.tried = 0
    stage.step()
    assert problem.tried == 2


class Valleys(Scale):
    """Two dampings that are better than those beside them, 0.3 more so than the least."""

    def samples(self, theta):
        taken = (theta.item() + 1) / 2  # of the undamped step
        away = 0.1 if taken == pytest.approx(1 / 1.3, abs=1e-3) else 0.5 - 0.1 * taken
        return [(1 - away if taken else -1) * paths.noise.x0 for paths in self.batches]


def test_both_sides_of_the_first_damping_are_looked_at(batches):
    """It is 0.01; the damping 0.3 on its one side leads to the deeper valley, 3e-4 on the other is better, too."""
    problem = Valleys(still(batches))
    GaussNewton(problem).step()
    assert (problem.accepted.item() + 1) / 2 == pytest.approx(1 / 1.3, abs=1e-3)


class Hill(Scale):
    """A way to the solution that leads over a hill, which begins right after the shortest step."""

    def samples(self, theta):
        return super().samples(theta - 2 * (-0.9995 < theta < 0.9))


def test_the_little_that_a_tiny_step_gains_does_not_end_the_search(batches):
    problem = Hill(still(batches))
    GaussNewton(problem).step()
    assert problem.accepted.item() == pytest.approx(1, abs=1e-3)


def test_numbers_that_are_no_table_are_survived(batches):
    """Large dampings step short of the limit; one of them is taken."""
    problem = Scale(still(batches), limit=0.99)
    stage = GaussNewton(problem)
    before = log_mean(errors(problem.samples(stage.theta), problem.batches))
    assert stage.step() < before
    assert -1 < problem.accepted.item() <= 0.99


def test_where_nothing_is_a_table_the_stage_ends(batches):
    problem = Scale(still(batches), limit=-1)
    stage = GaussNewton(problem)
    losses = []
    while not stage.finished:
        losses.append(stage.step())
        assert len(losses) < 10
    assert len(set(losses)) == 1
    assert torch.equal(problem.accepted, problem.start()), "nothing but the start"


def test_derivatives_that_overflow_end_the_stage_where_it_stands(batches):
    class Steep(Scale):
        def linearise(self, theta, weights, difference):
            for y, dy in super().linearise(theta, weights, difference):
                yield y, dy * math.inf

    problem = Steep(still(batches))
    stage = GaussNewton(problem)
    assert stage.step() == log_mean(errors(problem.samples(problem.start()), problem.batches))
    assert stage.finished
    assert torch.equal(problem.accepted, problem.start())


def test_an_error_of_the_network_is_not_taken_for_one(batches):
    class Broken(Scale):
        def samples(self, theta):
            if theta > self.limit:
                raise ValueError("of the network")
            return super().samples(theta)

    with pytest.raises(ValueError, match="of the network"):
        GaussNewton(Broken(still(batches), limit=-1)).step()


def test_samples_that_are_not_finite_are_survived(batches):
    class Wild(Scale):
        def samples(self, theta):
            return [y if theta < 0.99 else y * torch.nan for y in super().samples(theta)]

    stage = GaussNewton(Wild(still(batches)))
    loss = stage.step()
    assert math.isfinite(loss)
    assert stage.theta.item() < 0.99


def test_a_state_goes_on_where_it_was(batches):
    batches = batches[:1]
    whole = GaussNewton(PROBLEMS["projection"](batches))
    losses = [whole.step() for _ in range(3)]
    first = GaussNewton(PROBLEMS["projection"](batches))
    first.step()
    state = first.state()
    other = GaussNewton(PROBLEMS["projection"](batches))
    other.resume(state)
    assert [other.step() for _ in range(2)] == losses[1:]
    assert torch.equal(other.theta, whole.theta)


def test_the_loss_is_the_mean_logarithm(batches):
    """Few samples that go astray do not decide: one hopeless path costs the others next to nothing."""
    good = Scale(still(batches))
    paths = good.batches[0]
    x1 = paths.x1.clone()
    x1[0] = -20 * x1[0]
    lost = dataclasses.replace(paths, ends=paths.ends._replace(x1=x1))
    stage = GaussNewton(Scale([lost]))
    for _ in range(12):
        stage.step()
    assert stage.theta.item() == pytest.approx(1, abs=1e-2)
    plain = (paths.noise.x0 * x1).sum() / paths.noise.x0.square().sum()
    assert abs(plain - 1) > 0.5


def test_a_number_that_moves_nothing_does_not_spoil_the_steps():
    """One evaluation from (0, 0) is the mean whatever the scale of that: its derivative is rounding, by which steps of
    2e6 were taken, and refused."""
    solver = fit(
        toy.load("toy:checkerboard"),
        **{"nfe": 1, "family": "rk1", "objective": "endpoint", "paths": 64, "validation_paths": 64},
        progress=False,
    )
    assert solver.validation["rmse"] < 0.3 < solver.validation["baseline_rmse"]


def test_no_gradient_of_the_network_is_needed(batches):
    u = batches[0].model.velocity
    seen = []

    def opaque(t, x):
        seen.append(torch.is_grad_enabled())
        return torch.from_numpy(u(t, x).numpy())

    model = dataclasses.replace(batches[0].model, velocity=opaque)
    for make_problem in PROBLEMS.values():
        losses = []
        for one in (batches[:1], [dataclasses.replace(batches[0], model=model)]):
            problem = make_problem(batches[:1])
            problem.batches, problem.model = one, one[0].model
            losses.append(GaussNewton(problem).step())
        assert losses[0] == losses[1]
    assert seen
    assert not any(seen), "and none is recorded"


ROUNDED = {
    "float64": (F64, lambda x: x, (1e-3,)),
    "float32": (torch.float32, lambda x: x, (1e-3, 1e-2)),
    "TF32": (torch.float32, lambda x: ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32), (1e-2,)),
    "bfloat16": (torch.float32, lambda x: x.bfloat16().to(x), (1e-1,)),
}


@pytest.mark.parametrize(("dtype", "rounding", "expected"), ROUNDED.values(), ids=ROUNDED)
def test_the_difference_grows_with_the_rounding(dtype, rounding, expected):
    u = mixture(CondOT())
    model = Model(
        velocity=lambda t, x: rounding(u(t, rounding(x))), shape=(3,), schedule=CondOT(), domain=(0, 1), dtype=dtype
    )
    smooth = dataclasses.replace(model, velocity=u)
    batch = dataclasses.replace(exactly(smooth, 32, tolerance=1e-5), model=model)
    assert smoothest_difference(batch) in expected


def test_the_difference_survives_a_velocity_that_says_nothing():
    assert smoothest_difference(still(None)[0]) in DIFFERENCES
    wild = dataclasses.replace(still(None)[0], model=model_of(lambda t, x: x / 0))
    assert smoothest_difference(wild) in DIFFERENCES
