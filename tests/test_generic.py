import math

import pytest
import torch

from bespoke_solvers.generic import DOPRI5, EULER, HEUN, MIDPOINT, RK4, Tableau, baseline, runge_kutta, uniform_grid
from bespoke_solvers.schedules import CondOT
from bespoke_solvers.table import sample
from bespoke_solvers.velocity import Counter
from problems import F64, Linear, Sine, mixture, points, solve_finely

KUTTA3 = Tableau("kutta3", 3, a=((), (1 / 2,), (-1.0, 2.0)), b=(1 / 6, 2 / 3, 1 / 6), c=(0.0, 1 / 2, 1.0))
METHODS = [EULER, MIDPOINT, HEUN, KUTTA3, RK4, DOPRI5]


def warped_grid(n: int) -> torch.Tensor:
    return uniform_grid(n) ** 1.5


@pytest.mark.parametrize("grid", [uniform_grid, warped_grid])
@pytest.mark.parametrize("tableau", METHODS, ids=lambda tableau: tableau.name)
def test_the_measured_order_is_the_declared_one(tableau, grid):
    u, x0 = Sine(1.0), points()
    exact = solve_finely(u, uniform_grid(1000), x0)
    ns = (32, 64) if tableau.order > 3 else (64, 128)
    errors = [(sample(runge_kutta(tableau, grid(n)), u, x0) - exact).norm() for n in ns]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(tableau.order, abs=0.15)


def test_textbook_steps():
    """Euler and midpoint as the paper prints them (eq. 4 and 5)."""
    u, x, n = mixture(CondOT()), points(), 4
    euler, midpoint = x, x
    for i in range(n):
        t, h = torch.tensor(i / n, dtype=F64), 1 / n
        euler = euler + h * u(t, euler)
        midpoint = midpoint + h * u(t + h / 2, midpoint + h / 2 * u(t, midpoint))
    torch.testing.assert_close(sample(baseline("euler", 4), u, x), euler, rtol=0, atol=1e-14)
    torch.testing.assert_close(sample(baseline("midpoint", 8), u, x), midpoint, rtol=0, atol=1e-14)


def test_rk4_on_a_linear_field_is_the_fourth_taylor_polynomial():
    u, x = Linear(1.0), points()
    powers = [torch.linalg.matrix_power(u.A, k) / math.factorial(k) for k in range(5)]
    torch.testing.assert_close(sample(baseline("rk4", 4), u, x), x @ sum(powers).T)


@pytest.mark.parametrize(("name", "nfe"), [("euler", 7), ("midpoint", 8), ("heun", 6), ("rk4", 12)])
def test_nfe_is_what_is_called(name, nfe):
    counter = Counter(mixture(CondOT()))
    sample(baseline(name, nfe), counter, points())
    assert counter.calls == nfe == baseline(name, nfe).nfe


@pytest.mark.parametrize(("name", "nfe"), [("midpoint", 7), ("rk4", 10), ("euler", 0), ("heun", -2)])
def test_an_impossible_nfe_is_refused(name, nfe):
    with pytest.raises(ValueError, match=f"multiple of .*, got {nfe}"):
        baseline(name, nfe)


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="'rk5'; expected one of euler, midpoint, heun, rk4"):
        baseline("rk5", 10)


@pytest.mark.parametrize("grid", [[0.0], [0.0, 0.5, 0.5, 1.0], [1.0, 0.0]])
def test_a_grid_must_increase(grid):
    with pytest.raises(ValueError, match="must be increasing"):
        runge_kutta(EULER, torch.tensor(grid, dtype=F64))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"a": ((), ())}, "row j of a must hold j numbers"),
        ({"b": (0.5, 0.4)}, "b must sum to 1, got 0.9"),
        ({"c": (0.0, 0.25)}, "c_j must be the sum"),
        ({"a": ((), (2.0,)), "c": (0.0, 2.0)}, "inside the step"),
    ],
)
def test_a_wrong_tableau_says_what_is_wrong(fields, named):
    with pytest.raises(ValueError, match=named):
        Tableau(**({"name": "own", "order": 2, "a": ((), (1 / 2,)), "b": (0.0, 1.0), "c": (0.0, 1 / 2)} | fields))
