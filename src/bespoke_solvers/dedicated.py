"""Solvers made for diffusion, as tables on any schedule: DDIM, DPM-Solver(++), DEIS, iPNDM, UniPC and EDM-Heun.

With lambda = log(alpha / sigma), the path from s to t obeys (Lu et al. 2022, Zhang & Chen 2023)

    x_t = (sigma_t / sigma_s) x_s + alpha_t int_s^t e^(lambda - lambda_t) x1_hat dlambda
        = (alpha_t / alpha_s) x_s - sigma_t int_s^t e^(lambda_t - lambda) x0_hat dlambda.

A constant x1_hat, or x0_hat, gives DDIM's step. All methods here add to it what x1_hat, or x0_hat, was at other times:

    x_t = alpha_t x1_hat + sigma_t x0_hat + alpha_t sum_j w_j (x1_hat_j - x1_hat)    data prediction, or
                                          + sigma_t sum_j w_j (x0_hat_j - x0_hat)    noise prediction.

They differ in the times j and in the weights w(h, tau), where h = lambda_t - lambda_s and tau_j = lambda_j - lambda_s
for data and the negatives of both for noise; those of tAB-DEIS depend on the times t themselves. The end is sigma = 0:
the x1_hat of the last evaluation (of `ipndm-ab`, with an extrapolated x0_hat).
"""

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bespoke_solvers import generic, grids
from bespoke_solvers.schedules import Schedule
from bespoke_solvers.table import Table, trace
from bespoke_solvers.velocity import Model, Velocity, ends

Prediction = Literal["x0", "x1"]
Weights = Callable[[Tensor, Tensor], Tensor]

NODES, NODE_WEIGHTS = np.polynomial.legendre.leggauss(32)
LOWEST_SNR = 1e-6  # what an snr of 0 (a flow's start) counts as in differences of lambda, as in diffusers


class Point(NamedTuple):
    """A time of the grid with its alpha, sigma and lambda, on a schedule."""

    t: Tensor
    alpha: Tensor
    sigma: Tensor
    lam: Tensor
    schedule: Schedule


class Seen(NamedTuple):
    """An evaluation: where, and the noise and the data it predicts."""

    at: Point
    x0: Tensor
    x1: Tensor


Look = Callable[[Point, Tensor], Seen]  # evaluates u at a point
Step = Callable[[Point, Seen, Sequence[Seen]], Tensor]  # x_t from the evaluation s and others
End = Callable[[Seen, Sequence[Seen]], Tensor]  # the same at sigma = 0


def ddim(t: Point, s: Seen) -> Tensor:
    """Song et al. (2021, eq. 12 without noise): x_t = alpha_t x1_hat + sigma_t x0_hat.

    diffusers' DDIMScheduler steps by N // n indices; where n does not divide N, that is not to the next time.
    """
    return t.alpha * s.x1 + t.sigma * s.x0


def moments(h: Tensor, count: int) -> list[Tensor]:
    """I_i = int_0^h e^(tau - h) tau^i dtau for i = 0..count, by parts: I_i = h^i - i I_(i-1)."""
    found = [-torch.expm1(-h)]
    for i in range(1, count + 1):
        found.append(h**i - i * found[-1])
    return found


def matching(tau: Tensor, values: Sequence[Tensor]) -> Tensor:
    """The weights with sum_j w_j tau_j^i = values_i for i = 1, 2, ..."""
    w: Tensor = torch.linalg.solve(torch.stack([tau**i for i in range(1, len(tau) + 1)]), torch.stack(list(values)))
    return w


def exact(h: Tensor, tau: Tensor) -> Tensor:
    """The polynomial in lambda through all predictions, integrated exactly."""
    return matching(tau, moments(h, len(tau))[1:])


def halved(h: Tensor, tau: Tensor) -> Tensor:
    """One other time, and the slope through it weighed with h I_0 / 2 in place of I_1 = h I_0 / 2 + O(h^3)."""
    return -torch.expm1(-h) * h / (2 * tau)


def dpm_solver(h: Tensor, tau: Tensor) -> Tensor:
    """DPM-Solver++(2M) (Lu et al. 2022b, Algorithm 2), and (3M) as its authors coded it and all use it.

    With m'' / 2 weighed by I_2 / 2 in place of I_2, (3M) is of order 2 in the limit, though with a smaller error.
    """
    if len(tau) == 1:
        return halved(h, tau)
    _, first, second = moments(h, 2)
    return matching(tau, [first, second / 2])


def uni_pc(h: Tensor, tau: Tensor) -> Tensor:
    """UniPC with B_2(h) (Zhao et al. 2023): exact, but for one other time, where its authors set the weight to 1/2."""
    return halved(h, tau) if len(tau) == 1 else exact(h, tau)


def equal_steps(count: int) -> Tensor:
    """Adams and Bashforth's weights of the predictions before the last one."""
    weights = {1: [-1 / 2], 2: [-16 / 12, 5 / 12], 3: [-59 / 24, 37 / 24, -9 / 24]}[count]
    return torch.tensor(weights, dtype=torch.float64)


def adams_bashforth(h: Tensor, tau: Tensor) -> Tensor:
    """iPNDM (Liu et al. 2022, Zhang & Chen 2023): the weights of equal steps, whatever the steps are."""
    return -torch.expm1(-h) * equal_steps(len(tau))


def extrapolated_end(now: Seen, others: Sequence[Seen]) -> Tensor:
    """iPNDM's step to sigma = 0, as in diffusers: (x_s - sigma_s x0_hat) / alpha_s with its x0_hat."""
    if not others:
        return now.x1
    beyond = equal_steps(len(others)) @ torch.stack([other.x0 - now.x0 for other in others])
    return now.x1 - now.at.sigma / now.at.alpha * beyond


def step(
    t: Point, s: Seen, others: Sequence[Seen], *, prediction: Prediction = "x1", weights: Weights = exact
) -> Tensor:
    """x_t from the evaluation s and others, by the equation at the head of this file."""
    if not others:
        return ddim(t, s)
    sign, scale = (1, t.alpha) if prediction == "x1" else (-1, t.sigma)
    tau = torch.stack([sign * (other.at.lam - s.at.lam) for other in others])
    w = weights(sign * (t.lam - s.at.lam), tau)
    differences = torch.stack([getattr(other, prediction) - getattr(s, prediction) for other in others])
    return ddim(t, s) + scale * (w @ differences)


def step_in_time(t: Point, s: Seen, others: Sequence[Seen]) -> Tensor:
    """tAB-DEIS (Zhang & Chen 2023, eq. 15): the polynomial in t through all x0_hat, integrated over sigma / alpha.

    With rho = sigma / alpha and its Lagrange polynomials L_j, w_j = (alpha_t / sigma_t) int_s^t L_j drho, by
    Gauss-Legendre in lambda.
    """
    if not others:
        return ddim(t, s)
    times = torch.stack([seen.at.t for seen in (s, *others)])
    lam = (t.lam + s.at.lam) / 2 + (t.lam - s.at.lam) / 2 * torch.from_numpy(NODES)
    apart = s.at.schedule.time(lam)[:, None] - times
    drho = -(t.lam - s.at.lam) / 2 * torch.from_numpy(NODE_WEIGHTS) * (t.lam - lam).exp()  # times alpha_t / sigma_t

    def weight(j: int) -> Tensor:
        rest = [k for k in range(len(times)) if k != j]
        return drho @ (apart[:, rest] / (times[j] - times[rest])).prod(1)

    w = torch.stack([weight(j) for j in range(1, len(times))])
    return ddim(t, s) + t.sigma * (w @ torch.stack([other.x0 - s.x0 for other in others]))


def multistep(
    path: Sequence[Point],
    look: Look,
    x: Tensor,
    order: int,
    by: Step = step,
    careful_below: float = 15,
    corrector: bool = False,
    end: End = lambda now, others: now.x1,
) -> Tensor:
    """One evaluation a step, with the last `order` of them in each; fewer at the beginning.

    On a grid of fewer times than `careful_below` the order falls again towards the end, as in diffusers. A corrector
    repeats the step that led to s with the evaluation at s among the others, which costs no evaluation.
    """
    n = len(path)
    seen: list[Seen] = []
    for k, (s, t) in enumerate(pairwise(path)):
        now = look(s, x)
        if corrector and seen:
            x = by(s, seen[0], [*seen[1:], now])
            now = Seen(s, (x - s.alpha * now.x1) / s.sigma, now.x1)
        seen = [now, *seen][: min(order, n - k) if n < careful_below else order]
        x = by(t, now, seen[1:])
    return end(look(path[-1], x), seen[: order - 1])


def singlestep(steps: Iterable[tuple[Point, Point, Point]], rest: Sequence[Point], look: Look, x: Tensor) -> Tensor:
    """Steps from s to t with a second evaluation at m, then DDIM. From alpha = 0 x1_hat takes the place of x0_hat."""
    for s, m, t in steps:
        now = look(s, x)
        x = step(t, now, [look(m, ddim(m, now))], prediction="x0" if s.alpha > 0 else "x1", weights=halved)
    return multistep(rest, look, x, order=1)


def dpm_2(path: Sequence[Point], look: Look, x: Tensor) -> Tensor:
    """DPM-Solver-2 (Lu et al. 2022, Algorithm 1): every second time of the grid lies inside a step.

    On a log-snr grid that is its middle. A step to sigma = 0 has none: the last two evaluations are DDIM's.
    """
    return singlestep(zip(path[::2], path[1::2], path[2::2], strict=False), path[-2:], look, x)


def edm_heun(path: Sequence[Point], look: Look, x: Tensor) -> Tensor:
    """Karras et al. (2022, Algorithm 1): Heun's steps of d(x / alpha) / d(sigma / alpha) = x0_hat; Euler's last."""
    return singlestep(zip(path, path[1:], path[1:], strict=False), path[-1:], look, x)


@dataclass(frozen=True)
class Dedicated:
    """A method: its order on smooth paths, its steps along the points of a grid, its usual grid, its possible NFE."""

    order: int
    solve: Callable[[Sequence[Point], Look, Tensor], Tensor]
    grid: str
    nfe: range = range(1, sys.maxsize)
    evaluations: int = 1  # at each time of the grid but the last


DPM, IN_NOISE = partial(step, weights=dpm_solver), partial(step, prediction="x0")
IPNDM = partial(multistep, order=4, by=partial(IN_NOISE, weights=adams_bashforth), careful_below=0)
METHODS: dict[str, Dedicated] = {
    "ddim": Dedicated(1, partial(multistep, order=1), "uniform"),
    "dpm-2": Dedicated(2, dpm_2, "log-snr", nfe=range(2, sys.maxsize, 2)),
    "dpmpp-2m": Dedicated(2, partial(multistep, order=2, by=DPM), "log-snr"),
    "dpmpp-3m": Dedicated(2, partial(multistep, order=3, by=DPM), "log-snr"),
    "deis": Dedicated(3, partial(multistep, order=3, by=IN_NOISE), "uniform"),  # diffusers' kind, in log(sigma / alpha)
    "deis-tab": Dedicated(4, partial(multistep, order=4, by=step_in_time, careful_below=0), "quadratic"),
    "ipndm": Dedicated(2, IPNDM, "uniform"),
    "ipndm-ab": Dedicated(1, partial(IPNDM, end=extrapolated_end), "uniform"),  # diffusers', whose last step is long
    "unipc": Dedicated(
        3,
        partial(multistep, order=3, by=partial(step, weights=uni_pc), careful_below=math.inf, corrector=True),
        "uniform",
    ),
    "edm-heun": Dedicated(2, edm_heun, "karras", nfe=range(1, sys.maxsize, 2), evaluations=2),
}

NAMES: dict[str, range] = {  # every baseline, and the NFE that it can have
    **{name: range(tableau.stages, sys.maxsize, tableau.stages) for name, tableau in generic.TABLEAUS.items()},
    **{name: method.nfe for name, method in METHODS.items()},
}


def at_times(name: str, times: Float[Tensor, " n"], model: Model) -> Table:
    """The named method on the model, along given times: from t_lo on, increasing, the last with sigma > 0."""
    times = times.double()
    sigma = model.schedule(times).sigma
    if times[0] != model.t_lo or times[-1] > model.t_hi or (times.diff() <= 0).any() or sigma[-1] <= 0:
        raise ValueError(
            f"times must increase from t_lo to a time with sigma > 0 in the domain {model.domain}, got {times.tolist()}"
        )
    table = along(name, times, model.schedule)
    return Table(table.t, model.start_scale * table.a, table.b)


def along(name: str, times: Float[Tensor, " n"], schedule: Schedule) -> Table:
    """The named method along increasing times, from the state at the first of them: x0 is x(t_0)."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; expected one of {', '.join(METHODS)}")
    alpha, sigma, _, _ = schedule(times)
    lam = schedule.log_snr(times).clamp(min=math.log(LOWEST_SNR))
    path = [Point(*values, schedule) for values in zip(times, alpha, sigma, lam, strict=True)]
    nfe = 1 + (len(path) - 1) * METHODS[name].evaluations
    _check(name, nfe)

    def method(u: Velocity, x0: Tensor) -> Tensor:
        def look(at: Point, x: Tensor) -> Seen:
            return Seen(at, *ends(schedule, at.t, x, u(at.t, x)))

        return METHODS[name].solve(path, look, x0)

    return trace(method, nfe)


def _parse(name: str) -> tuple[str, str]:
    """The method's name and its grid's; a generic method has none."""
    method, at, grid = name.partition("@")
    if method not in NAMES or (at and method not in METHODS):
        raise ValueError(
            f"unknown method {name!r}; expected one of {', '.join(NAMES)}, the last {len(METHODS)} of them perhaps "
            f"with one of the grids {', '.join(grids.GRIDS)}, as in dpmpp-2m@karras or dpmpp-2m@log-snr:0.03"
        )
    if at:
        grids.parse(grid)
    return method, grid


def _check(method: str, nfe: int) -> None:
    if nfe not in NAMES[method]:
        examples = ", ".join(map(str, NAMES[method][:3]))
        raise ValueError(f"{method} can have {examples}, ... evaluations, got nfe = {nfe}")


def grid_of(name: str) -> str:
    """The grid that the named method stands on, its usual one if it names none; empty for a generic method."""
    method, grid = _parse(name)
    return grid or (METHODS[method].grid if method in METHODS else "")


def possible(name: str, nfe: int) -> bool:
    """Whether the named method can have so many evaluations."""
    return nfe in NAMES[_parse(name)[0]]


def baseline(name: str, nfe: int, model: Model) -> Table:
    """The named method with `nfe` evaluations on the model, on its usual grid or on another: `dpmpp-2m@karras:0.03`."""
    method, _ = _parse(name)
    _check(method, nfe)
    if method not in METHODS:
        return generic.baseline(method, nfe).on(model)
    times = 1 + (nfe - 1) // METHODS[method].evaluations
    return at_times(method, grids.grid(grid_of(name), model, times), model)
