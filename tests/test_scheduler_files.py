"""BespokeScheduler as it is made, saved and loaded, and what is refused and warned of on the way."""

import copy
import json
import pickle
import re
import runpy
import subprocess
import sys
from pathlib import Path

import diffusers
import pytest
import torch

import bespoke_solvers
from bespoke_solvers import BespokeScheduler, Solver, load
from bespoke_solvers.models import resolve
from bespoke_solvers.schedules import VP
from bespoke_solvers.solver import save, save_pretrained
from bespoke_solvers.table import sample
from pipelines import quiet, unet
from schedulers import BETAS, DISCRETE, KINDS, ddpm, make, noise, run, thousandths, velocity


@pytest.fixture(scope="module")
def network():
    return unet()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "s.json"
    save([make(4), make(6)], path)
    return path


def test_the_configuration_holds_the_whole_solver(file, tmp_path):
    scheduler = BespokeScheduler.from_solver(file, ddpm(prediction_type="epsilon"))
    scheduler.save_pretrained(tmp_path / "scheduler")
    kept = json.loads((tmp_path / "scheduler" / "scheduler_config.json").read_text())
    assert kept["solver"] == json.loads(file.read_text())
    assert (kept["beta_end"], kept["replaced"]) == (0.004, "DDPMScheduler")
    again = BespokeScheduler.from_pretrained(tmp_path / "scheduler")
    again.set_timesteps(6)
    scheduler.set_timesteps(6)
    assert torch.equal(again.timesteps, scheduler.timesteps)
    other = BespokeScheduler.from_solver(load(file, 4), again)
    assert (list(other.solvers), other.config.replaced) == ([4], "DDPMScheduler")
    back = diffusers.DPMSolverMultistepScheduler.from_config(again.config)
    assert torch.equal(back.alphas_cumprod, ddpm().alphas_cumprod), "the stock schedulers find what they need"
    with pytest.raises(ValueError, match=r"needs a solver; make it with BespokeScheduler\.from_solver"):
        BespokeScheduler.from_config(ddpm().config)


def test_a_folder_gives_all_its_tables(tmp_path):
    """As `save_pretrained` and the Hub have them, so that one line puts a shared solver into a pipeline."""
    save_pretrained([make(4), make(6)], tmp_path / "shared")
    assert list(BespokeScheduler.from_solver(tmp_path / "shared", ddpm()).solvers) == [4, 6]


def test_a_copy_made_in_the_middle_of_a_run_does_not_go_on_as_if_it_began(file, network):
    """Pipelines say where to begin, so that nothing else would tell."""
    scheduler = BespokeScheduler.from_solver(file, ddpm())
    scheduler.set_timesteps(4)
    scheduler.set_begin_index(0)
    x = noise()
    x = scheduler.step(x, scheduler.timesteps[0], x).prev_sample
    again = copy.deepcopy(scheduler)
    with pytest.raises(ValueError, match="copied in the middle of a run; call set_timesteps"):
        again.step(x, again.timesteps[1], x)
    again.set_timesteps(4)
    again.step(x, again.timesteps[0], x)


def test_it_may_be_pickled_at_any_time(file, network):
    scheduler = BespokeScheduler.from_solver(file, ddpm())
    for _ in range(2):  # before a run, and after it
        again = pickle.loads(pickle.dumps(scheduler))
        torch.testing.assert_close(run(again, network, noise()), run(scheduler, network, noise()), rtol=0, atol=0)


def test_what_was_replaced_is_the_last_scheduler(file):
    """A scheduler of diffusers that was made of our configuration carries it on; a class of the user's has its base."""
    again = diffusers.DPMSolverMultistepScheduler.from_config(BespokeScheduler.from_solver(file, ddpm()).config)
    assert BespokeScheduler.from_solver(file, again).config.replaced == "DPMSolverMultistepScheduler"
    own = type("Mine", (diffusers.DDPMScheduler,), {})(**BETAS, clip_sample=False)
    assert BespokeScheduler.from_solver(file, own).config.replaced == "DDPMScheduler"
    parts = (diffusers.SchedulerMixin, diffusers.ConfigMixin)
    flow = type("FlowMatchMine", parts, {"config": {"num_train_timesteps": 1000}})()
    solver = make(4, **KINDS["flow"][1])
    assert BespokeScheduler.from_solver(solver, flow).config.replaced == "FlowMatchMine", "none of diffusers' own"


def test_an_edited_configuration_is_refused(file, tmp_path):
    BespokeScheduler.from_solver(file, ddpm()).save_pretrained(tmp_path)
    path = tmp_path / "scheduler_config.json"
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"beta_end": 0.02}))
    with pytest.raises(ValueError, match="made for a model with schedule"):
        BespokeScheduler.from_pretrained(tmp_path).set_timesteps(4)
    kept["solver"]["tables"]["4"]["a"][1] = 7.0
    path.write_text(json.dumps(kept))
    with pytest.raises(ValueError, match="the solver of this scheduler: table 4: field 'digest' does not belong"):
        BespokeScheduler.from_pretrained(tmp_path)


def test_a_solver_for_another_network_is_refused():
    refused = [
        (make(), ddpm(prediction_type="v_prediction"), r"prediction epsilon \(here v\)"),
        (make(), diffusers.DDPMScheduler(), "schedule "),
        (make(), None, "network time "),
        (make(schedule=VP(), own_time=thousandths), ddpm(), "schedule .*'VP'"),
        (make(own_time=thousandths), ddpm(), "network time "),
        (Solver(make().table), None, "does not say its model's schedule"),
    ]
    for solver, scheduler, named in refused:
        with pytest.raises(ValueError, match=named):
            BespokeScheduler.from_solver(solver, scheduler)
    for config in ({"use_flow_sigmas": True}, {"prediction_type": "flow_prediction"}):
        with pytest.raises(ValueError, match="with use_flow_sigmas and flow_prediction"):
            BespokeScheduler.from_solver(make(), diffusers.DPMSolverMultistepScheduler(**config))
    continuous = diffusers.EulerDiscreteScheduler(timestep_type="continuous", prediction_type="v_prediction")
    with pytest.raises(ValueError, match=r"timestep_type 'continuous', whose network gets log\(sigma\) / 4"):
        BespokeScheduler.from_solver(make(prediction="v"), continuous)


def test_other_channels_are_refused_another_size_is_warned_of(network):
    with pytest.raises(ValueError, match=r"made for a model with shape \[4, 8, 8\] \(here \[3, 8, 8\]\)"):
        run(BespokeScheduler.from_solver(make(shape=(4, 8, 8)), ddpm()), network, noise())
    with pytest.warns(UserWarning, match=r"made for a model with shape \[3, 16, 16\] .* may serve worse"):
        run(BespokeScheduler.from_solver(make(shape=(3, 16, 16)), ddpm()), network, noise())


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # inside diffusers' ancestral schedulers
@pytest.mark.parametrize(
    ("stock", "options", "named"),
    [
        (diffusers.DDIMScheduler, {}, "DDIMScheduler had clip_sample = True; a solver neither clips nor adds noise"),
        (diffusers.DDPMScheduler, {"thresholding": True}, "clip_sample = True, thresholding = True"),
        (diffusers.DPMSolverMultistepScheduler, {"algorithm_type": "sde-dpmsolver++"}, "algorithm_type = sde-dpm"),
        (diffusers.EulerAncestralDiscreteScheduler, {}, "AncestralDiscreteScheduler had noise in its steps; a solver"),
        (
            diffusers.LCMScheduler,
            {"clip_sample": True, "beta_schedule": "linear"},
            "clip_sample = True, noise in its steps",
        ),
    ],
)
def test_what_the_replaced_scheduler_did_is_named(stock, options, named):
    with pytest.warns(UserWarning, match=named):
        BespokeScheduler.from_solver(make(), stock(**BETAS, **options))


def test_a_saved_pipeline_is_found_once_the_package_is_imported(file, tmp_path, network):
    """diffusers looks a foreign class up in what is imported already; it imports nothing that a folder names."""
    pipe = quiet(diffusers.DDPMPipeline(network, BespokeScheduler.from_solver(file, ddpm())))
    pipe.save_pretrained(tmp_path / "pipe")
    index = json.loads((tmp_path / "pipe" / "model_index.json").read_text())
    assert index["scheduler"] == ["bespoke_solvers", "BespokeScheduler"]
    again = quiet(diffusers.DDPMPipeline.from_pretrained(tmp_path / "pipe", low_cpu_mem_usage=False))
    images = [
        p(2, torch.Generator().manual_seed(0), num_inference_steps=4, output_type="pt").images for p in (pipe, again)
    ]
    assert torch.equal(*images)
    program = """
import sys, diffusers
load = lambda: diffusers.DDPMPipeline.from_pretrained(sys.argv[1], low_cpu_mem_usage=False)
try:
    load()
except ValueError as error:
    assert "bespoke_solvers" in str(error) and "imported" in str(error), error
    print("not found")
import bespoke_solvers
print(type(load().scheduler).__name__)
"""
    ran = subprocess.run([sys.executable, "-c", program, tmp_path / "pipe"], capture_output=True, text=True)
    assert ran.stdout.split("\n")[:2] == ["not found", "BespokeScheduler"], ran.stderr


def test_a_saved_pipeline_is_a_model_again(file, tmp_path, network):
    quiet(diffusers.DDPMPipeline(network, BespokeScheduler.from_solver(file, ddpm()))).save_pretrained(tmp_path)
    model = resolve(str(tmp_path))
    assert model.prediction == "epsilon"
    torch.testing.assert_close(model.schedule(torch.tensor(0.5)).alpha, DISCRETE(torch.tensor(0.5)).alpha)
    meaning = KINDS["continuous epsilon"][1]
    BespokeScheduler.from_solver(make(4, **meaning)).save_pretrained(tmp_path / "scheduler")
    assert resolve(str(tmp_path)).schedule == VP(B=4.0)


@torch.no_grad()
def test_a_ddim_pipeline_takes_a_scheduler_of_its_own(file, network, tmp_path):
    ours = BespokeScheduler.from_solver(file, ddpm())
    pipe = quiet(diffusers.DDIMPipeline(network, ours))
    assert type(pipe.scheduler) is diffusers.DDIMScheduler, "whatever it was given"
    assert torch.equal(pipe.scheduler.alphas_cumprod, ddpm().alphas_cumprod)
    pipe.scheduler = ours
    images = pipe(2, torch.Generator().manual_seed(0), num_inference_steps=4, output_type="pt").images
    expected = sample(load(file, 4).table, velocity(network), noise())
    torch.testing.assert_close(images, (expected / 2 + 0.5).clamp(0, 1), rtol=0, atol=1e-5)
    pipe.save_pretrained(tmp_path / "pipe")
    again = diffusers.DDIMPipeline.from_pretrained(tmp_path / "pipe", low_cpu_mem_usage=False)
    assert type(again.scheduler) is diffusers.DDIMScheduler, "when it is loaded, too"
    with pytest.raises(ValueError, match=r"eta = 0\.5"):
        pipe(2, num_inference_steps=4, eta=0.5)


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(Path(__file__).parent.parent / "examples" / "diffusers_sampling.py"), run_name="__main__")
    printed = capsys.readouterr().out
    fitted, midpoint = map(float, re.search(r"samples (\S+), midpoint (\S+)", printed).groups())
    assert fitted < 0.2 * midpoint
    assert "the same pictures from the saved pipeline: True" in printed


def test_the_class_is_reached_by_the_package():
    assert BespokeScheduler is bespoke_solvers.adapters.scheduler.BespokeScheduler
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        bespoke_solvers.Nothing  # noqa: B018
