import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bespoke_solvers import dedicated, toy
from bespoke_solvers.families import FAMILIES, NonStationary, make
from bespoke_solvers.generic import TABLEAUS, baseline
from bespoke_solvers.schedules import EDM, VP, CondOT, Cosine, DiscreteVP
from bespoke_solvers.table import Table, sample
from bespoke_solvers.velocity import Counter, Model
from problems import F64, SCHEDULES, mixture, points, stable_diffusion_alphas


def still(schedule, prediction):
    """A model of which only the domain and the scale of its start matter."""
    return Model(velocity=lambda t, x: 0 * x, shape=(3,), schedule=schedule, prediction=prediction, dtype=F64)


MODELS = {
    "flow": still(CondOT(), "flow"),
    "epsilon on cosine": still(Cosine(), "epsilon"),
    "epsilon on VP": still(VP(), "epsilon"),
    "x-start on EDM": still(EDM(), "x-start"),
    "late start": dataclasses.replace(still(EDM(), "flow"), domain=(0.2, 0.9)),
    "epsilon on Stable Diffusion": still(DiscreteVP(stable_diffusion_alphas()), "epsilon"),
}


def assert_same(got: Table, expected: Table, tolerance: float = 1e-15):
    for name in ("t", "a", "b"):
        torch.testing.assert_close(getattr(got, name), getattr(expected, name), rtol=tolerance, atol=tolerance)


def random_table(nfe: int, seed: int) -> Table:
    generator = torch.Generator().manual_seed(seed)
    t = torch.rand(nfe, generator=generator, dtype=F64).sort().values
    a, b = (torch.randn(shape, generator=generator, dtype=F64) for shape in ((nfe + 1,), (nfe + 1, nfe)))
    return Table(t, a, b.tril(-1))


def random_bespoke(family: str, nfe: int, seed: int) -> Table:
    learner, generator = make(family, nfe), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter += 0.4 * torch.randn(parameter.shape, generator=generator, dtype=F64)
    return learner().detach()


@pytest.mark.parametrize("method", TABLEAUS)
@pytest.mark.parametrize("nfe", [4, 12])
def test_runge_kutta_methods_are_non_stationary(method, nfe):
    table = baseline(method, nfe)
    family = NonStationary(table)
    assert family.nfe == nfe
    assert_same(family().detach(), table)


@settings(max_examples=10)
@given(st.sampled_from(["rk1", "rk2"]), st.integers(1, 6), st.integers(0, 1000))
def test_bespoke_solvers_are_non_stationary(name, steps, seed):
    table = random_bespoke(name, 2 * steps, seed)
    assert_same(NonStationary(table)().detach(), table)


@pytest.mark.parametrize("method", dedicated.METHODS)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_dedicated_methods_are_non_stationary(method, model):
    table = dedicated.baseline(method, 7 if method == "edm-heun" else 6, model)
    plain = table.off(model)
    family = NonStationary(plain)
    assert_same(family().detach(), plain)
    assert_same(family().detach().on(model), table, tolerance=1e-13)
    assert plain.t[0] == 0
    assert plain.a[0] == pytest.approx(1)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_off_is_the_inverse_of_on(model, seed):
    table = random_table(5, seed)
    inside = Table(table.t * (model.t_hi - model.t_lo) / (1 - model.t_lo), table.a, table.b)
    on = inside.on(model)
    assert on.t.min() >= model.t_lo
    assert on.t.max() <= model.t_hi
    assert_same(on.off(model), inside, tolerance=1e-14)
    assert_same(on.off(model).on(model), on, tolerance=1e-14)


def test_off_is_not_the_identity_where_the_domain_begins_late():
    """The test above would also pass if both did nothing."""
    model = MODELS["late start"]
    on = random_table(5, 0).on(model)
    assert model.start_scale != 1
    torch.testing.assert_close(on.off(model).a * model.start_scale, on.a)
    torch.testing.assert_close(on.off(model).b * 0.8, on.b, rtol=1e-6, atol=0)


@given(st.integers(1, 8), st.integers(0, 10**6), st.floats(1e-3, 10))
def test_times_never_decrease_nor_leave_the_unit_interval(nfe, seed, size):
    family, generator = NonStationary(baseline("euler", nfe)), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in family.parameters():
            parameter.copy_(size * torch.randn(parameter.shape, generator=generator, dtype=F64))
    t = family().t
    assert (t.diff() >= 0).all()
    assert t[0] >= 0
    assert t[-1] <= 1


def test_decreasing_times_are_refused():
    table = random_table(3, 0)
    with pytest.raises(ValueError, match=r"must not decrease, got \[0\.\d+, 0\.\d+, 0\.\d+\]"):
        NonStationary(Table(table.t.flip(0), table.a, table.b))
    equal = Table(torch.full((3,), 0.5, dtype=F64), table.a, table.b)
    assert_same(NonStationary(equal)().detach(), equal)


def loss(family):
    return sample(family(), mixture(CondOT()), points()).square().mean()


def test_gradients_reach_every_learned_number():
    family = NonStationary(random_table(5, 1))
    loss(family).backward()
    for name, parameter in family.named_parameters():
        assert (parameter.grad != 0).all(), name
    count = sum(parameter.numel() for parameter in family.parameters())
    assert count == 5 + 6 + 15, "the numbers of a table with five evaluations"


def test_the_start_can_be_held():
    free, held = NonStationary(random_table(4, 2)), NonStationary(random_table(4, 2), learn_start=False)
    start = held().detach()
    for family in (free, held):
        optimizer = torch.optim.SGD([p for p in family.parameters() if p.requires_grad], lr=0.01)
        loss(family).backward()
        optimizer.step()
    assert held().t[0] == start.t[0]
    assert held().a[0] == start.a[0]
    assert (held().t[1:] != start.t[1:]).all()
    assert (held().a[1:] != start.a[1:]).all()
    assert (held().b.tril(-1) != start.b).sum() == 10
    assert free().t[0] != start.t[0]
    assert free().a[0] != start.a[0]


def test_the_scale_alone_can_be_held():
    family = NonStationary(random_table(4, 2), learn_scale=False)
    before = family().detach()
    loss(family).backward()
    torch.optim.SGD([p for p in family.parameters() if p.requires_grad], lr=0.01).step()
    assert family().a[0] == before.a[0]
    assert family().t[0] != before.t[0]
    assert family.learn == "all but the scale of the noise"
    assert not NonStationary(random_table(4, 2), learn_start=False).learn_scale
    model = toy.load("toy:checkerboard-edm")
    assert family.held_scale(model) == pytest.approx(before.a[0].item() * model.start_scale)
    assert NonStationary(random_table(4, 2)).held_scale(model) is None


@pytest.mark.parametrize("learn_start", [True, False])
def test_a_table_is_taken_over(learn_start):
    family, table = NonStationary(baseline("euler", 5), learn_start), random_table(5, 3)
    parameters = list(family.parameters())
    family.load_table(table)
    assert_same(family().detach(), table)
    assert all(a is b for a, b in zip(family.parameters(), parameters, strict=True)), "an optimiser keeps hold of them"
    assert family.theta_t0.requires_grad == family.theta_a0.requires_grad == learn_start
    table.b[1, 0] += 1
    assert family().b[1, 0] != table.b[1, 0], "a copy"


@pytest.mark.parametrize(("nfe", "base"), [(1, "euler"), (4, "midpoint"), (7, "euler")])
def test_any_number_of_evaluations_is_possible(nfe, base):
    family, counter = make("ns", nfe), Counter(mixture(CondOT()))
    sample(family().detach(), counter, points())
    assert counter.calls == family.nfe == nfe
    assert family.base == base
    assert_same(family.base_table(), baseline(base, nfe))


def test_the_family_is_listed():
    assert FAMILIES[0] == "ns"
    assert_same(make("ns", 6)().detach(), baseline("euler", 6))
    with pytest.raises(ValueError, match="learn = 'time' is for rk1 and rk2"):
        make("ns", 6, "time")


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_method_runs_the_same_through_the_family(schedule):
    model = Model(velocity=mixture(schedule), shape=(3,), schedule=schedule, domain=(0.1, 0.9), dtype=F64)
    table = dedicated.baseline("unipc", 6, model)
    again = NonStationary(table.off(model))().detach().on(model)
    torch.testing.assert_close(sample(again, model.bind(), points()), sample(table, model.bind(), points()))
