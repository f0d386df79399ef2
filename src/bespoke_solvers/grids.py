"""Time grids: n increasing times in a model's domain, at which steps begin.

The first time is t_lo. After the last one comes the end, sigma = 0 at t = 1, which belongs to no grid. The levels of
noise rho = sigma / alpha that `log-snr` and `karras` run through are those of the domain between a cut-off sigma_min
and 80 (Karras et al. 2022), since a flow's domain reaches from rho = infinity to rho = 0; a path of EDM has its own
sigma_max. (diffusers begins at the level of the last index: 157 for DDPM's betas, where these grids then lie closer.)
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from bespoke_solvers.schedules import EDM, DiscreteVP, Schedule
from bespoke_solvers.velocity import Model

Grid = Callable[..., Tensor]  # (model, n, *numbers) -> n times

SIGMA_MAX, SIGMA_MIN, RHO = 80.0, 0.002, 7.0


def uniform(model: Model, n: int) -> Float[Tensor, " n"]:
    """t = t_lo + (1 - t_lo) i / n."""
    return model.t_lo + (1 - model.t_lo) * torch.arange(n, dtype=torch.float64) / n


def quadratic(model: Model, n: int) -> Float[Tensor, " n"]:
    """sqrt(1 - t) in n equal steps from t_lo to t_hi (Song et al. 2021, Lu et al. 2022)."""
    start, end = math.sqrt(1 - model.t_lo), math.sqrt(1 - model.t_hi)
    return 1 - torch.linspace(start, end, n + 1, dtype=torch.float64)[:-1] ** 2


def log_snr(model: Model, n: int, sigma_min: float = SIGMA_MIN) -> Float[Tensor, " n"]:
    """lambda = log(alpha / sigma) in equal steps (Lu et al. 2022)."""
    most, least = _levels(model, sigma_min)
    return model.schedule.time(torch.linspace(-math.log(most), -math.log(least), n, dtype=torch.float64))


def karras(model: Model, n: int, sigma_min: float = SIGMA_MIN) -> Float[Tensor, " n"]:
    """(sigma / alpha)^(1/7) in equal steps (Karras et al. 2022, eq. 5)."""
    most, least = _levels(model, sigma_min)
    ramp = torch.linspace(most ** (1 / RHO), least ** (1 / RHO), n, dtype=torch.float64)
    return model.schedule.time(-RHO * ramp.log())


def trailing(model: Model, n: int) -> Float[Tensor, " n"]:
    """Every (N / n)-th of the N training indices counted from the noise, rounded as `trailing` is in diffusers."""
    if not isinstance(model.schedule, DiscreteVP):
        raise ValueError(f"the grid trailing needs a schedule with training indices (DiscreteVP), got {model.schedule}")
    N = len(model.schedule.alphas_cumprod)
    step = N - (N - N / n)  # as NumPy's arange has it, by which some halves are rounded to the other side
    return 1 - (N - torch.arange(n, dtype=torch.float64) * step).round() / N


def _levels(model: Model, sigma_min: float) -> tuple[float, float]:
    """The largest and the smallest sigma / alpha of a grid."""
    most, least = (-model.schedule.log_snr(torch.tensor(model.domain, dtype=torch.float64))).exp().tolist()
    most = most if isinstance(model.schedule, EDM) else min(most, SIGMA_MAX)
    if not 0 < sigma_min < most:
        raise ValueError(f"the cut-off sigma_min must lie between 0 and {most:g}, got {sigma_min:g}")
    return most, max(least, sigma_min)


def straight(model: Model, n: int, p: float = 1.0, q: float = 1.0) -> Float[Tensor, " n"]:
    """Equal steps in r = alpha / (alpha + sigma); the larger p, the more of them at the noise, q, at the data."""
    if not (math.isfinite(p) and p > 0 and math.isfinite(q) and q > 0):
        raise ValueError(f"the powers of the grid straight must be positive, got {p:g} and {q:g}")
    return warp(model, n, 0.0, p, q)


GRIDS: dict[str, Grid] = {
    "uniform": uniform,
    "quadratic": quadratic,
    "trailing": trailing,
    "log-snr": log_snr,
    "karras": karras,
    "straight": straight,
}
EXAMPLES = {"log-snr": "log-snr:0.03", "karras": "karras:0.03", "straight": "straight:1.5:2"}  # those with numbers


def parse(name: str) -> tuple[Grid, list[float]]:
    """The grid of a name such as `uniform` or `karras:0.03`, and its numbers: a cut-off, or powers for `straight`."""
    shape, *given = name.split(":")
    if shape not in GRIDS:
        raise ValueError(f"unknown grid {name!r}; expected one of {', '.join(GRIDS)}")
    example = EXAMPLES.get(shape, "")
    try:
        if len(given) in (0, example.count(":")):
            return GRIDS[shape], [float(number) for number in given]
    except ValueError:
        pass
    raise ValueError(f"grid {name!r}: expected {shape}" + f" or {example}, say" * bool(example))


def grid(name: str, model: Model, n: int) -> Float[Tensor, " n"]:
    """n times of the named grid: `uniform`, say, or `karras:0.03` with its own sigma_min, or `straight:1.5:2`.

    They are float32 numbers in float64, so that no cast can move one across an index of a discrete schedule.
    """
    shape, numbers = parse(name)
    if n < 1:
        raise ValueError(f"a grid needs at least one time, got n = {n}")
    times = shape(model, n, *numbers).clamp(model.t_lo, model.t_hi)
    times = torch.cat([times.new_tensor([model.t_lo]), times[1:]]).float().double()
    if not bool((times.diff() > 0).all() and model.schedule(times[-1]).sigma > 0):
        raise ValueError(f"the grid {name} has no {n} different times in the domain {model.domain}; take fewer")
    return times


def straightness(schedule: Schedule, t: Tensor) -> Tensor:
    """r = alpha / (alpha + sigma), the time in which every Gaussian path is as straight as FM-OT's."""
    alpha, sigma, _, _ = schedule(t)
    return alpha / (alpha + sigma)


def times_of(model: Model, r: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The times at which alpha / (alpha + sigma) = r, inside the model's domain."""
    return model.schedule.time(torch.logit(r.double().clamp(0, 1))).clamp(model.t_lo, model.t_hi)


def warp(model: Model, nfe: int, c: float, p: float, q: float) -> Float[Tensor, " n"]:
    """Times that are equally spaced in a warped r: 1 - (1 - (k/n)^p)^q, from r = c/n on."""
    r_lo = straightness(model.schedule, torch.tensor(model.t_lo, dtype=torch.float64))
    k = torch.arange(nfe, dtype=torch.float64) / nfe
    first = torch.maximum(torch.tensor(c / nfe, dtype=torch.float64), r_lo)
    return times_of(model, first + (1 - first) * (1 - (1 - k**p) ** q))


# c, p and q of the grids that a fit tries. The times that it ends with have c near 0.7 and p, q from 0.5 to 1 on
# mixtures of sharp modes, c from 0.1 to 0.25 and p, q from 1.4 to 2.5 on U-Nets.
WARPS = [
    *((0.7, p, q) for p in (0.75, 1.05) for q in (0.65, 0.95, 1.35)),
    *((0.2, p, q) for p in (1.05, 1.45) for q in (0.95, 1.35)),
    *((c, p, q) for c in (0.1, 0.2) for p in (1.95, 2.5) for q in (1.85, 2.5)),
]
