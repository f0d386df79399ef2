"""Models and schedules of Meta's library flow_matching (Lipman et al. 2024), which need not be installed.

Its times are this library's: t = 0 is noise, t = 1 is data. A model is called by keyword, `model(x=x, t=t, **extras)`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bespoke_solvers.schedules import VP, CondOT, Cosine, Path, Schedule, float64
from bespoke_solvers.solver import Solver
from bespoke_solvers.table import states
from bespoke_solvers.velocity import Model


@dataclass(frozen=True)
class Polynomial(Schedule):
    """alpha = t^n, sigma = 1 - t^n."""

    n: float

    def __call__(self, t: Tensor) -> Path:
        """alpha, sigma and their derivatives at t, in float64."""
        t = float64(t)
        alpha, rate = t**self.n, self.n * t ** (self.n - 1)
        return Path(alpha, 1 - alpha, rate, -rate)

    def time(self, log_snr: Tensor) -> Tensor:
        """t^n = snr / (1 + snr)."""
        return torch.sigmoid(float64(log_snr)) ** (1 / self.n)


@dataclass(frozen=True)
class LinearVP(Schedule):
    """alpha = t, sigma^2 = 1 - t^2."""

    @property
    def domain(self) -> tuple[float, float]:
        """Up to where d_sigma, which is infinite at t = 1, is about 70."""
        return 0.0, 1 - 1e-4

    def __call__(self, t: Tensor) -> Path:
        """alpha, sigma and their derivatives at t, in float64."""
        t = float64(t)
        sigma = ((1 - t) * (1 + t)).sqrt()
        return Path(t, sigma, torch.ones_like(t), -t / sigma)

    def time(self, log_snr: Tensor) -> Tensor:
        """t^2 = snr^2 / (1 + snr^2)."""
        return torch.sigmoid(2 * float64(log_snr)).sqrt()

    def variance_rate(self, t: Tensor) -> Tensor:
        """-t."""
        return -float64(t)


SCHEDULES: dict[str, Callable[[Any], Schedule]] = {
    "CondOTScheduler": lambda _: CondOT(),
    "CosineScheduler": lambda _: Cosine(),
    "VPScheduler": lambda theirs: VP(B=float(theirs.beta_max), b=float(theirs.beta_min)),
    "PolynomialConvexScheduler": lambda theirs: Polynomial(float(theirs.n)),
    "LinearVPScheduler": lambda _: LinearVP(),
}


def schedule_from(scheduler: Any) -> Schedule:
    """This library's schedule of a scheduler of flow_matching; a schedule of this library is itself."""
    if isinstance(scheduler, Schedule):
        return scheduler
    if isinstance(scheduler, AsScheduler):
        return scheduler.schedule
    name = type(scheduler).__name__
    if name not in SCHEDULES:
        raise ValueError(
            f"no schedule is known for a {name}; expected one of {', '.join(SCHEDULES)}, or a "
            "bespoke_solvers.schedules.Schedule"
        )
    return SCHEDULES[name](scheduler)


class SchedulerOutput(NamedTuple):
    """A schedule's values under flow_matching's names."""

    alpha_t: Tensor
    sigma_t: Tensor
    d_alpha_t: Tensor
    d_sigma_t: Tensor


@dataclass(frozen=True)
class AsScheduler:
    """A schedule in the place of a flow_matching scheduler: for its paths and its ScheduleTransformedModel."""

    schedule: Schedule

    def __call__(self, t: Tensor) -> SchedulerOutput:
        """alpha, sigma and their derivatives at t, in t's dtype."""
        return SchedulerOutput(*(value.to(t) for value in self.schedule(t)))

    def snr_inverse(self, snr: Tensor) -> Tensor:
        """The time at which alpha / sigma = snr."""
        return self.schedule.time(float64(snr).log()).to(snr)


def as_model(velocity_model: Callable[..., Tensor], scheduler: Any, shape: tuple[int, ...], **fields: Any) -> Model:
    """A model to fit from a velocity model and its path's scheduler; the other fields are `Model`'s.

    `draw_condition` draws one sample's extras, if the model has any: a dict of tensors for `model(x=x, t=t, **extras)`.
    """

    def velocity(t: Tensor, x: Tensor, extras: dict[str, Tensor] | None = None) -> Tensor:
        return velocity_model(x=x, t=t, **(extras or {}))

    return Model(velocity=velocity, shape=shape, schedule=schedule_from(scheduler), **fields)


class BespokeSolver(nn.Module):
    """A solver in the place of flow_matching's `ODESolver`."""

    def __init__(self, velocity_model: Callable[..., Tensor], solver: Solver) -> None:
        super().__init__()
        self.velocity_model = velocity_model
        self.solver = solver

    @property
    def time_grid(self) -> Tensor:
        """The time of each evaluation, and 1: of what `return_intermediates` returns."""
        return torch.cat([self.solver.table.t, self.solver.table.t.new_ones(1)])

    def sample(
        self,
        x_init: Tensor,
        step_size: float | None = None,
        method: str | None = None,
        atol: float | None = None,
        rtol: float | None = None,
        time_grid: Tensor | None = None,
        return_intermediates: bool = False,
        enable_grad: bool = False,
        **model_extras: Any,
    ) -> Tensor:
        """Samples at t = 1 from noise x_init ~ N(0, I), with `solver.nfe` calls of `model(x=x, t=t, **model_extras)`.

        The steps are the solver's own: `step_size`, `method`, `atol` and `rtol` of `ODESolver` are refused, and a
        `time_grid` can only be [0, 1].
        return_intermediates: the states at `self.time_grid`, or at the given one, along a new first axis.
        """
        given = {"step_size": step_size, "method": method, "atol": atol, "rtol": rtol}
        if refused := {name: value for name, value in given.items() if value is not None}:
            raise ValueError(f"got {refused}, but this solver's steps are its own; leave these arguments out")
        if time_grid is not None and time_grid.tolist() != [0, 1]:
            raise ValueError(
                f"got the time_grid {time_grid.tolist()}, but this solver goes from 0 to 1 at its own times, "
                "`self.time_grid`; leave the argument out"
            )

        def u(t: Tensor, x: Tensor) -> Tensor:
            return self.velocity_model(x=x, t=t, **model_extras)

        with torch.set_grad_enabled(enable_grad):
            *inputs, x1 = states(self.solver.table, u, x_init)
            if not return_intermediates:
                return x1
            return torch.stack([*inputs, x1] if time_grid is None else [x_init, x1])
