"""Transformed paths x_bar(r) = phi_r(x(t_r)) and their velocities (paper, Section 2.1, Theorem 2.3)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bespoke_solvers.schedules import Path, Schedule, float64
from bespoke_solvers.velocity import Velocity, expand


class ScaleTime(NamedTuple):
    """t_r, dt_r/dr, s_r and ds_r/dr of the transform x_bar(r) = s_r x(t_r)."""

    t: Tensor
    dt: Tensor
    s: Tensor
    ds: Tensor


Transform = Callable[[Tensor], ScaleTime]


def identity(r: Tensor) -> ScaleTime:
    """The transform that changes nothing: t_r = r, s_r = 1."""
    r = float64(r)
    one, zero = torch.ones_like(r), torch.zeros_like(r)
    return ScaleTime(r, one, one, zero)


def transformed_velocity(u: Velocity, transform: Transform) -> Velocity:
    """u_bar_r(x) = (ds/s) x + dt s u_t(x / s) (eq. 16)."""

    def u_bar(r: Tensor, x: Tensor) -> Tensor:
        t, dt, s, ds = transform(r)
        return expand(ds / s, x) * x + expand(dt * s, x) * u(t.to(x, non_blocking=x.is_cuda), x / expand(s, x))

    return u_bar


def transformed_velocity_general(
    u: Velocity,
    time: Callable[[Tensor], Tensor],
    phi: Callable[[Tensor, Tensor], Tensor],
    inverse: Callable[[Tensor, Tensor], Tensor],
) -> Velocity:
    """u_bar_r(x) = dphi_r/dr(y) + dt_r d_y phi_r(y) u_t(y) with y = phi_r^{-1}(x) (Proposition 2.1, eq. 9).

    Both terms together are the derivative of phi at (r, y) along (1, dt u).
    """

    def u_bar(r: Tensor, x: Tensor) -> Tensor:
        y = inverse(r, x)
        one = torch.ones_like(r)
        t, dt = torch.func.jvp(time, (r,), (one,))  # type: ignore[misc]
        rate: Tensor = torch.func.jvp(phi, (r, y), (one, expand(dt, x) * u(t, y)))[1]
        return rate

    return u_bar


@dataclass(frozen=True)
class Between:
    """From the path of `source` to that of `target` (Theorem 2.3 i): t_r = snr^{-1}(snr_bar(r)), s = sigma_bar / sigma.

    Written so that nothing is 0 / 0 at the ends: s = (alpha_bar + sigma_bar) / (alpha + sigma) and dt = W_bar / (s^2 W)
    with the Wronskians W. Defined on the range of snr that both paths have; from noise it starts at x_bar = s x.
    """

    source: Schedule
    target: Schedule

    def __call__(self, r: Tensor) -> ScaleTime:
        """t_r, s_r and their derivatives at r."""
        t = self.source.time(self.target.log_snr(r))
        old, new = self.source(t), self.target(r)
        s = (new.alpha + new.sigma) / (old.alpha + old.sigma)
        dt = new.wronskian / (s**2 * old.wronskian)
        ds = (new.d_alpha + new.d_sigma - s * (old.d_alpha + old.d_sigma) * dt) / (old.alpha + old.sigma)
        return ScaleTime(t, dt, s, ds)

    def inverse(self, t: Tensor) -> Tensor:
        """r_t."""
        return self.target.time(self.source.log_snr(t))


@dataclass(frozen=True)
class Transformed(Schedule):
    """What a transform makes of a Gaussian path (Theorem 2.3 ii): alpha_bar = s alpha, sigma_bar = s sigma.

    The paper proves it where s_1 = 1; for another s_1 the path ends at s_1 x1.
    """

    source: Schedule
    transform: Transform

    def __call__(self, t: Tensor) -> Path:
        """alpha, sigma and their derivatives at the new path's time."""
        time, dt, s, ds = self.transform(float64(t))
        alpha, sigma, d_alpha, d_sigma = self.source(time)
        return Path(s * alpha, s * sigma, ds * alpha + s * dt * d_alpha, ds * sigma + s * dt * d_sigma)

    @property
    def prior_scale(self) -> float:
        """s_0 times the source's."""
        return float(self.transform(torch.tensor(0.0, dtype=torch.float64)).s) * self.source.prior_scale
