"""Solvers like learned ones, and the schedulers of diffusers whose place they take."""

import json

import diffusers
import torch

from bespoke_solvers import Model, Solver, Table
from bespoke_solvers.dedicated import baseline
from bespoke_solvers.description import describe_schedule
from bespoke_solvers.schedules import VP, CondOT, DiscreteVP

N = 1000
BETAS = {"beta_start": 0.0002, "beta_end": 0.004}  # so few that the noise of a random network does not drown all
ALPHAS_CUMPROD = tuple(diffusers.DDPMScheduler(**BETAS).alphas_cumprod.double().tolist())
DISCRETE = DiscreteVP(ALPHAS_CUMPROD)
F64 = torch.float64


def index(t):
    return N * (1 - t) - 1


def thousandths(t):
    return 1000 * (1 - t)


def make(nfe=4, schedule=DISCRETE, prediction="epsilon", own_time=index, a0=1.0, shape=(3, 8, 8), repeated=False):
    """A solver like a learned one: no table of a known method, at times between the indices."""
    model = Model(velocity=lambda t, x: x, shape=shape, schedule=schedule, prediction=prediction)
    table = baseline("dpmpp-2m@uniform", nfe, model)
    generator = torch.Generator().manual_seed(nfe)
    t = table.t + 0.3 / nfe * torch.rand(nfe, dtype=F64, generator=generator)
    t[0] = table.t[0]
    if repeated:
        t[2] = t[1]
    b = table.b * (1 + 0.01 * torch.randn(table.b.shape, dtype=F64, generator=generator))
    a = torch.cat([torch.tensor([a0], dtype=F64), table.a[1:] * 0.99])
    description = {"schedule": describe_schedule(schedule), "prediction": prediction, "shape": shape}
    return Solver(
        Table(t, a, b), model=json.loads(json.dumps(description)), network_time=own_time(t).tolist(), family="ns"
    )


def velocity(network, prediction="epsilon", schedule=DISCRETE, own_time=index, sign=1.0):
    return Model.from_network(
        lambda time, x: sign * network(x, time).sample,
        prediction=prediction,
        schedule=schedule,
        network_time=own_time,
        shape=(3, 8, 8),
    ).velocity


def noise(count=2, seed=0):
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def ddpm(**options):
    return diffusers.DDPMScheduler(**BETAS, clip_sample=False, **options)


KINDS = {
    "epsilon": (ddpm(), {}),
    "v": (ddpm(prediction_type="v_prediction"), {"prediction": "v"}),
    "x-start": (
        diffusers.DDIMScheduler(**BETAS, clip_sample=False, prediction_type="sample"),
        {"prediction": "x-start"},
    ),
    "flow": (
        diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        {"prediction": "flow", "schedule": CondOT(), "own_time": thousandths},
    ),
    "flow, inverted": (
        diffusers.FlowMatchEulerDiscreteScheduler(invert_sigmas=True),
        {"prediction": "flow", "schedule": CondOT(), "own_time": lambda t: 1000 * t},
    ),
    "flow, of DPM-Solver": (
        diffusers.DPMSolverMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=3.0),
        {"prediction": "flow", "schedule": CondOT(), "own_time": thousandths},
    ),
    "continuous epsilon": (None, {"schedule": VP(B=4.0), "own_time": thousandths}),
    "continuous flow": (None, {"prediction": "flow", "schedule": CondOT(), "own_time": thousandths}),
}


def sign(kind):
    return -1.0 if "flow" in kind and "inverted" not in kind else 1.0


def run(scheduler, network, x, nfe=None, begin=0, tell=True):
    """What a pipeline does, without one."""
    scheduler.set_timesteps(nfe or min(scheduler.solvers))
    if tell:
        scheduler.set_begin_index(begin)
    for time in scheduler.timesteps[begin:]:
        x = scheduler.step(network(x, time).sample, time, x).prev_sample
    return x
