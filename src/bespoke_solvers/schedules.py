"""Gaussian paths x(t) = alpha_t x1 + sigma_t x0 from noise (t = 0) to data (t = 1).

The schedulers of the paper's Section 2.2 and of its appendix on pre-trained models, with those of EDM
(Karras et al. 2022) and of networks trained on a discrete `alphas_cumprod`. All arithmetic is float64 whatever
the dtype of t; whoever combines the values with a picture casts them last.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Path(NamedTuple):
    """alpha_t, sigma_t and their derivatives in t."""

    alpha: Tensor
    sigma: Tensor
    d_alpha: Tensor
    d_sigma: Tensor

    @property
    def wronskian(self) -> Tensor:
        """sigma d_alpha - alpha d_sigma = alpha sigma d(log_snr)/dt, positive."""
        return self.sigma * self.d_alpha - self.alpha * self.d_sigma


def float64(t: Tensor | float) -> Tensor:
    """`t` in float64, on the CPU where its own device has no float64 (Apple's MPS)."""
    t = torch.as_tensor(t)
    return (t.cpu() if t.device.type == "mps" else t).double()


class Schedule(ABC):
    """A Gaussian path. A subclass needs `__call__` alone; the rest has defaults that a closed form may replace."""

    @abstractmethod
    def __call__(self, t: Tensor) -> Path:
        """alpha, sigma and their derivatives at t, in float64."""

    @property
    def domain(self) -> tuple[float, float]:
        """The times on which networks trained on this path are valid."""
        return 0.0, 1.0

    @property
    def prior_scale(self) -> float:
        """c in x(0) = c x0, where x0 ~ N(0, I)."""
        return 1.0

    def log_snr(self, t: Tensor) -> Tensor:
        """log(alpha_t / sigma_t), increasing in t; infinite where alpha or sigma vanishes."""
        alpha, sigma, _, _ = self(t)
        return alpha.log() - sigma.log()

    def time(self, log_snr: Tensor) -> Tensor:
        """The inverse of `log_snr`, clamped to [0, 1]."""
        log_snr = float64(log_snr)
        low, high = torch.zeros_like(log_snr), torch.ones_like(log_snr)
        for _ in range(60):  # bisection down to the spacing of float64
            middle = (low + high) / 2
            below = self.log_snr(middle) < log_snr
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2

    def variance_rate(self, t: Tensor) -> Tensor:
        """sigma_t d_sigma_t, finite also where d_sigma is not."""
        path = self(t)
        return path.sigma * path.d_sigma


@dataclass(frozen=True)
class CondOT(Schedule):
    """FM-OT: alpha = t, sigma = 1 - t."""

    def __call__(self, t: Tensor) -> Path:
        """alpha, sigma and their derivatives at t, in float64."""
        t = float64(t)
        return Path(t, 1 - t, torch.ones_like(t), -torch.ones_like(t))

    def time(self, log_snr: Tensor) -> Tensor:
        """t = snr / (1 + snr)."""
        return torch.sigmoid(float64(log_snr))


@dataclass(frozen=True)
class Cosine(Schedule):
    """FM/v-CS: alpha = sin(pi t / 2), sigma = cos(pi t / 2)."""

    def __call__(self, t: Tensor) -> Path:
        """alpha, sigma and their derivatives at t, in float64."""
        half_pi = torch.pi / 2
        alpha = torch.sin(half_pi * float64(t))
        sigma = torch.sin(half_pi * (1 - float64(t)))  # vanishes exactly at t = 1
        return Path(alpha, sigma, half_pi * sigma, -half_pi * alpha)

    def time(self, log_snr: Tensor) -> Tensor:
        """t = (2 / pi) arctan(snr)."""
        return torch.atan(float64(log_snr).exp()) * (2 / torch.pi)


@dataclass(frozen=True)
class VP(Schedule):
    """Variance preserving: alpha = xi_{1-t} = exp(-s^2 (B - b) / 4 - s b / 2) with s = 1 - t, sigma^2 = 1 - alpha^2."""

    B: float = 20.0
    b: float = 0.1

    def __post_init__(self) -> None:
        if not self.B > self.b > 0:
            raise ValueError(f"VP needs B > b > 0, got B = {self.B} and b = {self.b}")

    @property
    def domain(self) -> tuple[float, float]:
        """Networks are trained for s = 1 - t in [1e-4, 1]."""
        return 0.0, 1 - 1e-4

    def _log_alpha(self, t: Tensor) -> Tensor:
        s = 1 - float64(t)
        return -s * (s * (self.B - self.b) / 4 + self.b / 2)

    def __call__(self, t: Tensor) -> Path:
        """alpha, sigma and their derivatives at t, in float64."""
        log_alpha = self._log_alpha(t)
        alpha, sigma = log_alpha.exp(), (-torch.expm1(2 * log_alpha)).sqrt()
        d_alpha = alpha * ((1 - float64(t)) * (self.B - self.b) + self.b) / 2
        return Path(alpha, sigma, d_alpha, -alpha * d_alpha / sigma)

    def log_snr(self, t: Tensor) -> Tensor:
        """log(alpha_t / sigma_t)."""
        log_alpha = self._log_alpha(t)
        return log_alpha - (-torch.expm1(2 * log_alpha)).log() / 2

    def time(self, log_snr: Tensor) -> Tensor:
        """The root of the quadratic equation for s, in the form that does not cancel."""
        minus_log_alpha = torch.nn.functional.softplus(-2 * float64(log_snr).clamp(min=-1e3)) / 2
        p, q = (self.B - self.b) / 4, self.b / 2
        s = 2 * minus_log_alpha / (q + (q * q + 4 * p * minus_log_alpha).sqrt())
        return (1 - s).clamp(0, 1)

    def variance_rate(self, t: Tensor) -> Tensor:
        """-alpha d_alpha, since alpha^2 + sigma^2 = 1."""
        path = self(t)
        return -path.alpha * path.d_alpha


@dataclass(frozen=True)
class EDM(Schedule):
    """Variance exploding: alpha = 1, sigma on the ramp of Karras et al. (2022, eq. 5) from sigma_max at t = 0.

    sigma = (A + (B - A) t / t_hi)^rho with A = sigma_max^(1/rho), B = sigma_min^(1/rho) reaches sigma_min at t_hi; from
    there its tangent leads to sigma = 0 at t = 1, so that the end of every EDM sampler is one Euler step.
    """

    sigma_max: float = 80.0
    sigma_min: float = 0.002
    rho: float = 7.0

    def __post_init__(self) -> None:
        if not (self.sigma_max > self.sigma_min > 0 and self.rho > 0):
            raise ValueError(
                f"EDM needs sigma_max > sigma_min > 0 and rho > 0, got {self.sigma_max}, {self.sigma_min}, {self.rho}"
            )

    @property
    def _ramp(self) -> tuple[float, float, float]:
        A, B = self.sigma_max ** (1 / self.rho), self.sigma_min ** (1 / self.rho)
        return A, B, 1 / (1 + B / (self.rho * (A - B)))

    @property
    def domain(self) -> tuple[float, float]:
        """Down to sigma_min."""
        return 0.0, self._ramp[2]

    @property
    def prior_scale(self) -> float:
        """sigma_max."""
        return self.sigma_max

    def __call__(self, t: Tensor) -> Path:
        """alpha, sigma and their derivatives at t, in float64."""
        A, B, t_hi = self._ramp
        t = float64(t)
        base = A + (B - A) * (t / t_hi).clamp(max=1)
        d_sigma = self.rho * (B - A) / t_hi * base ** (self.rho - 1)
        sigma = torch.where(t < t_hi, base**self.rho, self.sigma_min * (1 - t) / (1 - t_hi))
        return Path(torch.ones_like(t), sigma, torch.zeros_like(t), d_sigma)

    def time(self, log_snr: Tensor) -> Tensor:
        """The ramp and its tangent, inverted."""
        A, B, t_hi = self._ramp
        sigma = (-float64(log_snr)).exp()
        on_ramp = t_hi * (A - sigma.clamp(min=self.sigma_min) ** (1 / self.rho)) / (A - B)
        on_tangent = 1 - (1 - t_hi) * sigma / self.sigma_min
        return torch.where(sigma < self.sigma_min, on_tangent, on_ramp).clamp(0, 1)


@dataclass(frozen=True)
class DiscreteVP(Schedule):
    """Variance preserving with given `alphas_cumprod` (index 0 next to the data), as diffusers' schedulers keep it.

    Index k of N lies at t = 1 - (k + 1) / N; the log-snr is linear in between. After index 0 alpha and sigma go
    straight to 1 and 0. A zero terminal snr (last entry 0) is allowed: alpha is then linear on the first interval.
    """

    alphas_cumprod: Sequence[float] | Tensor | np.ndarray = field(repr=False)  # kept as a tuple

    def __post_init__(self) -> None:
        values = torch.as_tensor(self.alphas_cumprod, dtype=torch.float64)
        if values.ndim != 1:
            raise ValueError(f"alphas_cumprod must be a list of numbers, got the shape {tuple(values.shape)}")
        object.__setattr__(self, "alphas_cumprod", tuple(values.tolist()))
        enough = len(values) > 2 or (len(values) == 2 and values[-1] > 0)
        if not (enough and bool((values.diff() < 0).all() and values[0] < 1 and values[-1] >= 0)):
            raise ValueError(
                "alphas_cumprod must hold at least two numbers, three where the last is 0, that decrease from below 1 "
                f"to 0 or more; got {len(values)} numbers from {self.alphas_cumprod[:1]} to {self.alphas_cumprod[-1:]}"
            )

    @property
    def domain(self) -> tuple[float, float]:
        """From the last index to index 0."""
        return 0.0, 1 - 1 / len(self.alphas_cumprod)

    @cached_property
    def _moved(self) -> dict[torch.device, Tensor]:
        return {}

    def _knots(self, device: torch.device) -> Tensor:
        """alpha, sigma and log-snr at the indices in the order of t (a log-snr of -inf replaced by the next one)."""
        if device in self._moved:  # a copy to a GPU waits for all that it has to do
            return self._moved[device]
        square = torch.tensor(self.alphas_cumprod[::-1], dtype=torch.float64)
        alpha, sigma = square.sqrt(), (1 - square).sqrt()
        log_snr = alpha.log() - sigma.log()
        log_snr[0] = log_snr[0] if square[0] > 0 else log_snr[1]
        return self._moved.setdefault(device, torch.stack([alpha, sigma, log_snr]).to(device))

    def __call__(self, t: Tensor) -> Path:
        """alpha, sigma and their derivatives at t, in float64."""
        t = float64(t)
        N = len(self.alphas_cumprod)
        alphas, sigmas, log_snrs = self._knots(t.device)
        left = (t.detach() * N).floor().long().clamp(0, N - 2)
        slope = (log_snrs[left + 1] - log_snrs[left]) * N
        log_snr = log_snrs[left] + slope * (t - left.double() / N)
        alpha, sigma = torch.sigmoid(2 * log_snr).sqrt(), torch.sigmoid(-2 * log_snr).sqrt()
        d_alpha, d_sigma = alpha * sigma**2 * slope, -sigma * alpha**2 * slope
        path = torch.stack([alpha, sigma, d_alpha, d_sigma])

        to_data = (1 - t) * N
        rise, fall = N * (1 - alphas[-1]), -N * sigmas[-1]
        end = [1 - to_data * rise / N, -to_data * fall / N, rise.expand_as(t), fall.expand_as(t)]
        path = torch.where(t > (N - 1) / N, torch.stack(end), path)

        if self.alphas_cumprod[-1] == 0:
            alpha = (t * N).clamp(0, 1) * alphas[1]
            sigma, d_alpha = (1 - alpha**2).sqrt(), (N * alphas[1]).expand_as(t)
            start = torch.stack([alpha, sigma, d_alpha, -alpha * d_alpha / sigma])
            path = torch.where(t < 1 / N, start, path)
        return Path(*path)

    def time(self, log_snr: Tensor) -> Tensor:
        """Each of the three pieces, inverted."""
        log_snr = float64(log_snr)
        N = len(self.alphas_cumprod)
        alphas, sigmas, log_snrs = self._knots(log_snr.device)
        left = (torch.searchsorted(log_snrs, log_snr.contiguous(), right=True) - 1).clamp(0, N - 2)
        left = left.clamp(min=1) if self.alphas_cumprod[-1] == 0 else left
        t = (left + (log_snr - log_snrs[left]) / (log_snrs[left + 1] - log_snrs[left])) / N
        after = 1 - 1 / (N * (sigmas[-1] * log_snr.exp() + 1 - alphas[-1]))
        t = torch.where(log_snr > log_snrs[-1], after, t)
        if self.alphas_cumprod[-1] == 0:
            t = torch.where(log_snr < log_snrs[1], torch.sigmoid(2 * log_snr).sqrt() / (N * alphas[1]), t)
        return t.clamp(0, 1)


@dataclass(frozen=True)
class Sech(Schedule):
    """alpha = sech(q s), sigma = tanh(q s) with s = 1 - t: here dx/ds = q (epsilon - sigma x).

    A network that predicts epsilon enters with a constant weight and x with a bounded one; snr(0) = 1 / sinh(q).
    """

    q: float

    def __call__(self, t: Tensor) -> Path:
        """alpha, sigma and their derivatives at t, in float64."""
        s = self.q * (1 - float64(t))
        alpha, sigma = 1 / torch.cosh(s), torch.tanh(s)
        return Path(alpha, sigma, self.q * alpha * sigma, -self.q * alpha**2)

    def time(self, log_snr: Tensor) -> Tensor:
        """s = arsinh(1 / snr) / q."""
        return (1 - torch.asinh((-float64(log_snr)).exp()) / self.q).clamp(0, 1)


@dataclass(frozen=True)
class Tanh(Schedule):
    """The mirror image of `Sech`: alpha = tanh(q t), sigma = sech(q t), hence dx/dt = q (x1 - alpha x).

    A network that predicts x1 enters with a constant weight; snr(1) = sinh(q), so the path stops short of sigma = 0.
    """

    q: float

    def __call__(self, t: Tensor) -> Path:
        """alpha, sigma and their derivatives at t, in float64."""
        sigma, alpha, d_sigma, d_alpha = Sech(self.q)(1 - float64(t))
        return Path(alpha, sigma, -d_alpha, -d_sigma)

    def time(self, log_snr: Tensor) -> Tensor:
        """t = arsinh(snr) / q."""
        return (torch.asinh(float64(log_snr).exp()) / self.q).clamp(0, 1)
