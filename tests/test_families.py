import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bespoke_solvers.families import Bespoke, bespoke_table, make
from bespoke_solvers.generic import EULER, HEUN, MIDPOINT, RK4, baseline, uniform_grid
from bespoke_solvers.scale_time import ScaleTime
from bespoke_solvers.schedules import CondOT
from bespoke_solvers.table import sample
from bespoke_solvers.velocity import Counter
from problems import F64, Sine, mixture, points, solve_finely

BASES = [EULER, MIDPOINT, HEUN, RK4]


def perturb(family: Bespoke, seed: int, size: float = 0.3) -> Bespoke:
    """The family at a random theta."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in family.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator, dtype=F64)
    return family


def random_smooth_transform(seed: int):
    """A random smooth t_r, increasing from 0 to 1, and s_r > 0 with s_0 = 1, with their derivatives."""
    p, q, w = (torch.rand(3, generator=torch.Generator().manual_seed(seed), dtype=F64) * 2 - 1).tolist()

    def transform(r):
        pi_r = math.pi * r
        t = r + 0.25 * p * torch.sin(pi_r) / math.pi + 0.25 * q * torch.sin(2 * pi_r) / (2 * math.pi)
        dt = 1 + 0.25 * p * torch.cos(pi_r) + 0.25 * q * torch.cos(2 * pi_r)
        s = torch.exp(0.5 * q * r + 0.3 * w * torch.sin(2 * pi_r))
        return ScaleTime(t, dt, s, s * (0.5 * q + 0.3 * w * 2 * math.pi * torch.cos(2 * pi_r)))

    return transform


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("tableau", "order"), [(EULER, 1), (MIDPOINT, 2)])
def test_theorem_2_2_the_transform_keeps_the_order(tableau, order, seed):
    u, x0 = Sine(1.0), points()
    exact = solve_finely(u, uniform_grid(400), x0)
    transform = random_smooth_transform(seed)
    errors = [(sample(bespoke_table(tableau, transform, n), u, x0) - exact).norm() for n in (40, 80)]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.1)


@pytest.mark.parametrize("tableau", BASES, ids=lambda tableau: tableau.name)
@pytest.mark.parametrize("n", [1, 3, 5])
def test_identity_theta_is_the_base_method(tableau, n):
    table, base = Bespoke(n, tableau)(), baseline(tableau.name, n * tableau.stages)
    for name in ("t", "a", "b"):
        torch.testing.assert_close(getattr(table, name), getattr(base, name), rtol=0, atol=3e-16)


@given(st.integers(1, 6), st.integers(0, 1000))
def test_rk1_bespoke_is_equation_17(n, seed):
    family, u, x = perturb(make("rk1", n), seed), mixture(CondOT()), points()
    t, dt, s, ds = family.nodes()
    h = 1 / n
    got = sample(family(), u, x)
    for i in range(n):
        x = (s[i] + h * ds[i]) / s[i + 1] * x + h * dt[i] * s[i] / s[i + 1] * u(t[i], x)
    torch.testing.assert_close(got, x, rtol=1e-11, atol=1e-11)


@given(st.integers(1, 6), st.integers(0, 1000))
def test_rk2_bespoke_is_equations_19_and_20(n, seed):
    family, u, x = perturb(make("rk2", 2 * n), seed), mixture(CondOT()), points()
    t, dt, s, ds = family.nodes()  # node 2i is i, node 2i + 1 is i + 1/2
    h = 1 / n
    got = sample(family(), u, x)
    for i in range(0, 2 * n, 2):
        z = (s[i] + h / 2 * ds[i]) * x + h / 2 * s[i] * dt[i] * u(t[i], x)
        half, end = i + 1, i + 2
        increment = ds[half] / s[half] * z + dt[half] * s[half] * u(t[half], z / s[half])
        x = s[i] / s[end] * x + h / s[end] * increment
    torch.testing.assert_close(got, x, rtol=1e-11, atol=1e-11)


@given(st.sampled_from(BASES), st.integers(1, 20), st.integers(0, 1000), st.floats(0.1, 3.0))
def test_the_constraints_hold_for_every_theta(tableau, n, seed, size):
    t, dt, s, _ = perturb(Bespoke(n, tableau), seed, size).nodes()
    assert t[0] == 0
    assert t[-1] == 1
    assert (t.diff() > 0).all()
    assert (dt > 0).all()
    assert s[0] == 1
    assert (s > 0).all()


@pytest.mark.parametrize("tableau", BASES, ids=lambda tableau: tableau.name)
def test_the_steps_are_the_table_cut_into_pieces(tableau):
    n, u, x = 3, mixture(CondOT()), points()
    family = perturb(Bespoke(n, tableau), 0)
    expected = sample(family(), u, x)
    steps = family.steps()
    for i in range(n):
        one = type(steps)(steps.t[:, i], steps.a[:, i], steps.b[..., i])
        x = sample(one, u, x)
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(family.step_times()[:-1], steps.t[0])


def rank(of, family: Bespoke) -> int:
    """The rank of theta -> of(family) at a random theta."""
    parameters = dict(perturb(family, 1).named_parameters())

    def values(theta):
        result = torch.func.functional_call(_Returning(family, of), {f"family.{k}": v for k, v in theta.items()}, ())
        return torch.cat([value.flatten() for value in result])

    jacobian = torch.func.jacrev(values)(parameters)
    return int(torch.linalg.matrix_rank(torch.cat([j.flatten(1) for j in jacobian.values()], 1), rtol=1e-10))


class _Returning(torch.nn.Module):
    def __init__(self, family, of):
        super().__init__()
        self.family, self.of = family, of

    def forward(self):
        return self.of(self.family)


@pytest.mark.parametrize(("name", "of_transform", "of_table"), [("rk1", (4, -1), (3, -1)), ("rk2", (8, -1), (7, -1))])
@pytest.mark.parametrize("n", [2, 4])
def test_ranks(name, n, of_transform, of_table):
    """4n - 1 and 8n - 1 parameters as the paper counts them; in the table one scale per evaluation is a gauge."""
    nfe = n if name == "rk1" else 2 * n
    assert rank(lambda family: family.nodes(), make(name, nfe)) == of_transform[0] * n + of_transform[1]

    def entries(family):
        table = family()
        return table.t, table.a, table.b

    assert rank(entries, make(name, nfe)) == of_table[0] * n + of_table[1]


@pytest.mark.parametrize(
    ("learn", "learned"), [("time", {"t", "dt"}), ("scale", {"s", "ds"}), ("both", {"t", "dt", "s", "ds"})]
)
def test_time_or_scale_alone(learn, learned):
    family = make("rk2", 8, learn)
    named = {name.removeprefix("theta_") for name, p in family.named_parameters() if p.requires_grad}
    assert named == learned


@pytest.mark.parametrize(("name", "nfe", "n"), [("rk2", 10, 5), ("rk1", 10, 10)])
def test_nfe_of_a_sample(name, nfe, n):
    family, counter = make(name, nfe), Counter(mixture(CondOT()))
    sample(family().detach(), counter, points())
    assert family.n == n
    assert counter.calls == nfe == family.nfe


def test_impossible_families_are_refused():
    with pytest.raises(ValueError, match="multiple of 2, got 7"):
        make("rk2", 7)
    with pytest.raises(ValueError, match="unknown family 'rk3'; expected one of ns, rk1, rk2"):
        make("rk3", 6)
    with pytest.raises(ValueError, match="at least one step"):
        Bespoke(0)
