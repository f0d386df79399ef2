"""A velocity model as flow_matching trains it, sampled with 8 evaluations (flow_matching itself is not needed)."""

import torch
from torch import nn

from bespoke_solvers import fit, schedules
from bespoke_solvers.adapters.flow_matching import BespokeSolver, as_model

torch.manual_seed(0)


class Velocity(nn.Module):
    """Your model, called as velocity_model(x=x, t=t, **extras); here a small network with a label as its extra."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(2 + 1 + 2, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU())
        self.last = nn.Linear(128, 2)
        self.calls = 0

    def forward(self, x, t, label):
        """dx/dt."""
        self.calls += 1
        t = t.reshape(-1, 1).expand(len(x), 1)
        return self.last(self.hidden(torch.cat([x, t, nn.functional.one_hot(label, 2)], dim=1)))


def data(label):
    """Two rings."""
    angle = 2 * torch.pi * torch.rand(len(label))
    ring = torch.stack([angle.cos(), angle.sin()], dim=1) * (0.4 + 0.6 * label[:, None])
    return ring + 0.05 * torch.randn(len(label), 2)


velocity = Velocity()
adam = torch.optim.Adam(velocity.parameters(), lr=2e-3)
for _ in range(600):
    label, t = torch.randint(2, (256,)), torch.rand(256)
    x0, x1 = torch.randn(256, 2), data(label)
    x = (1 - t[:, None]) * x0 + t[:, None] * x1  # with flow_matching: AffineProbPath(CondOTScheduler()).sample(...)
    loss = (velocity(x=x, t=t, label=label) - (x1 - x0)).square().mean()
    adam.zero_grad()
    loss.backward()
    adam.step()
velocity.requires_grad_(False)

# The second argument is the path's scheduler: one of flow_matching, such as CondOTScheduler(), or one of ours.
draw = {"draw_condition": lambda generator: {"label": torch.randint(2, (), generator=generator)}}
model = as_model(velocity, schedules.CondOT(), (2,), **draw)
fitted = fit(model, nfe=8, effort="low", progress=False)

# In flow_matching: ODESolver(velocity).sample(x_init=..., step_size=..., label=...)
solver = BespokeSolver(velocity, fitted)
velocity.calls = 0
samples = solver.sample(x_init=torch.randn(1000, 2), label=torch.randint(2, (1000,)))
rmse, midpoint = fitted.validation["rmse"], fitted.validation["baseline_rmse"]
print(f"{len(samples)} samples with {velocity.calls} calls; RMSE {rmse:.4f}, midpoint {midpoint:.4f}")
