"""The adapter for flow_matching: its conventions, and the library itself where it is installed."""

import inspect
import os
import re
import subprocess
import sys
from itertools import permutations

import pytest
import torch

from bespoke_solvers import fit
from bespoke_solvers.adapters.flow_matching import (
    AsScheduler,
    BespokeSolver,
    LinearVP,
    Polynomial,
    as_model,
    schedule_from,
)
from bespoke_solvers.description import describe
from bespoke_solvers.generic import baseline
from bespoke_solvers.scale_time import Between, transformed_velocity
from bespoke_solvers.schedules import EDM, VP, CondOT, Cosine
from bespoke_solvers.solver import Solver
from bespoke_solvers.table import sample
from problems import F64, SCHEDULES, full_table, mixture, points
from test_documentation import ROOT, run_blocks

EXAMPLE = ROOT / "examples" / "with_flow_matching.py"
OURS = {"CondOT": CondOT(), "Cosine": Cosine(), "VP": VP(), "Polynomial": Polynomial(1.5), "LinearVP": LinearVP()}


class Network(torch.nn.Module):
    """A velocity model as flow_matching has it, which counts its calls; the extra moves the data."""

    def __init__(self, schedule=None):
        super().__init__()
        self.u, self.times = mixture(schedule or CondOT()), []

    def forward(self, x, t, **extras):
        self.times.append(t)
        return self.u(t, x) + extras.get("push", torch.zeros(()).to(x))


def test_samples_and_intermediates_are_those_of_the_plain_loop():
    network, solver = Network(), Solver(full_table(5))
    bespoke, x0 = BespokeSolver(network, solver), points().float()
    x1 = bespoke.sample(x_init=x0)
    assert torch.equal(x1, sample(solver.table, mixture(CondOT()), x0))
    assert torch.stack(network.times).tolist() == solver.table.t.float().tolist()
    assert not any(t.ndim for t in network.times)

    inputs = []
    sample(solver.table, lambda t, x: inputs.append(x) or network.u(t, x), x0)
    along = bespoke.sample(x_init=x0, return_intermediates=True)
    assert torch.equal(along, torch.stack([*inputs, x1]))
    assert bespoke.time_grid.tolist() == [*solver.table.t.tolist(), 1.0]
    ends = bespoke.sample(x_init=x0, return_intermediates=True, time_grid=torch.tensor([0.0, 1.0]))
    assert torch.equal(ends, torch.stack([x0, x1]))


def test_extras_reach_the_model_and_gradients_the_start():
    bespoke, x0 = BespokeSolver(Network(), Solver(full_table(3))), points().requires_grad_()
    push = torch.tensor(0.5, dtype=F64)
    pushed = bespoke.sample(x0, push=push)
    assert not pushed.requires_grad
    table = bespoke.solver.table
    torch.testing.assert_close(pushed, sample(table, lambda t, x: mixture(CondOT())(t, x) + push, x0.detach()))
    (gradient,) = torch.autograd.grad(bespoke.sample(x0, enable_grad=True).sum(), x0)
    assert gradient.abs().min() > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step_size": 0.1}, r"got \{'step_size': 0\.1\}, but this solver's steps are its own"),
        ({"method": "midpoint", "rtol": 1e-3}, r"got \{'method': 'midpoint', 'rtol': 0\.001\}"),
        ({"time_grid": torch.tensor([0.0, 0.5, 1.0])}, r"time_grid \[0\.0, 0\.5, 1\.0\], but .* from 0 to 1"),
        ({"time_grid": torch.tensor([1.0, 0.0])}, r"time_grid \[1\.0, 0\.0\]"),
    ],
)
def test_what_would_be_ignored_is_refused(arguments, message):
    network = Network()
    with pytest.raises(ValueError, match=message):
        BespokeSolver(network, Solver(full_table(3))).sample(points(), **arguments)
    assert network.times == []


def test_a_solver_is_fitted_to_such_a_model():
    def network(x, t, shift):
        return mixture(CondOT())(t, x - shift)

    model = as_model(
        network,
        CondOT(),
        (3,),
        draw_condition=lambda generator: {"shift": torch.rand(1, generator=generator)},
        dtype=F64,
    )
    solver = fit(model, nfe=4, effort="low", paths=32, validation_paths=32, progress=False)
    assert solver.validation["rmse"] < 0.5 * solver.validation["baseline_rmse"]
    noise = model.noise(range(4))
    x1 = BespokeSolver(network, solver).sample(noise.x0, **noise.condition)
    assert torch.equal(x1, solver.sample(model.bind(noise.condition), noise.x0))


@pytest.mark.parametrize("name", ["Polynomial", "LinearVP"])
def test_the_paths_that_only_flow_matching_has(name):
    schedule, t = OURS[name], torch.linspace(0.05, 0.95, 19, dtype=F64)
    path, h = schedule(t), 1e-6
    before, after = schedule(t - h), schedule(t + h)
    torch.testing.assert_close((after.alpha - before.alpha) / (2 * h), path.d_alpha, rtol=1e-6, atol=0)
    torch.testing.assert_close((after.sigma - before.sigma) / (2 * h), path.d_sigma, rtol=1e-6, atol=0)
    torch.testing.assert_close(schedule.time(schedule.log_snr(t)), t)
    torch.testing.assert_close(schedule.variance_rate(t), path.sigma * path.d_sigma)
    between = transformed_velocity(mixture(CondOT()), Between(CondOT(), schedule))
    for r in t:
        torch.testing.assert_close(between(r, points()), mixture(schedule)(r, points()), rtol=1e-9, atol=1e-9)


def test_a_schedule_in_the_place_of_a_scheduler():
    vp = AsScheduler(VP())
    t = torch.linspace(0.1, 0.9, 9)
    output = vp(t)
    assert torch.equal(output.d_sigma_t, VP()(t).d_sigma.float())
    torch.testing.assert_close(vp.snr_inverse(output.alpha_t / output.sigma_t), t)
    assert schedule_from(vp) == schedule_from(VP()) == VP()


def test_an_unknown_scheduler_is_refused():
    with pytest.raises(ValueError, match=r"known for a str; expected one of CondOTScheduler, .*, or a bespoke_solvers"):
        schedule_from("VP")


def theirs():
    """The schedulers of the library that the schedules of `OURS` are."""
    scheduler = pytest.importorskip("flow_matching.path.scheduler")
    return {
        "CondOT": scheduler.CondOTScheduler(),
        "Cosine": scheduler.CosineScheduler(),
        "VP": scheduler.VPScheduler(),
        "Polynomial": scheduler.PolynomialConvexScheduler(1.5),
        "LinearVP": scheduler.LinearVPScheduler(),
    }


@pytest.mark.parametrize("name", OURS)
def test_schedules_convert_both_ways(name):
    scheduler, schedule = theirs()[name], OURS[name]
    assert schedule_from(scheduler) == schedule
    t = torch.linspace(0.05, 0.95, 19, dtype=F64)
    expected, path = scheduler(t), AsScheduler(schedule)(t)
    for field in ("alpha_t", "sigma_t", "d_alpha_t", "d_sigma_t"):
        torch.testing.assert_close(getattr(path, field), getattr(expected, field), rtol=1e-9, atol=1e-9)
    snr = expected.alpha_t / expected.sigma_t
    torch.testing.assert_close(AsScheduler(schedule).snr_inverse(snr), scheduler.snr_inverse(snr))


def test_parameters_of_a_scheduler_are_kept():
    theirs()
    from flow_matching.path.scheduler import PolynomialConvexScheduler, VPScheduler

    assert schedule_from(VPScheduler(beta_min=0.2, beta_max=10)) == VP(B=10.0, b=0.2)
    assert schedule_from(PolynomialConvexScheduler(2)) == Polynomial(2.0)


@pytest.mark.parametrize(("source", "target"), list(permutations(OURS, 2)))
def test_their_transform_of_a_model_is_ours(source, target):
    """ScheduleTransformedModel against `transformed_velocity`: Theorem 2.3 by two hands."""
    schedulers = theirs()
    from flow_matching.path.scheduler import ScheduleTransformedModel

    network = Network(OURS[source])
    transformed = ScheduleTransformedModel(network, schedulers[source], schedulers[target])
    ours = transformed_velocity(network.u, Between(OURS[source], OURS[target]))
    low = float(OURS[target].time(OURS[source].log_snr(torch.tensor(1e-3, dtype=F64))))
    for r in torch.linspace(low + 0.01, 0.98, 15, dtype=F64):
        torch.testing.assert_close(ours(r, points()), transformed(x=points(), t=r), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("target", [name for name in SCHEDULES if name not in OURS])
def test_their_transform_takes_our_schedules(target):
    theirs()
    from flow_matching.path.scheduler import ScheduleTransformedModel

    network, schedule = Network(), SCHEDULES[target]
    transformed = ScheduleTransformedModel(network, AsScheduler(CondOT()), AsScheduler(schedule))
    for r in torch.linspace(0.1013, 0.9013, 7, dtype=F64):
        x = points() * (1 + schedule(r).sigma)
        torch.testing.assert_close(transformed(x=x, t=r), mixture(schedule)(r, x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("method", "evaluations"), [("euler", 1), ("midpoint", 2)])
def test_in_the_place_of_their_solver(method, evaluations):
    flow_solver = pytest.importorskip("flow_matching.solver")
    solver = Solver(baseline(method, 4 * evaluations))
    ours, network = BespokeSolver(Network(), solver), Network()
    expected = flow_solver.ODESolver(network).sample(x_init=points(), step_size=0.25, method=method)
    torch.testing.assert_close(ours.sample(x_init=points()), expected)
    assert len(ours.velocity_model.times) == len(network.times)
    names = [*inspect.signature(flow_solver.ODESolver.sample).parameters]
    assert [*inspect.signature(BespokeSolver.sample).parameters] == names


def test_a_path_of_theirs_takes_our_schedule():
    theirs()
    from flow_matching.path import AffineProbPath

    x1, x0, t = points(seed=1), points(), torch.linspace(0.1, 0.9, 8, dtype=F64)
    got = AffineProbPath(AsScheduler(EDM())).sample(x_0=x0, x_1=x1, t=t)
    torch.testing.assert_close(got.x_t, x1 + EDM()(t).sigma[:, None] * x0)


def test_the_description_names_the_path():
    model = as_model(Network(Polynomial(2.0)), Polynomial(2.0), (3,), domain=(0.01, 1.0))
    assert describe(model)["schedule"] == {"name": "Polynomial", "n": 2.0}


def test_the_example(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, EXAMPLE], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(EXAMPLE.read_text().splitlines()) < 60
    calls, ours, midpoint = re.search(r"(\d+) calls; RMSE (\S+), midpoint (\S+)", done.stdout).groups()
    assert calls == "8"
    assert float(ours) < 0.5 * float(midpoint)


def test_the_page(tmp_path):
    (printed,) = run_blocks(ROOT / "docs" / "flow_matching.md", tmp_path)
    assert printed.startswith("(9, 1000, 2) at the times [")
    assert printed.endswith(", 1.0]\n")
