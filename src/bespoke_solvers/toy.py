"""Models whose velocity is known in closed form: Gaussian mixtures as data, on any Gaussian path (paper, eq. 23)."""

from collections.abc import Callable
from importlib.resources import as_file, files

import torch
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor

from bespoke_solvers.schedules import EDM, VP, CondOT, Cosine, Schedule
from bespoke_solvers.velocity import Model, Velocity, expand

SCHEDULES: dict[str, Schedule] = {"fm-ot": CondOT(), "fm-v-cs": Cosine(), "vp": VP(), "edm": EDM()}


def mixture_velocity(centres: Float[Tensor, "k *shape"], std: float, schedule: Schedule) -> Velocity:
    """The ideal u_t (eq. 23) where the data is an equal mixture of N(mu_k, std^2 I).

    With v = alpha^2 std^2 + sigma^2, W the Wronskian of the path and w = softmax_k(-|x - alpha mu_k|^2 / 2v),
    u = g x + (sigma W / v) sum_k w_k mu_k,  g = (alpha d_alpha std^2 + sigma d_sigma) / v.
    """
    mu = centres.flatten(1).double()

    def u(t: Tensor, x: Tensor) -> Tensor:
        alpha, sigma, d_alpha, _ = schedule(t)
        rate = schedule.variance_rate(t)
        v = alpha**2 * std**2 + sigma**2
        g, towards = (alpha * d_alpha * std**2 + rate) / v, (sigma**2 * d_alpha - alpha * rate) / v
        flat, means = x.flatten(1), mu.to(x)
        logits = expand(alpha / v, flat) * (flat @ means.T) - expand(alpha**2 / v, flat) * means.square().sum(1) / 2
        mean = (logits.softmax(1) @ means).reshape(x.shape)
        return expand(g, x) * x + expand(towards, x) * mean

    return u


def gaussian_mixture(
    centres: Float[Tensor, "k *shape"],
    std: float,
    schedule: Schedule | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> Model:
    """A model of an equal mixture of N(centre, std^2 I); FM-OT by default. Valid on all of [0, 1]."""
    schedule = schedule or CondOT()
    return Model(
        velocity=mixture_velocity(centres, std, schedule),
        shape=tuple(centres.shape[1:]),
        schedule=schedule,
        domain=(0.0, 1.0),
        dtype=dtype,
        device=device,
    )


def checkerboard(schedule: Schedule | None = None, dtype: torch.dtype = torch.float32) -> Model:
    """The dark squares of a 4 x 4 board on [-1, 1]^2, each filled by 25 Gaussians."""
    board = torch.arange(4)
    i, j = torch.meshgrid(board, board, indexing="ij")
    squares = torch.stack([i, j], -1)[(i + j) % 2 == 0] / 2 - 1
    inside = torch.cartesian_prod(*[torch.linspace(0.05, 0.45, 5)] * 2)
    return gaussian_mixture((squares[:, None] + inside).flatten(0, 1), 0.05, schedule, dtype=dtype)


def digits(
    centres: int = 300,
    schedule: Schedule | None = None,
    std: float = 0.15,
    dtype: torch.dtype = torch.float32,
) -> Model:
    """Handwritten 8 x 8 digits (UCI, 1,797 pictures) as centres, pixels / 8 - 1."""
    with as_file(files("bespoke_solvers") / "digits.safetensors") as path:
        pixels = load_file(path)["pixels"]
    if not 1 <= centres <= len(pixels):
        raise ValueError(f"there are 1 to {len(pixels)} digits to take as centres, got {centres}")
    return gaussian_mixture(pixels[:centres, None] / 8 - 1, std, schedule, dtype=dtype)


def load(name: str) -> Model:
    """`toy:digits` or `toy:checkerboard`, on another path with its name appended: `toy:digits-vp`."""
    makers: dict[str, Callable[..., Model]] = {"checkerboard": checkerboard, "digits": digits}
    toy, _, schedule = name.removeprefix("toy:").partition("-")
    if toy not in makers or (schedule and schedule not in SCHEDULES):
        raise ValueError(
            f"unknown toy model {name!r}; expected toy:{' or toy:'.join(makers)}, "
            f"with -{', -'.join(SCHEDULES)} for another path than fm-ot"
        )
    return makers[toy](schedule=SCHEDULES[schedule or "fm-ot"])
