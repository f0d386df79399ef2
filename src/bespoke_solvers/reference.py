"""Exact sampling paths: adaptive dopri5 with dense output (Dormand & Prince 1980, Shampine 1986).

The worst sample of a batch controls the step. u is never called outside the model's domain [t_lo, t_hi]; from t_hi on a
path follows what the model says there, x(t) = alpha_t x1_hat + sigma_t x0_hat, so that x(1) = x1_hat.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bespoke_solvers.generic import DOPRI5, stages, weighted_sum
from bespoke_solvers.metrics import norm, rmse
from bespoke_solvers.precision import full_float32
from bespoke_solvers.scale_time import Between, ScaleTime, identity, transformed_velocity
from bespoke_solvers.schedules import Cosine, Schedule, Sech, Tanh
from bespoke_solvers.velocity import Counter, Ends, Model, Noise, Velocity, ends, expand

CHECKING_STEPS = 16  # at least, of the paths that others are checked by
# The difference to the fourth-order solution, and the point in the middle of the step (Shampine 1986).
ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)
MIDDLE = (
    6025192743 / 60171106304,
    0.0,
    51252292925 / 130801643196,
    -2691868925 / 90256659456,
    187940372067 / 3189068634112,
    -1776094331 / 39487288512,
    11237099 / 470086768,
)


class NotSolvedError(RuntimeError):
    """The reference hit its cap on evaluations."""


class PathPoint(NamedTuple):
    """x(t) and dx/dt of a batch of paths at several times."""

    x: Float[Tensor, "n b *shape"]
    dx: Float[Tensor, "n b *shape"]


def regular_schedule(model: Model) -> Schedule | None:
    """The path on which the network's output enters with a constant weight; None for the model's own.

    epsilon and score: `Sech`; x-start: `Tanh`; v: `Cosine`; a flow is regular where it is.
    """
    snr_lo, snr_hi = model.schedule.log_snr(torch.tensor(model.domain, dtype=torch.float64)).exp().tolist()
    match model.prediction:
        case "epsilon" | "score":
            return Sech(math.asinh(1 / snr_lo))
        case "x-start":
            return Tanh(math.asinh(snr_hi))
        case "v":
            return Cosine()
    return None


@dataclass(frozen=True)
class Paths:
    """A batch of solved paths: knots of x_bar(r), its derivative and its value in the middle of each step.

    `evaluations` of u were spent on each path. `x1` are the exact samples.
    """

    model: Model
    noise: Noise
    regular: Schedule | None
    r: Float[Tensor, " knots"]
    x: Float[Tensor, "knots b *shape"]
    dx: Float[Tensor, "knots b *shape"]
    middle: Float[Tensor, "steps b *shape"]
    ends: Ends
    evaluations: int

    @property
    def x1(self) -> Float[Tensor, "b *shape"]:
        """x(1)."""
        return self.ends.x1

    def split(self, size: int) -> "list[Paths]":
        """The same paths in smaller batches."""

        def part(of: slice) -> Paths:
            inner = {name: getattr(self, name)[:, of] for name in ("x", "dx", "middle")}
            return replace(self, noise=self.noise.part(of), ends=Ends(self.ends.x0[of], self.ends.x1[of]), **inner)

        return [part(slice(first, first + size)) for first in range(0, len(self.x1), size)]

    def at(self, t: Float[Tensor, " n"]) -> PathPoint:
        """x(t) and dx/dt at each of the times, which must not lie before t_lo."""
        inside = t.detach().double().cpu().clamp(self.model.t_lo, self.model.t_hi)
        x, dx = self._on_domain(inside)
        if (t > self.model.t_hi).any():
            alpha, sigma, d_alpha, d_sigma = (expand(value, x) for value in self.model.schedule(t.detach().double()))
            beyond = expand((t > self.model.t_hi).to(x), x).bool()
            x = torch.where(beyond, alpha * self.ends.x1 + sigma * self.ends.x0, x)
            dx = torch.where(beyond, d_alpha * self.ends.x1 + d_sigma * self.ends.x0, dx)
        return PathPoint(x, dx)

    def _on_domain(self, t: Tensor) -> PathPoint:
        """The quartic through knots and middle, mapped back."""
        between = Between(self.model.schedule, self.regular) if self.regular else None
        r = between.inverse(t) if between else t
        left = (torch.searchsorted(self.r, r, right=True) - 1).clamp(0, len(self.r) - 2)
        h = self.r[left + 1] - self.r[left]
        p = (r - self.r[left]) / h
        weights = (
            p**2 * (-5 + p * (14 - 8 * p)),  # of x_next - x
            16 * p**2 * (1 - p) ** 2,  # of middle - x
            h * p * (1 - p) ** 2 * (1 - 2 * p),  # of dx
            h * p**2 * (1 - p) * (1 - 2 * p),  # of dx_next
        )
        rates = (
            p * (-10 + p * (42 - 32 * p)) / h,
            32 * p * (1 - p) * (1 - 2 * p) / h,
            1 + p * (-8 + p * (15 - 8 * p)),
            p * (2 + p * (-9 + 8 * p)),
        )
        x, left = self.x, left.to(self.x.device)
        parts = (x[left + 1] - x[left], self.middle[left] - x[left], self.dx[left], self.dx[left + 1])
        x_bar = x[left] + sum(expand(weight, x) * part for weight, part in zip(weights, parts, strict=True))
        dx_bar = sum((expand(rate, x) * part for rate, part in zip(rates, parts, strict=True)), torch.zeros_like(x_bar))
        return _map_back(between(r) if between else identity(r), x_bar, dx_bar)


def _map_back(values: ScaleTime, x_bar: Tensor, dx_bar: Tensor) -> PathPoint:
    """x = x_bar / s and dx = (dx_bar - ds x) / (s dt)."""
    _, dt, s, ds = values
    x = x_bar / expand(s, x_bar)
    return PathPoint(x, (dx_bar - expand(ds, x) * x) / expand(s * dt, x))


class Solution(NamedTuple):
    """The knots, and what lies between them, of a batch solved by `dopri5`."""

    r: Tensor
    x: Tensor
    dx: Tensor
    middle: Tensor


def dopri5(
    u: Velocity,
    r_lo: float,
    r_hi: float,
    x: Tensor,
    *,
    rtol: float,
    atol: float,
    max_calls: int,
    largest: float = math.inf,
) -> Solution:
    """dx/dr = u(r, x) from r_lo to r_hi; in each step each sample's ||error / (atol + rtol |x|)|| is at most 1.

    largest: that no step exceeds.
    """

    def at(r: float) -> Tensor:
        return torch.tensor(r, dtype=torch.float64)

    dx = u(at(r_lo), x)
    calls, r = 1, r_lo
    knots, xs, dxs, middles = [r], [x], [dx], []
    scale = atol + rtol * x.abs()
    h = min(0.01 * (norm(x / scale).max() / norm(dx / scale).max()).item(), r_hi - r_lo)  # Hairer et al., II.4
    if not math.isfinite(h):
        raise ValueError(
            f"the velocity is not finite at its first evaluation, t or r = {r_lo}: check the network and its inputs"
        )
    while r < r_hi:
        if calls + 6 > max_calls:
            raise NotSolvedError(
                f"the reference was not finished after {calls} evaluations: it stands at r = {r:.4g} of "
                f"[{r_lo:.4g}, {r_hi:.4g}] with steps of {h:.1e}. Loosen rtol = {rtol} and atol = {atol} "
                "(--tolerance), or check that the velocity is smooth: in full float32, its time not cut to an integer"
            )
        h = min(h, largest, r_hi - r)
        ks = stages(DOPRI5, u, at(r), x, h, first=dx)
        calls += 6
        x_next = x + h * weighted_sum(DOPRI5.b, ks)
        scale = atol + rtol * torch.maximum(x.abs(), x_next.abs())
        error = norm(h * weighted_sum(ERROR, ks) / scale).max().item()
        if not math.isfinite(error) and h <= 1e-9 * (r_hi - r_lo):
            way = f"{100 * (r - r_lo) / (r_hi - r_lo):.0f} % of the way from noise to data"
            raise ValueError(f"the velocity is not finite just after r = {r:.4g}, {way}: check the network there")
        if error <= 1:
            middles.append(x + h * weighted_sum(MIDDLE, ks))
            x, dx = x_next, ks[-1]
            r = r_hi if h == r_hi - r else r + h
            knots.append(r)
            xs.append(x)
            dxs.append(dx)
        h *= min(10.0, max(0.2, 0.9 * max(error, 1e-10) ** -0.2)) if math.isfinite(error) else 0.1
    return Solution(torch.tensor(knots, dtype=torch.float64), torch.stack(xs), torch.stack(dxs), torch.stack(middles))


def check_tolerance(rtol: float, atol: float) -> None:
    """Refuse one that no solver can keep."""
    if not (0 < rtol < math.inf and 0 < atol < math.inf):
        raise ValueError(f"the tolerance must be positive and finite, got rtol = {rtol} and atol = {atol}")


@torch.no_grad()
def solve(
    model: Model,
    noise: Noise,
    *,
    rtol: float = 1e-5,
    atol: float = 1e-5,
    max_evaluations: int = 2000,
    fewest_steps: int = 1,
) -> Paths:
    """The exact paths from the given noise, at most `max_evaluations` of u on each."""
    check_tolerance(rtol, atol)
    regular = regular_schedule(model)
    between = Between(model.schedule, regular) if regular else None
    domain = torch.tensor(model.domain, dtype=torch.float64)
    r_lo, r_hi = (between.inverse(domain) if between else domain).tolist()

    def transform(r: Tensor) -> ScaleTime:
        values = between(r) if between else identity(r)
        return values._replace(t=values.t.clamp(model.t_lo, model.t_hi))

    u = Counter(model.bind(noise.condition))
    start = float(transform(torch.tensor(r_lo, dtype=torch.float64)).s) * model.start_scale * noise.x0
    with full_float32(noise.x0.device):
        r, x, dx, middle = dopri5(
            transformed_velocity(u, transform),
            r_lo,
            r_hi,
            start,
            rtol=rtol,
            atol=atol,
            max_calls=max_evaluations,
            largest=(r_hi - r_lo) / fewest_steps,
        )
    end = _map_back(transform(r[-1]), x[-1], dx[-1])
    at_end = ends(model.schedule, domain[1], end.x, end.dx) if model.t_hi < 1 else Ends(torch.zeros_like(end.x), end.x)
    return Paths(model, noise, regular, r, x, dx, middle, at_end, u.calls)


def own_error(
    model: Model, noise: Noise, x1: Tensor, *, rtol: float = 1e-5, atol: float = 1e-5, count: int = 8
) -> float:
    """The RMSE of the first `count` exact samples x1 against the same ones solved to a tenth of the tolerance, and in
    more steps than a loose tolerance asks for: solved in the same few ones, both would be wrong alike."""
    few, finer = noise.first(count), {"rtol": rtol / 10, "atol": atol / 10}
    return rmse(x1[:count], solve(model, few, **finer, max_evaluations=10**4, fewest_steps=CHECKING_STEPS).x1)
