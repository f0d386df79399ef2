import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bespoke_solvers import Model, reference
from bespoke_solvers.bound import bound_weights, step_lipschitz
from bespoke_solvers.families import Bespoke, make
from bespoke_solvers.generic import EULER, HEUN, MIDPOINT, RK4
from bespoke_solvers.metrics import norm
from bespoke_solvers.objectives import bespoke_loss, x_aux
from bespoke_solvers.schedules import VP, CondOT
from bespoke_solvers.table import sample
from bespoke_solvers.velocity import Counter
from problems import F64, Linear, Sine, mixture, model_of
from test_families import perturb


def exact_paths(u, count=4):
    model = model_of(u)
    return reference.solve(model, model.noise(range(count)), rtol=1e-9, atol=1e-9, max_evaluations=20000)


@given(st.integers(1, 5), st.integers(0, 1000), st.floats(0.5, 3.0))
def test_lemmas_d2_and_d3(n, seed, L_tau):
    h = 1 / n
    rk1, rk2 = perturb(make("rk1", n), seed), perturb(make("rk2", 2 * n), seed)
    _, dt, s, ds = rk1.nodes()
    L_bar = ds.abs() / s[:-1] + dt * L_tau
    torch.testing.assert_close(step_lipschitz(rk1, L_tau), s[:-1] / s[1:] * (1 + h * L_bar))
    _, dt, s, ds = rk2.nodes()
    L_bar = ds.abs() / s[:-1] + dt * L_tau
    expected = s[:-1:2] / s[2::2] * (1 + h * L_bar[1::2] * (1 + h / 2 * L_bar[::2]))
    torch.testing.assert_close(step_lipschitz(rk2, L_tau), expected)


def test_weights_are_products_of_what_follows():
    M = bound_weights(torch.tensor([2.0, 3.0, 5.0, 7.0], dtype=F64))
    assert M.tolist() == [105, 35, 7, 1], "M_i = L_i ... L_{n-1}, with L_n = 1; L_0 does not enter"


@given(
    st.sampled_from([EULER, MIDPOINT, HEUN, RK4]),
    st.integers(1, 4),
    st.integers(0, 1000),
    st.sampled_from([Linear(1.0), Linear(0.5, seed=1), Sine(1.0), Sine(0.7)]),
)
def test_the_loss_bounds_the_error_of_every_sample(tableau, n, seed, u):
    family, paths = perturb(Bespoke(n, tableau), seed), exact_paths(u)
    loss = bespoke_loss(family, paths, L_tau=1.0)
    error = norm(sample(family(), u, paths.noise.x0) - paths.x1)
    assert (loss >= error * (1 - 1e-6)).all()


def test_a_lipschitz_constant_too_small_does_not_bound():
    """The bound is sharp enough to fail where its premise does."""
    u = Linear(4.0)
    paths, family = exact_paths(u), make("rk1", 6)
    error = norm(sample(family(), u, paths.noise.x0) - paths.x1)
    assert (bespoke_loss(family, paths, L_tau=0.0) < error).any()
    assert (bespoke_loss(family, paths, L_tau=4.0) >= error).all()


def test_the_loss_is_the_sum_of_the_printed_algorithm():
    """Algorithm 2, step by step, on a linear field whose path is known."""
    u, n = Linear(1.5), 3
    paths, family = exact_paths(u), perturb(make("rk2", 2 * n), 5)
    t, steps = family.step_times(), family.steps()
    x = u.path(t, paths.noise.x0)
    M = bound_weights(step_lipschitz(family, 1.0))
    expected = 0
    for i in range(n):
        one = type(steps)(steps.t[:, i], steps.a[:, i], steps.b[..., i])
        expected = expected + M[i] * norm(x[i + 1] - sample(one, u, x[i]))
    torch.testing.assert_close(bespoke_loss(family, paths), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("field", ["linear", "mixture", "eps-vp"])
def test_the_gradient_through_x_aux_is_that_of_the_true_path(field):
    """Against finite differences of the loss with the path solved to 1e-9, in random directions of theta."""
    if field == "eps-vp":
        vp = Model(velocity=mixture(VP()), shape=(3,), schedule=VP(), prediction="epsilon", dtype=F64)
        paths = reference.solve(vp, vp.noise(range(4)), rtol=1e-9, atol=1e-9, max_evaluations=20000)
    else:
        paths = exact_paths(Linear(1.5) if field == "linear" else mixture(CondOT()))
    family = perturb(make("rk2", 6), 3, size=0.1)
    bespoke_loss(family, paths).mean().backward()
    parameters = list(family.parameters())
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        directions = [torch.randn(p.shape, generator=generator, dtype=F64) for p in parameters]
        slope = sum((p.grad * d).sum() for p, d in zip(parameters, directions, strict=True)).item()
        values = []
        for h in (1e-5, -1e-5):
            with torch.no_grad():
                for p, d in zip(parameters, directions, strict=True):
                    p += h * d
                values.append(bespoke_loss(family, paths).mean().item())
                for p, d in zip(parameters, directions, strict=True):
                    p -= h * d
        assert slope == pytest.approx((values[0] - values[1]) / 2e-5, rel=2e-4)


def test_without_x_aux_the_gradient_would_be_wrong():
    paths, family = exact_paths(Linear(1.5)), perturb(make("rk2", 6), 3, size=0.1)
    t = family.step_times()[1:-1]
    assert torch.autograd.grad(x_aux(paths, t).sum(), family.theta_t, retain_graph=True)[0].abs().max() > 0.01
    assert not paths.at(t).x.requires_grad


@pytest.mark.parametrize(("name", "nfe", "calls"), [("rk1", 5, 1), ("rk2", 10, 2)])
def test_all_steps_are_one_call_per_stage(name, nfe, calls):
    counter = Counter(mixture(CondOT()))
    paths = exact_paths(counter)
    counter.calls = counter.evaluations = 0
    bespoke_loss(make(name, nfe), paths)
    assert (counter.calls, counter.evaluations) == (calls, 4 * nfe)


def test_exact_steps_have_a_finite_gradient():
    """On a constant field every step is exact: the norm is 0 there and must not give NaN."""
    paths, family = exact_paths(lambda t, x: torch.ones_like(x)), make("rk2", 4)
    bespoke_loss(family, paths).mean().backward()
    assert all(p.grad.isfinite().all() for p in family.parameters())


def test_conditions_travel_with_their_noise():
    """Each local step of each sample is evaluated with that sample's condition."""
    model = Model(
        velocity=lambda t, x, c: torch.sin(3 * t).reshape(-1, 1) * c[:, None].to(x) * x,
        shape=(3,),
        schedule=CondOT(),
        draw_condition=lambda generator: torch.randint(5, (), generator=generator),
        dtype=F64,
    )
    together = bespoke_loss(make("rk2", 6), reference.solve(model, model.noise(range(4))))
    alone = torch.cat([bespoke_loss(make("rk2", 6), reference.solve(model, model.noise([i]))) for i in range(4)])
    torch.testing.assert_close(together, alone, rtol=0.02, atol=1e-5)
