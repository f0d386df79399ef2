"""Sampling as k-diffusion calls it, and ComfyUI after it: with a denoiser D(x, sigma) = x1_hat in place of a velocity.

A table runs on the path of the model that it was fitted to. These tools run through the same signal-to-noise ratios on
another path, x_bar = s x with the noise level sigma_bar = s sigma (Theorem 2.3):

    ve      x_bar = x1 + sigma_bar x0                    s = 1 / alpha              k-diffusion; ComfyUI's SD and SDXL
    flow    x_bar = (1 - sigma_bar) x1 + sigma_bar x0    s = 1 / (alpha + sigma)    ComfyUI's SD3 and FLUX (its CONST)

The velocity is u = (d_sigma x + W x1_hat) / sigma with the Wronskian W, that of a network which predicts x-start.
"""

import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from bespoke_solvers.adapters.stepping import dpm_solver, rounded
from bespoke_solvers.description import schedule_of
from bespoke_solvers.schedules import Schedule, float64
from bespoke_solvers.solver import Solver
from bespoke_solvers.table import Table
from bespoke_solvers.velocity import LARGEST_SNR, coefficients, expand

Scaling = Literal["ve", "flow"]


class Level(NamedTuple):
    """The noise levels sigma_bar of these tools at some times, and the scales s of x_bar = s x."""

    sigma: Tensor
    scale: Tensor


def level(schedule: Schedule, t: Tensor, scaling: Scaling) -> Level:
    """sigma_bar and s at t; infinite on the ve path where alpha = 0."""
    alpha, sigma, _, _ = schedule(t)
    scale = 1 / {"ve": alpha, "flow": alpha + sigma}[scaling]
    return Level(scale * sigma, scale)


def _schedule(solver: Solver) -> Schedule:
    described = solver.model.get("schedule", {})
    schedule = schedule_of(described)
    if schedule is None:
        raise ValueError(
            f"the solver was made for a model on the path {described or 'of an unknown name'}, of which sigma is not "
            "known here; expected one of bespoke_solvers.schedules"
        )
    return schedule


def _levels(solver: Solver, scaling: Scaling) -> Float[Tensor, " m"]:
    """As `sigmas`, in float64; the first may be infinite."""
    schedule, t = _schedule(solver), solver.table.t
    if not bool((schedule(t).sigma > 0).all()):
        raise ValueError(
            f"the solver evaluates at the times {t.tolist()}, and one of them has sigma = 0, where a denoiser says "
            "nothing of the velocity; fit one with the domain of the model ending before it"
        )
    start = t.new_tensor([solver.model["domain"][0]])
    return torch.cat([level(schedule, torch.cat([start, t[1:]]), scaling).sigma, t.new_zeros(1)])


def sigmas(solver: Solver, scaling: Scaling = "ve", sigma_max: float | None = None) -> Float[Tensor, " m"]:
    """The solver's noise levels, nfe + 1 of them: where noise is added, then where D is evaluated, at last 0.

    The first evaluation may be learned, too, and then lies below the first of these (`sigma_hat` in callbacks).
    sigma_max: the largest noise level of the model. A solver that was made for another is refused; one for a model with
    zero terminal snr, where sigma is infinite, begins at it.
    """
    levels = _levels(solver, scaling)
    start = levels[0].item()
    if sigma_max is None and start == torch.inf:
        raise ValueError("the solver begins at sigma = infinity; give sigma_max, the largest sigma of the model")
    if sigma_max is not None:
        enough = sigma_max >= LARGEST_SNR if start == torch.inf else abs(sigma_max / start - 1) < 2e-3
        if not enough:
            raise ValueError(
                f"the solver was made for a model whose sigma begins at {start:.6g} (path "
                f"{solver.model['schedule']['name']}, scaling {scaling!r}), but here it begins at {sigma_max:.6g}; use "
                "the solver with the model that it was fitted to"
            )
    return (levels.clamp(max=sigma_max) if start == torch.inf else levels).float()


class Begun(NamedTuple):
    """A table, and what x is divided by to become its x0."""

    table: Table
    divisor: float


def _begin(solver: Solver, given: Tensor, scaling: Scaling, noise_scale: float | None) -> Begun:
    """What the given sigmas ask for: all of the solver, or img2img from one of its evaluations on."""
    levels, got = _levels(solver, scaling), float64(given).cpu()
    endless = bool(levels[0].isinf() and got[0] >= LARGEST_SNR)
    skipped = len(levels) - len(got)
    expected = levels.clamp(max=got[0].item() if endless else torch.inf)[max(skipped, 0) :]
    if skipped < 0 or not torch.allclose(got, expected, rtol=_rounding(given), atol=0):
        raise ValueError(
            f"got the sigmas {_shown(got)}; this solver of {solver.nfe} evaluations goes with {_shown(levels)} alone "
            "(in ComfyUI: the SIGMAS of the node that loads it), or with the end of them for img2img"
        )
    if skipped:
        return _from_the_middle(solver, skipped, scaling)
    t, a, b = solver.table.t, solver.table.a, solver.table.b
    if endless:
        t = t.clamp(min=_schedule(solver).time(-got[0].log()).item())
    return Begun(Table(t, a, b), got[0].item() if noise_scale is None else noise_scale)


def _from_the_middle(solver: Solver, skipped: int, scaling: Scaling) -> Begun:
    """The solver's table for that start; or else DPM-Solver++(2M) along the times that are left, since a table
    computes from x0 and has no place to enter later."""
    schedule, left = _schedule(solver), rounded(solver.table.t[skipped:])
    table = solver.starts.get(skipped)
    if table is None:
        warnings.warn(
            f"sigmas begin at the solver's evaluation {skipped + 1} of {solver.nfe} (img2img), and it has no table for "
            f"that start; the remaining {len(left)} are done by DPM-Solver++(2M) at the solver's times",
            stacklevel=4,
        )
        table = dpm_solver(schedule, left)
    return Begun(table, level(schedule, left[0], scaling).scale.item() * table.a[0].item())


def _rounding(given: Tensor) -> float:
    """By how much a given sigma may be off."""
    return max(1e-4, torch.finfo(given.dtype).eps)


def _shown(values: Tensor) -> str:
    return f"[{', '.join(f'{value:.5g}' for value in values.tolist())}]"


@torch.no_grad()
def sample_bespoke(
    model: Callable[..., Tensor],
    x: Float[Tensor, "b *shape"],
    sigmas: Float[Tensor, " m"],
    extra_args: dict[str, Any] | None = None,
    callback: Callable[[dict[str, Any]], Any] | None = None,
    disable: bool | None = None,
    *,
    solver: Solver,
    scaling: Scaling = "ve",
    noise_scale: float | None = None,
) -> Float[Tensor, "b *shape"]:
    """Samples, with `solver.nfe` calls of `model(x, sigma, **extra_args)`, which returns the denoised x.

    x: noise N(0, I) times `noise_scale`, by default sigmas[0]; for img2img the noisy picture at sigmas[0].
    sigmas: those of the function `sigmas`; for img2img the end of them.
    callback: gets x, i, sigma, sigma_hat (where D was evaluated) and denoised in a dictionary after each evaluation.
    disable: of the progress bar, as in tqdm.
    """
    shape = tuple(solver.model.get("shape", x.shape[1:]))
    if len(shape) == x.ndim - 1 and shape[0] != x.shape[1]:
        raise ValueError(f"the solver was made for samples of the shape {shape}, got a batch of {tuple(x.shape)}")
    if len(sigmas) < 2:
        return x
    table, divisor = _begin(solver, sigmas, scaling, noise_scale)
    x0 = x.to(torch.promote_types(x.dtype, torch.float32)) / divisor
    schedule, t = _schedule(solver), table.t.to(x0.dtype)
    own, scale = level(schedule, t, scaling)
    own = own.to(sigmas)
    sigma_hat = torch.where(torch.isclose(own, sigmas[:-1], rtol=_rounding(sigmas), atol=0), sigmas[:-1], own)
    weights = coefficients("x-start", schedule, t)
    evaluations = iter(range(table.nfe))

    with tqdm(total=table.nfe, disable=disable) as progress:

        def u(_: Tensor, y: Tensor) -> Tensor:
            i = next(evaluations)
            x_bar = (expand(scale[i], y) * y).to(x.dtype)
            denoised = model(x_bar, sigma_hat[i] * x.new_ones(len(x)), **(extra_args or {}))
            if callback is not None:
                state = {"x": x_bar, "i": i, "sigma": sigmas[i], "sigma_hat": sigma_hat[i], "denoised": denoised}
                callback(state)
            progress.update()
            return expand(weights.x_weight[i], y) * y + expand(weights.output_weight[i], y) * denoised.to(y)

        return Solver(table).sample(u, x0).to(x.dtype)
