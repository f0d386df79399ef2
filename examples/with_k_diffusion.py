"""A solver for an EDM denoiser, run the way k-diffusion runs its samplers (k-diffusion itself is not needed)."""

from functools import partial

import torch

from bespoke_solvers import Model, fit, schedules
from bespoke_solvers.adapters.k_diffusion import sample_bespoke, sigmas

POINTS = torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
CALLS = []


def denoiser(x, sigma):
    """Your model: `model(x, sigma)` returns the denoised x; here the ideal one of four blobs in the plane."""
    CALLS.append(len(x))
    sigma = sigma.reshape(-1, 1)
    spread = sigma**2 + 0.1**2
    nearness = torch.softmax(-(x[:, None] - POINTS).square().sum(-1) / (2 * spread), dim=1)
    return (0.1**2 * x + sigma**2 * nearness @ POINTS) / spread


path = schedules.EDM(sigma_max=80.0, sigma_min=0.002)
model = Model.from_network(
    lambda sigma, x: denoiser(x, sigma),
    prediction="x-start",
    schedule=path,
    network_time=lambda t: path(t).sigma,
    shape=(2,),
)
solver = fit(model, nfe=8, effort="low")
print(f"fitted: RMSE {solver.validation['rmse']:.4f} on new noise")

# In k-diffusion: K.sampling.sample_heun(model, x, sigmas, extra_args=..., callback=..., disable=...)
sample = partial(sample_bespoke, solver=solver)
levels = sigmas(solver)
x = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0)) * levels[0]

CALLS.clear()
x1 = sample(denoiser, x, levels, callback=lambda s: print(f"{s['i']}: sigma {s['sigma_hat']:.3f}"), disable=True)
nearest = (x1[:, None] - POINTS).square().sum(-1).min(1)
print(f"{len(CALLS)} calls; a sample's distance to its point is {nearest.values.mean().sqrt():.3f}, ideally 0.141")
