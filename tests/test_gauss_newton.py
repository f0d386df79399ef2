import dataclasses
import math
from itertools import pairwise

import pytest
import torch

from bespoke_solvers.families import NonStationary, make
from bespoke_solvers.gauss_newton import (
    DIFFERENCES,
    EndPoint,
    GaussNewton,
    Problem,
    Projection,
    smoothest_difference,
)
from bespoke_solvers.generic import baseline
from bespoke_solvers.metrics import mse
from bespoke_solvers.reference import solve
from bespoke_solvers.regression import closed_form, errors, log_mean, warp
from bespoke_solvers.schedules import EDM, VP, CondOT, Cosine
from bespoke_solvers.table import Table, sample
from bespoke_solvers.velocity import Counter, Model
from problems import F64, mixture, model_of


def exactly(model, count=8, first=0, tolerance=1e-6):
    return solve(model, model.noise(range(first, first + count)), rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def batches():
    model = model_of(mixture(CondOT()))
    return [exactly(model), exactly(model, first=8)]


def counted(batches):
    """The same paths with a velocity that counts, and its counter."""
    counter = Counter(batches[0].model.velocity)
    model = dataclasses.replace(batches[0].model, velocity=counter)
    return [dataclasses.replace(paths, model=model) for paths in batches], counter


def perturbed(family, seed=0, size=0.1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in family.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator, dtype=F64)
    return family


def full_table(nfe: int, seed: int = 0) -> Table:
    """A sensible table in which no number is zero."""
    generator = torch.Generator().manual_seed(seed)
    euler = baseline("euler", nfe)
    a, b = (0.2 * torch.rand(value.shape, generator=generator, dtype=F64) for value in (euler.a, euler.b))
    return Table(0.05 + 0.9 * euler.t, euler.a + a, (euler.b + b).tril(-1))


def non_stationary(model, nfe=3):
    """The closed form's place to begin."""
    return NonStationary(closed_form(warp(model, nfe, 0.07, 1.0, 0.8), [exactly(model)]).table.off(model))


FAMILIES = {
    "ns": lambda: NonStationary(full_table(4)),
    "ns, start held": lambda: NonStationary(full_table(4), learn_start=False),
    "rk1": lambda: perturbed(make("rk1", 4)),
    "rk2": lambda: perturbed(make("rk2", 6)),
    "time of rk2": lambda: perturbed(make("rk2", 4, "time")),
}


def ones(batches):
    return [torch.ones(len(paths.x1), dtype=F64) for paths in batches]


@pytest.mark.parametrize("make_family", FAMILIES.values(), ids=FAMILIES)
def test_derivatives_are_those_of_autograd(batches, make_family):
    problem = EndPoint(make_family(), batches)
    theta = problem.start()
    linearised = list(problem.linearise(theta, ones(batches), 1e-6))
    assert len(linearised) == 2
    for (y, dy), paths in zip(linearised, batches, strict=True):

        def unrolled(theta, paths=paths):
            return sample(problem.table(theta), paths.model.bind(), paths.noise.x0)

        expected = torch.autograd.functional.jacobian(unrolled, theta).movedim(-1, 0)
        torch.testing.assert_close(y, unrolled(theta))
        torch.testing.assert_close(dy, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


DOMAINS = {
    "Cosine": Model(velocity=mixture(Cosine()), shape=(3,), schedule=Cosine(), prediction="epsilon", dtype=F64),
    "EDM": Model(velocity=mixture(EDM()), shape=(3,), schedule=EDM(), dtype=F64),
}


@pytest.mark.parametrize("model", DOMAINS.values(), ids=DOMAINS)
def test_derivatives_on_other_domains_and_scales(model):
    batch = exactly(model, 4)
    problem = EndPoint(non_stationary(model, 3), [batch])
    theta = problem.start()
    ((y, dy),) = problem.linearise(theta, ones([batch]), 1e-6)
    assert log_mean(errors([y], [batch])) < -3, "it is the table on the model"
    expected = torch.autograd.functional.jacobian(
        lambda theta: sample(problem.table(theta), model.bind(), batch.noise.x0), theta
    ).movedim(-1, 0)
    for got, exact in zip(dy, expected, strict=True):
        torch.testing.assert_close(got, exact, rtol=1e-3, atol=1e-3 * exact.abs().max().item())


@pytest.mark.parametrize("n", [1, 2, 5])
def test_stages_before_the_first_that_moves_cost_nothing(batches, n):
    """t_k and a_k, n - k each; a row k of b has k numbers, n - k each; and the n of the run itself."""
    batches, counter = counted(batches)
    problem = EndPoint(NonStationary(full_table(n)), batches)
    list(problem.linearise(problem.start(), ones(batches), 1e-3))
    expected = n + 2 * sum(n - k for k in range(n)) + sum(k * (n - k) for k in range(1, n))
    assert counter.calls == 2 * expected
    assert counter.evaluations == 16 * expected


def test_a_held_start_costs_nothing(batches):
    batches, counter = counted(batches)
    n = 4
    problem = EndPoint(NonStationary(full_table(n), learn_start=False), batches)
    assert len(problem.start()) == 2 * n - 1 + n * (n + 1) // 2
    list(problem.linearise(problem.start(), ones(batches), 1e-3))
    expected = n + 2 * sum(n - k for k in range(1, n)) + sum(k * (n - k) for k in range(1, n))
    assert counter.calls == 2 * expected


@pytest.mark.parametrize("difference", [1e-3, 1e-1])
def test_differences_are_as_large_as_they_are_said_to_be(batches, difference):
    """Each input is moved by `difference` in its norm or its time, whichever is more."""
    inner, moves = batches[0].model.velocity, []

    def velocity(t, x):
        if len(calls) >= 4:
            moves.append(max((t - calls[0][0]).abs().item(), mse(x, calls[0][1]).sqrt().mean().item()))
        calls.append((t, x))
        return inner(t, x)

    calls: list = []
    model = dataclasses.replace(batches[0].model, velocity=velocity)
    problem = EndPoint(NonStationary(full_table(4)), [dataclasses.replace(batches[0], model=model)])
    theta = problem.start()
    list(problem.linearise(theta, ones(batches[:1]), difference))
    first = list(problem.learned).index("theta_t0")
    assert first == 0
    assert moves[0] == pytest.approx(difference), "the first stage, along t_0"


def test_differences_stay_inside_the_domain():
    """On VP a time beyond 1 makes sigma, and with it the whole Jacobian, NaN: no step is then ever taken."""
    u, seen = mixture(VP()), []

    def velocity(t, x):
        seen.append(t.item())
        return u(t, x)

    model = Model(velocity=velocity, shape=(3,), schedule=VP(), prediction="epsilon", dtype=F64)
    batch = exactly(dataclasses.replace(model, velocity=u), 4)
    problem = EndPoint(
        NonStationary(
            closed_form(torch.tensor([0.3, 0.8, 0.999], dtype=F64), [dataclasses.replace(batch, model=model)]).table
        ),
        [dataclasses.replace(batch, model=model)],
    )
    ((_, dy),) = problem.linearise(problem.start(), ones([batch]), 1e-2)
    assert max(seen) <= model.t_hi
    assert dy.isfinite().all()


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


@pytest.mark.parametrize("method", ["heun", "rk4"])
def test_projection_begins_at_any_table(batches, method):
    """A stage of Heun's method and of RK4 lies at t = 1."""
    GaussNewton(Projection(NonStationary(baseline(method, 4)), batches)).step()


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
            raise ValueError("no table")
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
    assert problem.accepted is None


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
