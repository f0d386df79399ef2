import math
from itertools import pairwise

import pytest
import torch
from scipy import integrate

from bespoke_solvers.dedicated import at_times
from bespoke_solvers.grids import grid
from bespoke_solvers.schedules import VP
from bespoke_solvers.table import sample
from bespoke_solvers.velocity import Model
from problems import F64, mixture, points


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_tab_deis_is_that_of_its_paper(n):
    """Their eq. 14 and 15 for VP, in the time s = 1 - t, with the integrals by scipy; the network is no function of x.

    x <- Psi(s_next, s) x + sum_j C_j eps_j, C_j = int 1/2 Psi(s_next, tau) beta(tau) / sigma(tau) L_j(tau) dtau.
    """
    schedule = VP()
    model = Model(mixture(schedule), (3,), schedule, dtype=F64)
    times = grid("quadratic", model, n)

    def alpha(s):
        return schedule(torch.tensor(1 - s, dtype=F64)).alpha.item()

    def beta(s):  # -2 d(log alpha)/ds
        return schedule.b + s * (schedule.B - schedule.b)

    def epsilon(t):
        return torch.tensor([math.sin(3 * t), math.cos(5 * t), t**2], dtype=F64)

    def u(t, x):
        path = schedule(t)
        x0 = epsilon(float(t)).expand_as(x)
        return path.d_alpha * (x - path.sigma * x0) / path.alpha + path.d_sigma * x0

    x, noise_times = model.start_scale * points(4), (1 - times).tolist()
    for i, (s, after) in enumerate(pairwise(noise_times)):
        nodes = noise_times[max(0, i - 3) : i + 1][::-1]
        x = alpha(after) / alpha(s) * x
        for node in nodes:

            def integrand(tau, node=node, after=after, nodes=nodes):
                lagrange = math.prod((tau - other) / (node - other) for other in nodes if other != node)
                return alpha(after) / alpha(tau) * beta(tau) / (2 * math.sqrt(1 - alpha(tau) ** 2)) * lagrange

            weight, _ = integrate.quad(integrand, s, after, epsabs=1e-12, epsrel=1e-12)
            x = x + weight * epsilon(1 - node)
    last = schedule(times[-1])
    expected = (x - last.sigma * epsilon(times[-1].item())) / last.alpha
    got = sample(at_times("deis-tab", times, model), u, points(4))
    torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-7)
