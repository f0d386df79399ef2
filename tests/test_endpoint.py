import dataclasses

import pytest
import torch

from bespoke_solvers.endpoint import EndPoint, along, main_directions, orthonormal, push_forward
from bespoke_solvers.families import NonStationary, make
from bespoke_solvers.metrics import mse
from bespoke_solvers.regression import closed_form, errors, log_mean
from bespoke_solvers.schedules import EDM, VP, CondOT, Cosine
from bespoke_solvers.table import sample
from bespoke_solvers.velocity import Model
from problems import F64, counted, exactly, full_table, mixture, model_of, non_stationary, ones


@pytest.fixture(scope="module")
def batches():
    model = model_of(mixture(CondOT()))
    return [exactly(model), exactly(model, first=8)]


def perturbed(family, seed=0, size=0.1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in family.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator, dtype=F64)
    return family


FAMILIES = {
    "ns": lambda: NonStationary(full_table(4)),
    "ns, start held": lambda: NonStationary(full_table(4), learn_start=False),
    "rk1": lambda: perturbed(make("rk1", 4)),
    "rk2": lambda: perturbed(make("rk2", 6)),
    "time of rk2": lambda: perturbed(make("rk2", 4, "time")),
}


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


def cost(moving, n, dimensions=3):
    """The n evaluations of the run; at each stage one along each direction its y may move in, and one along its t."""
    return n + sum(min(before_y, dimensions) + t for before_y, t in moving)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_stage_costs_what_moves_there_and_no_more_than_the_dimensions(batches, n):
    """y_k moves with the times before k and with rows 0 to k, which have 1, 2, ..., k + 1 numbers."""
    batches, counter = counted(batches)
    problem = EndPoint(NonStationary(full_table(n)), batches)
    list(problem.linearise(problem.start(), ones(batches), 1e-3))
    expected = cost([(k + (k + 1) * (k + 2) // 2, 1) for k in range(n)], n)
    assert counter.evaluations == 16 * expected


def test_a_held_start_costs_nothing(batches):
    batches, counter = counted(batches)
    n = 4
    problem = EndPoint(NonStationary(full_table(n), learn_start=False), batches)
    assert len(problem.start()) == 2 * n - 1 + n * (n + 1) // 2
    list(problem.linearise(problem.start(), ones(batches), 1e-3))
    expected = cost([(0, 0)] + [(k - 1 + (k + 1) * (k + 2) // 2 - 1, 1) for k in range(1, n)], n)
    assert counter.evaluations == 16 * expected


def smooth_problem(dimensions=12):
    """A velocity that bends in all dimensions, less and less."""
    scales = 0.6 ** torch.arange(dimensions, dtype=F64)
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(dimensions, dimensions, generator=generator, dtype=F64) / dimensions**0.5
    model = Model(
        velocity=lambda t, x: torch.tanh(x @ mixing) * scales - t * x, shape=(dimensions,), schedule=CondOT(), dtype=F64
    )
    return exactly(model)


def test_few_directions_come_close_to_all():
    """The error falls with their number, to nothing where there are as many as dimensions."""
    batch = smooth_problem()
    problem = EndPoint(NonStationary(full_table(6)), [batch])
    theta = problem.start()
    exact = torch.autograd.functional.jacobian(
        lambda theta: sample(problem.table(theta), batch.model.bind(), batch.noise.x0), theta
    ).movedim(-1, 0)
    tangents = problem.tangents(theta)
    off = [
        ((push_forward(problem.table(theta), tangents, batch, 1e-6, few).dy - exact).norm() / exact.norm()).item()
        for few in (1, 3, 6, 12)
    ]
    assert off == sorted(off, reverse=True)
    assert off[2] < 0.02
    assert off[3] < 1e-5


def test_few_directions_bound_the_cost():
    (batch,), counter = counted([smooth_problem()])
    problem = EndPoint(NonStationary(full_table(6)), [batch])
    theta = problem.start()
    push_forward(problem.table(theta), problem.tangents(theta), batch, 1e-3, 4)
    assert counter.evaluations == len(batch.x1) * (6 + 6 + 1 + 5 * 4)


@pytest.mark.parametrize("count", [2, 5])
def test_main_directions_span_what_they_can(count):
    generator = torch.Generator().manual_seed(0)
    plane = torch.randn(2, 4, 6, generator=generator, dtype=F64)
    vectors = torch.einsum("mr,rbd->mbd", torch.randn(count, 2, generator=generator, dtype=F64), plane)
    vectors = torch.cat([vectors, torch.zeros(1, 4, 6, dtype=F64)]).reshape(count + 1, 4, 2, 3)
    basis, coefficients = main_directions(vectors, 3)
    assert len(basis) == min(count, 3), "a vector that does not move needs no direction"
    flat = basis.flatten(2)
    expected = torch.diag((torch.arange(len(basis)) < 2).double()).expand(4, -1, -1)  # they lie in a plane
    torch.testing.assert_close(torch.einsum("rbd,sbd->brs", flat, flat), expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(torch.einsum("mbr,rb...->mb...", coefficients, basis), vectors)


class Small:
    """A conditional velocity on a GPU that has room for so many samples."""

    def __init__(self, most):
        self.most, self.sizes = most, []

    def __call__(self, t, x, condition):
        self.sizes.append(len(x))
        if len(x) > self.most:
            raise torch.cuda.OutOfMemoryError("no room")
        return torch.tanh(x * condition["scale"] + t)


def conditional(most=99):
    """Three samples, each with its own condition."""
    model = Model(
        velocity=Small(most),
        shape=(3,),
        schedule=CondOT(),
        dtype=F64,
        draw_condition=lambda generator: {"scale": torch.rand(1, generator=generator, dtype=F64)},
    )
    return dataclasses.replace(exactly(dataclasses.replace(model, velocity=Small(99)), 3), model=model)


def test_directions_go_together_as_if_alone():
    batch, t = conditional(), torch.tensor(0.3, dtype=F64)
    x0, scale = batch.noise.x0, batch.noise.condition["scale"]
    directions = torch.randn(5, 3, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    u_y = torch.tanh(x0 * scale + t)
    got = along(batch, t, x0, u_y, directions, 1e-6)
    torch.testing.assert_close(got, (1 - u_y**2) * scale * directions, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(got[2:3], along(batch, t, x0, u_y, directions[2:3], 1e-6))
    assert batch.model.velocity.sizes == [15, 3]


@pytest.mark.parametrize(
    ("together", "most", "sizes"),
    [(0, 99, {3}), (18, 99, {3, 6}), (10**6, 99, {3, 9}), (10**6, 3, {3, 9})],
    ids=["one by one", "two", "all", "no room"],
)
def test_as_many_directions_go_together_as_there_is_room_for(together, most, sizes):
    """At the first stage there is one, then there are three; once these had no room they go one by one."""
    alone, batch = conditional(), conditional(most)
    expected, problem = (EndPoint(NonStationary(full_table(3)), [each]) for each in (alone, batch))
    problem.together = together
    for _ in range(2):
        ((_, dy),) = problem.linearise(problem.start(), ones([batch]), 1e-6)
    ((_, exact),) = expected.linearise(expected.start(), ones([alone]), 1e-6)
    torch.testing.assert_close(dy, exact, rtol=1e-6, atol=1e-6)
    assert set(batch.model.velocity.sizes) == sizes
    assert most > 3 or batch.model.velocity.sizes.count(9) == 1


def test_without_room_for_one_direction_the_error_is_told():
    problem = EndPoint(NonStationary(full_table(3)), [conditional(2)])
    problem.together = 10**6
    with pytest.raises(torch.cuda.OutOfMemoryError):
        list(problem.linearise(problem.start(), ones(problem.batches), 1e-3))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_bases_of_vectors_that_are_tiny_huge_or_none(dtype):
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(3, 3, 8, generator=generator, dtype=dtype)
    vectors[2, 0] *= 1e-25
    vectors[2, 1] *= 1e20
    vectors[:, 2] = 0
    basis = orthonormal(vectors)
    products = torch.einsum("rbd,sbd->brs", basis, basis)
    torch.testing.assert_close(products[:2], torch.eye(3, dtype=dtype).expand(2, -1, -1))
    assert not basis[:, 2].any()


@pytest.mark.parametrize("difference", [1e-3, 1e-1])
def test_differences_are_as_large_as_they_are_said_to_be(batches, difference):
    """Inputs are moved by `difference` in their norm; times by that part of a step: networks are rough in time."""
    inner, calls = batches[0].model.velocity, []

    def velocity(t, x):
        calls.append((t, x))
        return inner(t, x)

    model = dataclasses.replace(batches[0].model, velocity=velocity)
    problem = EndPoint(NonStationary(full_table(4)), [dataclasses.replace(batches[0], model=model)])
    list(problem.linearise(problem.start(), ones(batches[:1]), difference))
    (t, x), along_x, along_t = calls[0], *calls[4:6]
    assert along_x[0] == t
    for moved in along_x[1].split(len(x)):
        assert mse(moved, x).sqrt().mean().item() == pytest.approx(difference)
    assert (along_t[0] - t).item() == pytest.approx(difference / 4)
    assert torch.equal(along_t[1], x)


@pytest.mark.parametrize("end", [0.05, 0.6])
def test_times_stay_inside_a_narrow_domain(end):
    """Neither room before the time nor after it is as large as the difference."""
    u, seen = mixture(CondOT()), []

    def velocity(t, x):
        seen.append(t.item())
        return u(t, x)

    model = Model(velocity=velocity, shape=(3,), schedule=CondOT(), dtype=F64, domain=(0.0, end))
    batch = exactly(model, 4)
    for first in (0.0, end / 2, 0.99 * end):
        table = closed_form(torch.tensor([first], dtype=F64), [batch]).table
        problem = EndPoint(NonStationary(table), [batch])
        seen.clear()
        ((_, dy),) = problem.linearise(problem.start(), ones([batch]), 1.0)
        assert 0 <= min(seen) < max(seen) <= end
        assert dy.isfinite().all()


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
