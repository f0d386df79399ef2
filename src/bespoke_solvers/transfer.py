"""A solver made for one model on another one, across their paths by Theorem 2.3 (paper, Section 2.2)."""

import torch
from torch import Tensor

from bespoke_solvers.scale_time import Between, ScaleTime, transformed_velocity
from bespoke_solvers.table import Table, sample, trace
from bespoke_solvers.velocity import Model, Velocity


def transferred(table: Table, source: Model, target: Model) -> Table:
    """The table on `source` (`Table.on`) as a table on `target`.

    Where both have one path, that is the table itself, on the target's domain. Otherwise the target's velocity is taken
    to the source's path, x_bar(r) = s_r x(t_r), where the table runs, and its result back: x(1) = x_bar(1) / s_1.
    It runs on the snr that both domains have: from r_0, where the later of them begins, with x(t) = (sigma_t / sigma_0)
    x(0) up to there.
    """
    if source.schedule == target.schedule:
        return table.off(source).on(target)
    between = Between(target.schedule, source.schedule)

    def transform(r: Tensor) -> ScaleTime:
        values = between(r)
        return values._replace(t=values.t.clamp(target.t_lo, target.t_hi))

    low, high = between.inverse(torch.tensor([target.t_lo, target.t_hi], dtype=torch.float64)).tolist()
    r_0, r_1 = max(source.t_lo, low), min(source.t_hi, high)
    start = transform(torch.tensor(r_0, dtype=torch.float64))
    sigma = target.schedule(torch.stack([torch.zeros_like(start.t), start.t])).sigma
    scale = start.s * target.schedule.prior_scale * sigma[1] / sigma[0]
    end = between(torch.tensor(1.0, dtype=torch.float64)).s
    common = table.off(source).within(r_0, r_1)

    def method(u: Velocity, x0: Tensor) -> Tensor:
        return sample(common, transformed_velocity(u, transform), x0 * scale) / end

    return trace(method, table.nfe)
