"""What a fit minimises (paper, Section 2.3)."""

import torch
from jaxtyping import Float
from torch import Tensor

from bespoke_solvers.bound import bound_weights, step_lipschitz
from bespoke_solvers.families import Bespoke, Family
from bespoke_solvers.metrics import mse, norm
from bespoke_solvers.reference import Paths
from bespoke_solvers.table import sample
from bespoke_solvers.velocity import expand, map_condition


def x_aux(paths: Paths, t: Float[Tensor, " n"]) -> Float[Tensor, "n b *shape"]:
    """x(t), with the gradient dx/dt that it has on the exact path (eq. 28)."""
    x, dx = paths.at(t)
    return x + dx * expand(t - t.detach(), x)


def bespoke_loss(family: Bespoke, paths: Paths, L_tau: float = 1.0) -> Float[Tensor, " b"]:
    """sum_i M_i d_i of each path (eq. 26): the local errors of the steps, weighted so that they bound the global one.

    The steps start on the exact path and so do not wait for each other: the n of them are one batch, one call of u
    for each stage of the base method.
    """
    n, b = family.n, len(paths.noise.x0)
    t = paths.model.t_lo + (1 - paths.model.t_lo) * family.step_times()
    start = paths.model.start_scale * paths.noise.x0[None]
    inner = x_aux(paths, t[1:-1])
    u = paths.model.bind(map_condition(lambda c: c.repeat(n, *[1] * (c.ndim - 1)), paths.noise.condition))
    steps = family.steps().within(paths.model.t_lo, paths.model.t_hi).repeat_interleave(b)
    got = sample(steps, u, torch.cat([start, inner]).flatten(0, 1))
    local_error = norm(got - torch.cat([inner, paths.x1[None]]).flatten(0, 1)).reshape(n, b)
    return bound_weights(step_lipschitz(family, L_tau)).to(local_error) @ local_error


def endpoint_loss(family: Family, paths: Paths) -> Float[Tensor, " b"]:
    """log MSE(y_n, x(1)) of each path, through the whole table."""
    x1 = sample(family().on(paths.model), paths.model.bind(paths.noise.condition), paths.noise.x0)
    return mse(x1, paths.x1).clamp(min=torch.finfo(x1.dtype).tiny).log()
