"""Sampling as k-diffusion calls it, against the plain loop."""

import dataclasses
import os
import re
import subprocess
import sys
from itertools import pairwise

import pytest
import torch

from bespoke_solvers.adapters.k_diffusion import level, sample_bespoke, sigmas
from bespoke_solvers.description import describe
from bespoke_solvers.generic import baseline
from bespoke_solvers.schedules import EDM, VP, CondOT
from bespoke_solvers.solver import Solver
from bespoke_solvers.table import Table, sample
from bespoke_solvers.velocity import Model
from problems import CENTRES, F64, SCHEDULES, STD, full_table, mixture, points
from test_documentation import ROOT, run_blocks

EXAMPLE = ROOT / "examples" / "with_k_diffusion.py"


def posterior_mean(x, alpha, sigma):
    """E[x1 | x] of the mixture of `problems` where x = alpha x1 + sigma x0, by Bayes' formula."""
    spread = (alpha * STD) ** 2 + sigma**2
    off = x[:, None] - alpha * CENTRES.to(x)
    weights = (-off.square().sum(-1) / (2 * spread)).softmax(1)
    return (weights[..., None] * (CENTRES.to(x) + alpha * STD**2 * off / spread)).sum(1)


class Denoiser:
    """model(x, sigma, **extra_args) of either kind, which remembers where it was called."""

    def __init__(self, scaling):
        self.scaling, self.calls = scaling, []

    def __call__(self, x, sigma, **extra_args):
        assert sigma.shape == (len(x),)
        assert extra_args == {"cond": "a cat"}
        self.calls.append((x.clone(), sigma[0].item()))
        return posterior_mean(x, 1.0 if self.scaling == "ve" else 1 - sigma[0], sigma[0])


def solver_for(schedule, nfe=5, **fields):
    """A solver in which no number is 0, and the velocity that it is for."""
    model = Model(velocity=mixture(schedule), shape=(3,), schedule=schedule, dtype=F64, **fields)
    return Solver(full_table(nfe).on(model), model=describe(model)), model.velocity


PATHS = {name: {} for name in SCHEDULES} | {"CondOT": {"domain": (0.02, 0.98)}, "Cosine": {"domain": (0.02, 0.98)}}
VE = [(name, "ve") for name in PATHS if name != "zero-terminal"]


@pytest.mark.parametrize(("name", "scaling"), VE + [(name, "flow") for name in PATHS])
def test_a_denoiser_gives_the_samples_of_the_plain_loop(name, scaling):
    solver, u = solver_for(SCHEDULES[name], **PATHS[name])
    x0, model, seen = points(), Denoiser(scaling), []
    levels = sigmas(solver, scaling).double()
    x1 = sample_bespoke(
        model, levels[0] * x0, levels, {"cond": "a cat"}, seen.append, True, solver=solver, scaling=scaling
    )
    torch.testing.assert_close(x1, sample(solver.table, u, x0), rtol=1e-6, atol=1e-6)

    assert len(model.calls) == solver.nfe == len(levels) - 1
    assert levels[-1] == 0
    assert [call["i"] for call in seen] == list(range(solver.nfe))
    for call, (x, sigma), given in zip(seen, model.calls, levels, strict=False):
        assert call.keys() == {"x", "i", "sigma", "sigma_hat", "denoised"}
        assert call["sigma"] == given
        assert call["sigma_hat"] == sigma
        assert torch.equal(call["x"], x)
        expected = posterior_mean(x, 1.0 if scaling == "ve" else 1 - sigma, sigma)
        torch.testing.assert_close(call["denoised"], expected)
    assert [sigma for _, sigma in model.calls][1:] == levels[1:-1].tolist(), "exactly those that were given"
    assert model.calls[0][1] < levels[0], "the first evaluation of this table is later than the noise"


def test_the_levels_are_those_of_the_signal_to_noise_ratio():
    solver, _ = solver_for(VP())
    log_snr = VP().log_snr(torch.cat([torch.zeros(1, dtype=F64), solver.table.t[1:]]))
    torch.testing.assert_close(sigmas(solver)[:-1].double(), (-log_snr).exp(), rtol=1e-6, atol=0)
    torch.testing.assert_close(sigmas(solver, "flow")[:-1].double(), torch.sigmoid(-log_snr), rtol=1e-6, atol=0)
    edm, _ = solver_for(EDM(sigma_max=10.0))
    assert sigmas(edm)[0] == 10
    assert torch.equal(sigmas(edm, sigma_max=9.99), sigmas(edm)), "another rounding of the same model"


def test_a_noise_of_another_scale():
    solver, u = solver_for(SCHEDULES["discrete"])
    x0, levels = points(), sigmas(solver).double()
    scale = (1 + levels[0].item() ** 2) ** 0.5
    model = Denoiser("ve")
    x1 = sample_bespoke(model, scale * x0, levels, {"cond": "a cat"}, disable=True, solver=solver, noise_scale=scale)
    torch.testing.assert_close(x1, sample(solver.table, u, x0), rtol=1e-6, atol=1e-6)


def test_zero_terminal_snr_begins_at_the_models_largest_sigma():
    """What the table evaluates at alpha = 0 is evaluated at a very small alpha."""
    solver, u = solver_for(SCHEDULES["zero-terminal"])
    table = dataclasses.replace(solver.table, t=torch.cat([torch.zeros(1, dtype=F64), solver.table.t[1:]]))
    solver = dataclasses.replace(solver, table=table)
    with pytest.raises(ValueError, match="begins at sigma = infinity; give sigma_max"):
        sigmas(solver)
    with pytest.raises(ValueError, match=r"begins at inf .*, but here it begins at 80;"):
        sigmas(solver, sigma_max=80.0)
    levels = sigmas(solver, sigma_max=4518.0)
    assert levels[0] == 4518
    x0, model = points(), Denoiser("ve")
    x1 = sample_bespoke(model, 4518 * x0, levels.double(), {"cond": "a cat"}, disable=True, solver=solver)
    torch.testing.assert_close(x1, sample(table, u, x0), rtol=0, atol=1e-3)
    assert model.calls[0][1] == 4518


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_state_is_carried_in_float32(dtype):
    solver, u = solver_for(SCHEDULES["discrete"])
    levels, x0 = sigmas(solver).to(dtype), points()
    dtypes = set()

    def model(x, sigma):
        dtypes.add((x.dtype, sigma.dtype))
        return posterior_mean(x.float(), 1.0, sigma[0].float()).to(dtype)

    x1 = sample_bespoke(model, (levels[0] * x0).to(dtype), levels, disable=True, solver=solver)
    assert x1.dtype == dtype
    assert dtypes == {(dtype, dtype)}
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-2}[dtype]
    torch.testing.assert_close(x1.float(), sample(solver.table, u, x0.float()), rtol=0, atol=tolerance)


def test_sigmas_of_something_else_are_refused():
    solver, _ = solver_for(SCHEDULES["discrete"])
    levels, x = sigmas(solver), points().float()

    def run(given):
        return sample_bespoke(lambda x, sigma: x, x, given, disable=True, solver=solver)

    karras = torch.cat([torch.linspace(14.6 ** (1 / 7), 0.03 ** (1 / 7), 5) ** 7, torch.zeros(1)])
    for wrong in (karras, levels[:-1], levels[:3], sigmas(solver, "flow"), torch.cat([levels[:1], levels])):
        with pytest.raises(ValueError, match=r"got the sigmas \[.*\]; this solver of 5 evaluations goes with \[14\.6"):
            run(wrong)
    assert torch.equal(run(levels[-1:]), x), "nothing to do"


def dpm_solver_pp_2m(model, x, levels):
    """DPM-Solver++(2M) on the VE path, step by step."""
    before = None
    for sigma, after in pairwise(levels):
        now = model(x, sigma * torch.ones(len(x), dtype=x.dtype), cond="a cat")
        blend = now
        if before is not None and after > 0:
            h, last = (sigma / after).log(), (before[0] / sigma).log()
            blend = now + (now - before[1]) * h / (2 * last)
        x = (after / sigma) * x + (1 - after / sigma) * blend
        before = sigma, now
    return x


@pytest.mark.parametrize("name", ["discrete", "VP", "EDM", "CondOT"])
@pytest.mark.parametrize("skipped", [1, 3, 4])
def test_img2img_runs_dpm_solver_along_the_solvers_times(name, skipped):
    solver, _ = solver_for(SCHEDULES[name], **PATHS[name])
    levels, model, seen = sigmas(solver).double()[skipped:], Denoiser("ve"), []
    x = points(seed=1) + levels[0] * points()
    with pytest.warns(UserWarning, match=rf"evaluation {skipped + 1} of 5 \(img2img\).* DPM-Solver\+\+\(2M\)"):
        x1 = sample_bespoke(model, x, levels, {"cond": "a cat"}, seen.append, True, solver=solver)
    assert [sigma for _, sigma in model.calls] == levels[:-1].tolist()
    assert [call["i"] for call in seen] == list(range(5 - skipped))
    torch.testing.assert_close(model.calls[0][0], x, rtol=1e-6, atol=0)
    torch.testing.assert_close(x1, dpm_solver_pp_2m(Denoiser("ve"), x, levels), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "scaling"), [("VP", "ve"), ("EDM", "ve"), ("CondOT", "flow")])
def test_img2img_takes_the_solvers_own_table_for_that_start(name, scaling):
    solver, u = solver_for(SCHEDULES[name], **PATHS[name])
    t, a, b = solver.table.t[2:], 0.9 * solver.table.a[2:], 1.1 * solver.table.b[2:, 2:]
    begun = dataclasses.replace(solver, starts={2: Table(t, a, b)})
    levels, x = sigmas(solver, scaling).double()[2:], points()
    x_bar = level(SCHEDULES[name], t[0], scaling).scale * x
    x1 = sample_bespoke(
        Denoiser(scaling), x_bar, levels, {"cond": "a cat"}, disable=True, solver=begun, scaling=scaling
    )
    torch.testing.assert_close(x1, sample(begun.starts[2], u, x / a[0]), rtol=1e-6, atol=1e-6)


def test_solvers_that_cannot_serve_are_refused():
    solver, _ = solver_for(VP())
    with pytest.raises(ValueError, match=r"sigma begins at 152\.\d* \(path VP, scaling 've'\), but here .* at 14\.6;"):
        sigmas(solver, sigma_max=14.6)
    heun = Solver(baseline("heun", 4), model=solver_for(CondOT())[0].model)
    with pytest.raises(ValueError, match=r"times \[0\.0, 0\.5, 0\.5, 1\.0\], and one of them has sigma = 0"):
        sigmas(heun, "flow")
    with pytest.raises(ValueError, match="on the path of an unknown name"):
        sigmas(Solver(solver.table))
    with pytest.raises(ValueError, match=r"samples of the shape \(3,\), got a batch of \(2, 4\)"):
        sample_bespoke(Denoiser("ve"), torch.zeros(2, 4), sigmas(solver), solver=solver)


def test_a_latent_that_is_packed_otherwise_is_the_same_to_a_table():
    solver, _ = solver_for(VP())
    levels = sigmas(solver)
    x = levels[0] * points().float()
    flat, folded = (
        sample_bespoke(lambda x, _: 0.5 * x, start, levels, disable=True, solver=solver)
        for start in (x, x.reshape(2, 4, 3))
    )
    assert torch.equal(folded.reshape(8, 3), flat)


def test_the_progress_bar_counts_evaluations(capfd):
    solver, _ = solver_for(VP())
    run = [lambda x, sigma: 0.5 * x, points().float(), sigmas(solver), None, None]
    sample_bespoke(*run, True, solver=solver)
    assert capfd.readouterr().err == ""
    sample_bespoke(*run, False, solver=solver)
    assert "5/5" in capfd.readouterr().err


def test_the_table_may_hold_a_repeated_time():
    table = baseline("rk4", 4)
    t = torch.tensor([0.0, 0.5, 0.5, 0.9], dtype=F64)
    solver, u = solver_for(VP(), nfe=4)
    solver = dataclasses.replace(solver, table=Table(t, table.a, table.b))
    levels = sigmas(solver).double()
    assert levels[1] == levels[2]
    x1 = sample_bespoke(Denoiser("ve"), levels[0] * points(), levels, {"cond": "a cat"}, disable=True, solver=solver)
    torch.testing.assert_close(x1, sample(solver.table, u, points()), rtol=1e-6, atol=1e-6)


def test_the_example(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, EXAMPLE], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    calls, distance = re.search(r"(\d+) calls; .* is (\S+), ideally", done.stdout).groups()
    assert calls == "8"
    assert float(distance) == pytest.approx(0.1 * 2**0.5, rel=0.05)


def test_the_page(tmp_path):
    (printed,) = run_blocks(ROOT / "docs" / "comfyui.md", tmp_path)
    assert float(re.search(r"off the plain loop by (\S+)", printed)[1]) < 1e-3
