"""Models of latents, against the pipelines' own loops on tiny networks."""

import gc
import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
diffusers = pytest.importorskip("diffusers")

from transformers import CLIPTextModel  # noqa: E402

import pipelines as tiny  # noqa: E402, needs both
from bespoke_solvers.adapters.pipelines import as_model, load, read_prompts  # noqa: E402
from bespoke_solvers.bank import Bank  # noqa: E402
from bespoke_solvers.description import describe  # noqa: E402
from bespoke_solvers.generic import baseline  # noqa: E402
from bespoke_solvers.models import resolve  # noqa: E402
from bespoke_solvers.solver import Solver  # noqa: E402
from bespoke_solvers.velocity import ends  # noqa: E402
from pipelines import PROMPTS, SIZE  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in diffusers
ROOT = Path(__file__).parent.parent
MAKERS = {
    "sd": tiny.stable_diffusion,
    "sd-v": lambda: tiny.stable_diffusion("v_prediction"),
    "sdxl": tiny.stable_diffusion_xl,
    "sd3": tiny.stable_diffusion_3,
    "flux": tiny.flux,
    "schnell": lambda: tiny.flux(guidance_embeds=False),
    "pixart-sigma": tiny.pixart,
    "pixart-alpha": tiny.pixart_alpha,
    "dit": tiny.dit,
}


def make(name):
    return MAKERS[name]()


def network_of(pipe):
    return pipe.unet if hasattr(pipe, "unet") else pipe.transformer


def packed(pipe, x):
    return pipe._pack_latents(x, *x.shape) if isinstance(pipe, diffusers.FluxPipeline) else x


def unpacked(pipe, x):
    return pipe._unpack_latents(x, SIZE, SIZE, 2) if isinstance(pipe, diffusers.FluxPipeline) else x


def run_pipeline(pipe, numbers, x0, guidance, nfe=3, **options):
    """The pipeline's own loop from x0; each call of the scheduler's step (time, sample, what it returned)."""
    steps, step = [], pipe.scheduler.step

    def recorded(output, time, sample, *args, **kwargs):
        found = step(output, time, sample, *args, **kwargs)
        steps.append((time, sample, found[0] if isinstance(found, tuple) else found.prev_sample))
        return found

    pipe.scheduler.step = recorded
    common = {"num_inference_steps": nfe} | ({} if guidance is None else {"guidance_scale": guidance}) | options
    try:
        if isinstance(pipe, diffusers.DiTPipeline):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("diffusers.pipelines.dit.pipeline_dit.randn_tensor", lambda **kwargs: x0)
                result = pipe(numbers, output_type="pt", **common)
        else:
            common |= {"use_resolution_binning": False} if "PixArt" in type(pipe).__name__ else {}
            given = {"prompt": [PROMPTS[i] for i in numbers], "height": SIZE, "width": SIZE, "output_type": "latent"}
            result = pipe(**given | {"latents": packed(pipe, x0)} | common)
    finally:
        pipe.scheduler.step = step
    return steps, result.images


def one_step(scheduler, index, time, sample, model, condition):
    """The same Euler step in terms of the model's velocity: the noise and data it points from and to, mixed anew."""
    if isinstance(scheduler, diffusers.FlowMatchEulerDiscreteScheduler):
        sigma, after = scheduler.sigmas[index].double(), scheduler.sigmas[index + 1]
        t, scale, alpha = 1 - sigma, 1.0, 1 - after
    else:
        t = torch.tensor(1 - (float(time) + 1) / 1000, dtype=torch.float64)
        if isinstance(scheduler, diffusers.EulerDiscreteScheduler):
            scale, alpha, after = (scheduler.sigmas[index] ** 2 + 1).sqrt(), 1.0, scheduler.sigmas[index + 1]
        else:
            before = int(time) - 1000 // scheduler.num_inference_steps
            product = scheduler.alphas_cumprod[before] if before >= 0 else scheduler.final_alpha_cumprod
            scale, alpha, after = 1.0, product.sqrt(), (1 - product).sqrt()
    x = sample / scale
    found = ends(model.schedule, t, x, model.bind(condition)(t, x))
    return alpha * found.x1 + after * found.x0


@pytest.mark.parametrize("guidance", [3.5, 1.0])
@pytest.mark.parametrize("name", MAKERS)
@torch.no_grad()
def test_a_step_by_the_velocity_is_the_pipeline_s_own(name, guidance):
    """At every step of its own loop, from the same latents: guidance, prompts, packing, time, sign and path."""
    pipe, x0 = make(name), torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(5))
    guidance = None if name == "schnell" else guidance
    prompts = [] if name == "dit" else PROMPTS
    model = as_model(pipe, prompts, guidance=guidance, size=SIZE)
    assert model.shape == (4, 8, 8)
    numbers = [2, 1]
    steps, _ = run_pipeline(pipe, numbers, x0, guidance)
    assert len(steps) == 3
    for index, (time, sample, returned) in enumerate(steps):
        sample, returned = (unpacked(pipe, x)[:2] for x in (sample, returned))
        found = one_step(pipe.scheduler, index, time, sample, model, torch.tensor(numbers))
        error, moved = (found - returned).abs().max(), (returned - sample).abs().max()
        assert error < 2e-5 * max(returned.abs().max(), 1), f"step {index}: off by {error:.1e}"
        assert moved > 1e-2, "the step moves the latents"


@torch.no_grad()
def test_a_flow_of_a_dit():
    """As of SiT: the same network with the scheduler of a flow."""
    pipe = tiny.dit(diffusers.FlowMatchEulerDiscreteScheduler(shift=2.0))
    pipe.scheduler.scale_model_input = lambda x, t: x  # which that pipeline calls
    pipe.set_progress_bar_config(disable=True)
    model, x0 = as_model(pipe, guidance=2.0), torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(5))
    assert model.prediction == "flow"
    steps, _ = run_pipeline(pipe, [3, 999], x0, 2.0)
    for index, (time, sample, returned) in enumerate(steps):
        found = one_step(pipe.scheduler, index, time, sample[:2], model, torch.tensor([3, 999]))
        torch.testing.assert_close(found, returned[:2], rtol=2e-5, atol=2e-5)


def times_seen(network):
    """Of each call: the time that the network gets, and how many samples."""
    seen = []

    def before(module, args, kwargs):
        time = kwargs["timestep"] if "timestep" in kwargs else args[1]
        seen.append((time.detach().clone().flatten()[:1], len(args[0] if args else kwargs["hidden_states"])))

    return seen, network.register_forward_pre_hook(before, with_kwargs=True)


@pytest.mark.parametrize("name", ["sd", "sd3", "flux"])
@torch.no_grad()
def test_in_bfloat16_the_network_gets_the_pipeline_s_time(name):
    pipe = make(name).to(torch.bfloat16)
    seen, hook = times_seen(network_of(pipe))
    steps, _ = run_pipeline(pipe, [0], torch.randn(1, 4, 8, 8).bfloat16(), 1.0, nfe=7)
    hook.remove()
    model = as_model(pipe, PROMPTS, guidance=1.0, size=SIZE)
    ours, hook = times_seen(network_of(pipe))
    for index in range(7):
        t = (
            (1 - pipe.scheduler.sigmas[index])
            if name != "sd"
            else torch.tensor(1 - (float(steps[index][0]) + 1) / 1000)
        )
        u = model.bind(torch.tensor([0]))(t, torch.randn(1, 4, 8, 8))
        assert u.dtype == torch.float32, "the solver's own arithmetic"
    hook.remove()
    for (theirs, _), (own, _) in zip(seen, ours, strict=True):
        assert own.dtype == (torch.bfloat16 if name == "flux" else torch.float32)
        torch.testing.assert_close(own.double(), theirs.double(), rtol=1e-6 if name != "flux" else 0, atol=1e-3)
    if name == "flux":
        exact = pipe.scheduler.sigmas[:7]
        assert max(abs(own.item() - s.item()) for (own, _), s in zip(ours, exact, strict=True)) > 5e-4, "it is coarse"


@pytest.mark.parametrize(("name", "passes"), [("sd", 2), ("sd3", 2), ("flux", 1), ("dit", 2)])
def test_an_evaluation_is_one_call_of_the_network(name, passes):
    """With both halves of guidance in it, where guidance takes a second pass."""
    pipe = make(name)
    model = as_model(pipe, [] if name == "dit" else PROMPTS, guidance=3.0, size=SIZE)
    solver, noise = Solver(baseline("euler", 3).on(model), model=describe(model)), model.noise(range(5))
    seen, _ = times_seen(network_of(pipe))
    solver.sample(model.bind(noise.condition), noise.x0)
    assert [count for _, count in seen] == [5 * passes] * 3


def test_prompts_are_drawn_by_seed():
    model = as_model(tiny.stable_diffusion(), PROMPTS, size=SIZE)
    drawn = model.noise(range(40)).condition
    assert sorted(set(drawn.tolist())) == [0, 1, 2, 3]
    assert torch.equal(model.noise(range(7, 20)).condition, drawn[7:20])
    dit = as_model(tiny.dit(), ["shark", "paper"]).noise(range(40)).condition
    assert sorted(set(dit.tolist())) == [0, 1], "two of the classes"


def test_many_prompts_are_encoded_as_one_by_one():
    """In parts of a few, with other text beside them."""
    pipe, prompts = tiny.stable_diffusion(), ["".join(p) for p in zip("abcdefghijklm", "nopqrstuvwxyz", strict=True)]
    x, t = torch.randn(1, 4, 8, 8), torch.tensor(0.4)
    together, alone = as_model(pipe, prompts), as_model(pipe, prompts[11:12])
    with torch.no_grad():
        ours, theirs = (model.bind(torch.tensor([n]))(t, x) for model, n in ((together, 11), (alone, 0)))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_pipeline_s_own_guidance_and_size_are_the_default():
    model = as_model(tiny.stable_diffusion(), PROMPTS)
    assert (model.guidance, model.shape, model.labels) == (7.5, (4, 8, 8), tuple(PROMPTS))
    assert as_model(tiny.flux(), PROMPTS, size=SIZE).guidance == 3.5
    assert as_model(tiny.flux(guidance_embeds=False), PROMPTS, size=SIZE).guidance is None
    assert as_model(tiny.stable_diffusion(), PROMPTS, size=32).shape == (4, 16, 16)


@pytest.mark.parametrize("name", ["sd", "sdxl", "sd3", "flux"])
@torch.no_grad()
def test_latents_become_the_pipeline_s_pictures(name):
    pipe = make(name)
    if name == "sdxl":
        pipe.vae.register_to_config(latents_mean=[0.1, -0.2, 0.3, 0.0], latents_std=[1.0, 2.0, 0.5, 1.5])
    x0 = torch.randn(2, 4, 8, 8)
    _, latents = run_pipeline(pipe, [0, 1], x0.clone(), None)
    _, expected = run_pipeline(pipe, [0, 1], x0.clone(), None, output_type="pt")
    found = as_model(pipe, PROMPTS, size=SIZE).pictures(unpacked(pipe, latents))
    torch.testing.assert_close((found / 2 + 0.5).clamp(0, 1), expected, rtol=1e-5, atol=1e-5)


def test_a_bank_is_for_one_set_of_prompts(tmp_path):
    """Also where the change is in a prompt that the fingerprint's samples do not have."""
    pipe = tiny.flux()
    model = as_model(pipe, PROMPTS, size=SIZE)
    unused = next(i for i in range(4) if i not in model.noise(range(4)).condition.tolist())
    other = as_model(pipe, [p if i != unused else "snow" for i, p in enumerate(PROMPTS)], size=SIZE)
    assert describe(model)["fingerprint"] == describe(other)["fingerprint"]
    Bank(model, tmp_path)
    Bank(model, tmp_path)
    with pytest.raises(ValueError, match=r"of another model or setting: conditions 4 prompts, \w+ \(here 4 prompts, "):
        Bank(other, tmp_path)


def test_a_solver_is_for_all_prompts_but_one_network(recwarn):
    pipe = tiny.flux()
    model = as_model(pipe, PROMPTS, size=SIZE)
    solver = Solver(baseline("euler", 3).on(model), model=describe(model))
    solver.check(model)
    solver.check(as_model(pipe, ["snow"], size=SIZE))
    assert not recwarn
    torch.nn.init.normal_(pipe.transformer.proj_out.weight)
    with pytest.warns(UserWarning, match="other weights"):
        solver.check(model)
    with pytest.warns(UserWarning, match=r"guidance 3\.5 \(here 5\.0\)"):
        solver.check(as_model(pipe, ["snow"], size=SIZE, guidance=5.0))


def test_what_does_not_go_is_refused(tmp_path):
    sd = tiny.stable_diffusion()
    with pytest.raises(ValueError, match="a StableDiffusionPipeline needs prompts"):
        as_model(sd)
    with pytest.raises(
        ValueError, match="size 17 does not suit this StableDiffusionPipeline; expected a multiple of 2"
    ):
        as_model(sd, PROMPTS, size=17)
    with pytest.raises(ValueError, match="size 18 does not suit this FluxPipeline; expected a multiple of 4"):
        as_model(tiny.flux(), PROMPTS, size=18)
    with pytest.raises(ValueError, match="size 32 was asked for, but this DiTPipeline has 16 alone"):
        as_model(tiny.dit(), size=32)
    with pytest.raises(ValueError, match=r"guidance 3\.5 was asked for, but this network is made to do without"):
        as_model(tiny.flux(guidance_embeds=False), PROMPTS, guidance=3.5)
    with pytest.raises(ValueError, match="takes 9 channels, but latents have 4: it edits pictures"):
        as_model(tiny.stable_diffusion(in_channels=9), PROMPTS)
    with pytest.raises(ValueError, match="it is distilled to few steps"):
        as_model(tiny.stable_diffusion(time_cond_proj_dim=8), PROMPTS)
    with pytest.raises(ValueError, match="got a DDPMPipeline; expected one of StableDiffusionPipeline, "):
        as_model(diffusers.DDPMPipeline(None, None), PROMPTS)
    index = {"_class_name": "SanaPipeline", "transformer": ["diffusers", "SanaTransformer2DModel"]}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="holds a SanaPipeline; expected one of"):
        resolve(str(tmp_path), prompts=PROMPTS)
    with pytest.raises(
        ValueError, match="prompts, size: only for pipelines of diffusers that make latents; toy:digits"
    ):
        resolve("toy:digits", prompts=PROMPTS, size=512)
    with pytest.raises(ValueError, match="there is no file"):
        read_prompts(tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(ValueError, match=r"empty\.txt holds no prompt"):
        read_prompts(tmp_path / "empty.txt")


def saved(pipe, folder):
    pipe.save_pretrained(folder)
    (folder / "prompts.txt").write_text("\n".join([*PROMPTS, ""]))
    return str(folder)


def test_a_folder_is_loaded_and_its_text_encoders_dropped(tmp_path):
    pipe = tiny.stable_diffusion()
    folder, x = saved(pipe, tmp_path), torch.randn(2, 4, 8, 8)
    here = as_model(pipe, PROMPTS, guidance=4.0)
    gc.collect()
    alive = sum(type(thing) is CLIPTextModel for thing in gc.get_objects())
    model = resolve(folder, 4.0, prompts=PROMPTS, device="cpu")
    gc.collect()
    assert sum(type(thing) is CLIPTextModel for thing in gc.get_objects()) == alive
    for t in (torch.tensor(0.2), torch.tensor([0.2, 0.9])):
        with torch.no_grad():
            ours, theirs = (each.bind(torch.tensor([0, 3]))(t, x) for each in (model, here))
        torch.testing.assert_close(ours, theirs)
    half = load(tmp_path, PROMPTS, guidance=4.0, dtype=torch.bfloat16)
    with torch.no_grad():
        ours, theirs = (each.bind(torch.tensor([0, 3]))(torch.tensor(0.2), x) for each in (half, model))
        assert 1e-4 < (ours - theirs).abs().max() / theirs.abs().max() < 0.1, "the network has half precision"
        torch.testing.assert_close(half.pictures(x), model.pictures(x))
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="offload 'model' needs a GPU to work on"):
            load(tmp_path, PROMPTS, offload="model")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="offloading is for a GPU")
@pytest.mark.parametrize("offload", ["model", "sequential"])
@pytest.mark.parametrize("name", ["sd", "flux"])
@torch.no_grad()
def test_offloaded_networks_give_the_same(tmp_path, name, offload):
    saved(make(name), tmp_path)
    options = {"prompts": PROMPTS, "size": SIZE, "device": "cuda"}
    x, t, numbers = torch.randn(2, 4, 8, 8).cuda(), torch.tensor(0.4).cuda(), torch.tensor([1, 2]).cuda()
    models = [load(tmp_path, **options, offload=choice) for choice in (None, offload)]
    expected, found = (model.bind(numbers)(t, x) for model in models)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(models[1].pictures(x), models[0].pictures(x), rtol=1e-3, atol=1e-3)


def test_an_sdxl_autoencoder_in_float16_decodes_in_float32():
    """In float16 its numbers overflow; diffusers' own pipeline does the same."""
    pipe = tiny.stable_diffusion_xl()
    pipe.vae.register_to_config(force_upcast=True)
    model = as_model(pipe, PROMPTS, guidance=2.0, size=SIZE)
    x = model.noise([0]).x0
    expected = model.pictures(x)
    pipe.vae.half()
    model, seen = as_model(pipe, PROMPTS, guidance=2.0, size=SIZE), []
    pipe.vae.decoder.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    torch.testing.assert_close(model.pictures(x), expected, rtol=2e-2, atol=2e-2)
    assert (seen, pipe.vae.dtype) == ([torch.float32], torch.float16)
