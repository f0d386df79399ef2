"""Models in diffusers' folders, against diffusers itself."""

import json
import math

import pytest
import torch
from typer.testing import CliRunner

import bespoke_solvers
from bespoke_solvers import models
from bespoke_solvers.adapters.diffusers import TRAINING, load, meaning_of
from bespoke_solvers.cli import app
from bespoke_solvers.models import resolve
from bespoke_solvers.schedules import VP, CondOT, DiscreteVP
from bespoke_solvers.table import sample
from pipelines import unet

diffusers = pytest.importorskip("diffusers")


def saved(folder, scheduler, **options):
    """A U-Net with its scheduler's configuration beside it."""
    network = unet(**options)
    network.save_pretrained(folder)
    if scheduler is not None:
        scheduler.save_pretrained(folder)
    return network


def points(count=3, seed=0):
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


PREDICTIONS = {"epsilon": "epsilon", "v_prediction": "v", "sample": "x-start"}


@pytest.mark.parametrize("predicted", PREDICTIONS)
def test_the_network_gets_its_index_and_its_output_its_meaning(tmp_path, predicted):
    """At an index of the schedule, the data that the velocity points to is that of diffusers' own step."""
    scheduler = diffusers.DDIMScheduler(prediction_type=predicted, clip_sample=False)
    network = saved(tmp_path, scheduler)
    model = load(tmp_path)
    assert model.prediction == PREDICTIONS[predicted]
    assert isinstance(model.schedule, DiscreteVP)
    x, index = points(), 400
    t = torch.tensor(1 - (index + 1) / 1000, dtype=torch.float64)
    output = network(x, torch.tensor(float(index))).sample
    scheduler.set_timesteps(1000)
    expected = scheduler.step(output, index, x).pred_original_sample
    path = model.schedule(t)
    u = model.bind()(t.float(), x)
    x1 = (path.sigma * u - path.d_sigma * x) / (path.d_alpha * path.sigma - path.d_sigma * path.alpha)
    torch.testing.assert_close(x1.float(), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", ["DDIMScheduler", "DPMSolverMultistepScheduler", "UniPCMultistepScheduler"])
@pytest.mark.parametrize("betas", ["linear", "scaled_linear"])
def test_a_terminal_snr_of_zero_is_read_as_each_scheduler_has_it(name, betas):
    """Some of diffusers' have 2^-24 in the place of 0, which may be more than the number before it."""
    scheduler = getattr(diffusers, name)(
        beta_schedule=betas, prediction_type="v_prediction", rescale_betas_zero_snr=True
    )
    schedule = meaning_of(dict(scheduler.config) | {"_class_name": name}).schedule
    own = scheduler.alphas_cumprod.double()
    assert torch.equal(torch.tensor(schedule.alphas_cumprod[:-1], dtype=torch.float64), own[:-1])
    assert schedule.alphas_cumprod[-1] in (0, own[-1].item())
    assert schedule.alphas_cumprod[-1] < schedule.alphas_cumprod[-2]


def test_a_flow_network_runs_as_in_its_own_scheduler(tmp_path):
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=1.0)
    network = saved(tmp_path, scheduler)
    model = load(tmp_path)
    assert model.schedule == CondOT()
    x = points()
    scheduler.set_timesteps(sigmas=[1.0, 0.75, 0.5, 0.25])
    expected = x
    for time in scheduler.timesteps:
        expected = scheduler.step(network(expected, time).sample, time, expected).prev_sample
    from bespoke_solvers.generic import baseline

    torch.testing.assert_close(sample(baseline("euler", 4), model.bind(), x), expected, rtol=1e-4, atol=1e-4)


def test_a_pipeline_is_read_too(tmp_path):
    network = unet()
    diffusers.DDPMPipeline(network, diffusers.DDPMScheduler()).save_pretrained(tmp_path)
    model = resolve(str(tmp_path))
    assert model.shape == (3, 8, 8)
    assert model.prediction == "epsilon"
    assert model.draw_condition is None


def test_classes_are_drawn(tmp_path):
    network = saved(tmp_path, diffusers.FlowMatchEulerDiscreteScheduler(), num_class_embeds=5)
    model = load(tmp_path)
    noise = model.noise(range(64))
    assert sorted(set(noise.condition.tolist())) == [0, 1, 2, 3, 4]
    assert model.labels == ("0", "1", "2", "3", "4")
    t = torch.tensor(0.25)
    expected = -network(noise.x0, torch.tensor(750.0), class_labels=noise.condition).sample
    torch.testing.assert_close(model.bind(noise.condition)(t, noise.x0), expected, rtol=1e-4, atol=1e-4)


def record(**changes):
    values = {"prediction": "epsilon", "schedule": {"name": "VP", "B": 20.0, "b": 0.1}, "data": {"classes": [*"abcd"]}}
    return json.dumps(values | changes)


def test_the_record_of_our_own_training_says_all(tmp_path):
    network = saved(tmp_path, None, num_class_embeds=5)
    (tmp_path / TRAINING).write_text(record())
    model = load(tmp_path, guidance=2.0)
    assert model.schedule == VP()
    assert model.guidance == 2.0
    noise = model.noise(range(32))
    assert sorted(set(noise.condition.tolist())) == [0, 1, 2, 3], "not the label of no class"
    assert model.labels == ("a", "b", "c", "d")
    t = torch.tensor(0.5)
    plain, with_label = (
        network(noise.x0, torch.tensor(500.0), class_labels=label).sample
        for label in (torch.full((32,), 4), noise.condition)
    )
    epsilon = plain + 2 * (with_label - plain)
    path = VP()(t)
    expected = path.d_alpha / path.alpha * noise.x0 - path.wronskian / path.alpha * epsilon
    torch.testing.assert_close(model.bind(noise.condition)(t, noise.x0), expected.float(), rtol=1e-3, atol=1e-3)


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json is not there"):
        load(tmp_path)
    saved(tmp_path, None, num_class_embeds=5)
    with pytest.raises(ValueError, match=r"no scheduler_config\.json to say what its network predicts"):
        load(tmp_path)
    diffusers.FlowMatchEulerDiscreteScheduler().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="guidance 2 needs a label for no class"):
        load(tmp_path, guidance=2.0)
    diffusers.EDMEulerScheduler().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="'EDMEulerScheduler'"):
        load(tmp_path)
    for broken in ("{", "[]", json.dumps({"prediction": "epsilon"}), record(schedule={"name": "Elsewhere"})):
        (tmp_path / TRAINING).write_text(broken)
        with pytest.raises(ValueError, match=TRAINING):
            load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / TRAINING).write_text(record())
    (tmp_path / "config.json").write_text(json.dumps(config | {"sample_size": None}))
    with pytest.raises(ValueError, match=r"config\.json does not say how large the pictures are; write a sample_size"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"_class_name": "Transformer2DModel"}))
    with pytest.raises(ValueError, match="holds a Transformer2DModel; expected a UNet2DModel"):
        load(tmp_path)


def test_what_a_configuration_leaves_out_is_as_diffusers_has_it(tmp_path):
    saved(tmp_path, diffusers.DDPMScheduler())
    whole = load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "in_channels"}))
    assert load(tmp_path).shape == whole.shape


def test_a_pipeline_with_more_in_it_is_refused(tmp_path):
    saved(tmp_path / "unet", None)
    index = {"_class_name": "LDMPipeline", "unet": ["diffusers", "UNet2DModel"], "vqvae": ["diffusers", "VQModel"]}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="has vqvae; expected a U-Net and a scheduler"):
        load(tmp_path)


def test_guidance_is_for_folders():
    with pytest.raises(ValueError, match="guidance 2 is for models in diffusers' folders; toy:digits"):
        resolve("toy:digits", guidance=2.0)
    for scale in (math.nan, math.inf):
        with pytest.raises(ValueError, match=f"guidance {scale} is no scale; expected a finite number"):
            resolve("zoo:cifar10-fm-ot", guidance=scale)


@pytest.mark.filterwarnings("ignore:the reference's own RMSE")
def test_the_command_fits_a_folder(tmp_path):
    saved(tmp_path / "my.model", diffusers.FlowMatchEulerDiscreteScheduler(), num_class_embeds=3)
    options = ["--nfe", "3", "--effort", "low", "--paths", "4", "--validation-paths", "4", "--batch-size", "4"]
    options += ["--tolerance", "1e-2"]
    out = tmp_path / "solver.json"
    ran = CliRunner().invoke(app, ["fit", str(tmp_path / "my.model"), *options, "--out", str(out), "--quiet"])
    assert ran.exit_code == 0, ran.output
    solver = bespoke_solvers.load(out)
    assert solver.nfe == 3
    assert solver.model["conditional"]
    assert (tmp_path / "my-model.bank" / "bank.json").exists()
    grid = tmp_path / "grid.png"
    options = ["--solver", str(out), "--seeds", "0-3", "--out", str(grid), "--quiet"]
    ran = CliRunner().invoke(app, ["sample", str(tmp_path / "my.model"), *options])
    assert ran.exit_code == 0, ran.output
    assert grid.exists()


def test_a_folder_is_copied_to_the_other_gpus(tmp_path, monkeypatch):
    asked, model = [], bespoke_solvers.toy.load("toy:checkerboard")
    monkeypatch.setattr(models, "resolve", lambda *given, **options: asked.append((*given, options)) or model)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert models.copies(str(tmp_path), 2.0) == [model, model]
    assert asked == [(str(tmp_path), 2.0, {"device": f"cuda:{i}"}) for i in (1, 2)]
    assert models.copies("toy:digits") == models.copies(str(tmp_path), offload="model") == []


def test_a_scheduler_that_diffusers_cannot_make_is_refused():
    config = {"_class_name": "DDPMScheduler", "beta_schedule": "cubic", "prediction_type": "epsilon"}
    with pytest.raises(ValueError, match="diffusers cannot make the scheduler of this folder: cubic"):
        meaning_of(config)


@pytest.mark.parametrize("written", [False, True])
def test_a_training_that_is_not_finished_is_told(written, tmp_path):
    (tmp_path / "checkpoint.pt").touch()
    if written:  # up to its record
        (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"the training in .* is not finished; give its command again"):
        resolve(str(tmp_path))


def test_a_checkpoint_of_others_in_a_folder_is_their_own(tmp_path):
    """With a scheduler beside it, it says nothing of a training."""
    for name in ("config.json", "scheduler_config.json", "checkpoint.pt"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match="holds a None; expected a UNet2DModel"):
        resolve(str(tmp_path))
