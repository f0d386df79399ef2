"""Lipschitz constants of Bespoke steps and the weights of the RMSE bound (paper, eq. 25 and Appendix D)."""

import torch
from jaxtyping import Float
from torch import Tensor

from bespoke_solvers.families import Bespoke


def step_lipschitz(family: Bespoke, L_tau: float = 1.0) -> Float[Tensor, " n"]:
    """L_i of each step, for a velocity with Lipschitz constant at most L_tau (Lemmas D.1 to D.3).

    u_bar has the constant L_bar = |ds| / s + dt L_tau at each node; through the stages of the base method
    Lip(k_j) <= L_bar_j (1 + h sum_l |a_jl| Lip(k_l)), and L_i = (s_i / s_{i+1}) (1 + h sum_j |b_j| Lip(k_j)).
    """
    n, h, tableau = family.n, 1 / family.n, family.tableau
    transform = family.transform()

    def lipschitz(i: int) -> Tensor:
        of_stages: list[Tensor] = []
        for c, row in zip(tableau.c, tableau.a, strict=True):
            _, dt, s, ds = transform(torch.tensor((i + c) / n, dtype=torch.float64))
            of_state = 1 + h * sum(abs(a) * L for a, L in zip(row, of_stages, strict=True))
            of_stages.append((ds.abs() / s + dt * L_tau) * of_state)
        s, s_next = (transform(torch.tensor(r, dtype=torch.float64)).s for r in (i / n, (i + 1) / n))
        return s / s_next * (1 + h * sum(abs(b) * L for b, L in zip(tableau.b, of_stages, strict=True)))

    return torch.stack([lipschitz(i) for i in range(n)])


def bound_weights(lipschitz: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """M_1, ..., M_n with M_i = prod_{j=i}^n L_j and L_n := 1 (eq. 25), from L_0, ..., L_{n-1}."""
    one = lipschitz.new_ones(1)
    return torch.cat([lipschitz[1:], one]).flip(0).cumprod(0).flip(0)
