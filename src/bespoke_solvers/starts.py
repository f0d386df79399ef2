"""Tables that start in the middle: from x(t_k), a picture with noise, rather than from noise alone (img2img)."""

import dataclasses

from bespoke_solvers.bank import Bank
from bespoke_solvers.regression import closed_form
from bespoke_solvers.solver import Solver
from bespoke_solvers.velocity import Model, Noise


def with_start(
    solver: Solver, model: Model, k: int, *, bank: Bank | None = None, paths: int = 64, seed: int = 0
) -> Solver:
    """The solver with one more table, for a start at its evaluation k, on its own times from there.

    The rows are regressions on x(t_k), u_k, u_{k+1}, ... along the model's exact paths, which `bank` keeps.
    """
    if not 0 < k < solver.nfe:
        raise ValueError(f"a start in the middle of {solver.nfe} evaluations is from 1 to {solver.nfe - 1}, got {k}")
    solver.check(model)
    bank = bank or Bank(model)
    bank.check(model)
    t = solver.table.t[k:]
    batches = [bank.paths(seed, index) for index in range(bank.fill(seed, paths))]
    begun = [dataclasses.replace(each, noise=Noise(each.at(t[:1]).x[0], each.noise.condition)) for each in batches]
    return dataclasses.replace(solver, starts=solver.starts | {k: closed_form(t, begun).table})
