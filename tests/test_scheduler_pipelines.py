"""BespokeScheduler in diffusers' pipelines for pictures from text, against the plain sampling loop."""

import inspect
import json

import diffusers
import pytest
import torch

import pipelines
from bespoke_solvers import BespokeScheduler, Model, Solver, Table
from bespoke_solvers.dedicated import along, baseline
from bespoke_solvers.description import describe_schedule
from bespoke_solvers.schedules import CondOT, DiscreteVP
from bespoke_solvers.table import sample
from pipelines import PROMPT, SIZE, Calls, quiet

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")  # Euler's

NFE, GUIDANCE = 4, 3.0
F64 = torch.float64


class Case:
    """A pipeline, what its network means, and the call of the network that the pipeline should come to."""

    guided = True
    own_scale = True  # whether it multiplies its noise by init_noise_sigma
    shape = (4, SIZE // 2, SIZE // 2)

    def __init__(self):
        self.pipe = self.make()
        self.network = getattr(self.pipe, "unet", None) or self.pipe.transformer

    def arguments(self, **options):
        return {
            "prompt": PROMPT,
            "num_inference_steps": NFE,
            "guidance_scale": GUIDANCE,
            "height": SIZE,
            "width": SIZE,
        } | options

    def meaning(self):
        scheduler = self.pipe.scheduler
        return (
            "epsilon",
            DiscreteVP(tuple(scheduler.alphas_cumprod.double().tolist())),
            lambda t: 1000 * (1 - t) - 1,
            1.0,
        )

    def both(self, positive, negative):
        return torch.cat([negative, positive])

    def noise(self):
        return torch.randn(2, *self.shape, generator=torch.Generator().manual_seed(5))

    def velocity(self, dtype=torch.float32):
        prediction, schedule, own_time, sign = self.meaning()
        call = self.call()

        def network(time, x):
            output = call(time, (torch.cat([x, x]) if self.guided else x).to(dtype)).to(x.dtype)
            if self.guided:
                without, with_prompt = output.chunk(2)
                output = without + GUIDANCE * (with_prompt - without)
            return sign * output

        return Model.from_network(
            network, prediction=prediction, schedule=schedule, network_time=own_time, shape=self.shape
        ).velocity

    def decoded(self, latents):
        vae = self.pipe.vae
        shift = vae.config.shift_factor if self.shifted else 0.0
        picture = vae.decode(latents / vae.config.scaling_factor + shift).sample
        return (picture / 2 + 0.5).clamp(0, 1)

    shifted = False


class StableDiffusion(Case):
    make = staticmethod(pipelines.stable_diffusion)

    def call(self):
        text = self.both(*self.pipe.encode_prompt([PROMPT] * 2, "cpu", 1, True))
        return lambda time, x: self.network(x, time, text).sample


class StableDiffusionXL(Case):
    make = staticmethod(pipelines.stable_diffusion_xl)

    def call(self):
        positive, negative, pooled, negative_pooled = self.pipe.encode_prompt([PROMPT] * 2, device="cpu")
        sizes = torch.tensor([[SIZE, SIZE, 0, 0, SIZE, SIZE]]).repeat(4, 1)
        added = {"text_embeds": self.both(pooled, negative_pooled), "time_ids": sizes.to(pooled)}
        text = self.both(positive, negative)
        return lambda time, x: self.network(x, time, text, added_cond_kwargs=added).sample


class Flow(Case):
    own_scale = False
    shifted = True

    def arguments(self, **options):
        return super().arguments(**{"max_sequence_length": 16} | options)

    def meaning(self):
        return "flow", CondOT(), lambda t: 1000 * (1 - t), -1.0


class StableDiffusion3(Flow):
    make = staticmethod(pipelines.stable_diffusion_3)

    def call(self):
        text = [PROMPT] * 2
        positive, negative, pooled, negative_pooled = self.pipe.encode_prompt(
            text, text, text, device="cpu", max_sequence_length=16
        )
        states, pooled = self.both(positive, negative), self.both(pooled, negative_pooled)
        return lambda time, x: self.network(x, states, pooled, timestep=time.expand(len(x))).sample


class Flux(Flow):
    make = staticmethod(pipelines.flux)
    guided = False  # the network is told the scale
    shape = (SIZE // 4 * SIZE // 4, 16)

    def call(self):
        states, pooled, text_ids = self.pipe.encode_prompt([PROMPT] * 2, None, "cpu", max_sequence_length=16)
        ids = self.pipe._prepare_latent_image_ids(2, SIZE // 4, SIZE // 4, "cpu", states.dtype)

        def network(time, x):
            return self.network(
                x,
                states,
                pooled,
                timestep=(time.to(x.dtype) / 1000).expand(2),
                img_ids=ids,
                txt_ids=text_ids,
                guidance=torch.full((2,), GUIDANCE),
            ).sample

        return network

    def decoded(self, latents):
        return super().decoded(self.pipe._unpack_latents(latents, SIZE, SIZE, self.pipe.vae_scale_factor))


CASES = [StableDiffusion, StableDiffusionXL, StableDiffusion3, Flux]


def like_a_learned_one(case):
    """A solver that is no known method, at times between the indices; its start is scaled where a pipeline can."""
    prediction, schedule, own_time, _ = case.meaning()
    model = Model(velocity=lambda t, x: x, shape=case.shape, schedule=schedule, prediction=prediction)
    table = baseline("dpmpp-2m@uniform", NFE, model)
    t = table.t + torch.tensor([0.0, 0.05, 0.11, 0.03], dtype=F64)
    a = table.a.clone()
    a[0] = 0.97 if case.own_scale else 1.0
    described = {"schedule": describe_schedule(schedule), "prediction": prediction, "shape": case.shape}
    return Solver(
        Table(t, a, 1.001 * table.b), model=json.loads(json.dumps(described)), network_time=own_time(t).tolist()
    )


@pytest.fixture(params=CASES, ids=lambda case: case.__name__)
def case(request):
    return request.param()


@torch.no_grad()
def test_a_picture_is_that_of_the_plain_loop(case, tmp_path):
    solver = like_a_learned_one(case)
    solver.save(tmp_path / "s.json")
    expected = sample(solver.table, case.velocity(), case.noise())
    stock, scheduler = case.pipe.scheduler, BespokeScheduler.from_solver(tmp_path / "s.json", case.pipe.scheduler)
    case.pipe.scheduler = scheduler
    calls = Calls(case.network)
    arguments = case.arguments(prompt=[PROMPT] * 2, latents=case.noise())
    latents = case.pipe(**arguments, output_type="latent").images
    assert len(calls.times) == NFE
    assert (latents - expected).abs().max() < 1e-5 * max(1, expected.abs().max())
    images = case.pipe(**arguments, output_type="pt").images
    pictures = case.decoded(expected)
    assert ((pictures > 0) & (pictures < 1)).float().mean() > 0.9, "pictures in which a difference can be seen"
    torch.testing.assert_close(images, pictures, rtol=0, atol=1e-5)
    case.pipe.scheduler = stock
    other = case.pipe(**arguments, output_type="pt").images
    assert (other - images).abs().max() > 1e-3, "the solver matters"


@torch.no_grad()
def test_the_network_gets_the_times_of_the_fit(case):
    solver = like_a_learned_one(case)
    calls = Calls(case.network)
    sample(solver.table, case.velocity(), case.noise())
    case.pipe.scheduler = BespokeScheduler.from_solver(solver, case.pipe.scheduler)
    case.pipe(**case.arguments(prompt=[PROMPT] * 2), output_type="latent")
    assert len(calls.times) == 2 * NFE
    for fit, use in zip(calls.times[:NFE], calls.times[NFE:], strict=True):
        assert fit.flatten()[0] == use.flatten()[0], "to the last bit"


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(case, dtype):
    """Within what rounding does to the plain loop itself; the time is rounded, too, where the pipeline does that."""
    solver = like_a_learned_one(case)
    whole = sample(solver.table, case.velocity(), case.noise())
    case.pipe.to(dtype)
    x0 = case.noise().to(dtype)
    loop = sample(solver.table, case.velocity(dtype), x0.float())
    case.pipe.scheduler = BespokeScheduler.from_solver(solver, case.pipe.scheduler)
    latents = case.pipe(**case.arguments(prompt=[PROMPT] * 2, latents=x0), output_type="latent").images
    assert latents.dtype == dtype
    rounding = (loop - whole).square().mean().sqrt()
    assert rounding > 0
    assert (latents.float() - loop).square().mean().sqrt() < 2 * rounding + torch.finfo(dtype).eps


@torch.no_grad()
def test_a_whole_pipeline_comes_back(case, tmp_path):
    case.pipe.scheduler = BespokeScheduler.from_solver(like_a_learned_one(case), case.pipe.scheduler)
    case.pipe.save_pretrained(tmp_path)
    again = quiet(type(case.pipe).from_pretrained(tmp_path))
    assert type(again.scheduler) is BespokeScheduler
    arguments = case.arguments(output_type="pt")
    images = [p(**arguments, generator=torch.Generator().manual_seed(0)).images for p in (case.pipe, again)]
    torch.testing.assert_close(*images, rtol=0, atol=1e-6)


def test_callbacks_see_every_step_and_may_not_edit(case):
    case.pipe.scheduler = BespokeScheduler.from_solver(like_a_learned_one(case), case.pipe.scheduler)
    seen = []

    def watch(pipe, index, time, tensors):
        seen.append((index, time.item(), pipe.scheduler.step_index))
        return tensors

    def edit(pipe, index, time, tensors):
        return {"latents": 0.99 * tensors["latents"]}

    case.pipe(**case.arguments(output_type="latent"), callback_on_step_end=watch)
    assert seen == [(k, time, k + 1) for k, time in enumerate(case.pipe.scheduler.timesteps.tolist())]
    with pytest.raises(ValueError, match="the latents were edited before step 1"):
        case.pipe(**case.arguments(output_type="latent"), callback_on_step_end=edit)


def test_counts_and_times_that_cannot_be_had_are_named(case):
    case.pipe.scheduler = BespokeScheduler.from_solver(like_a_learned_one(case), case.pipe.scheduler)
    with pytest.raises(ValueError, match="tables for num_inference_steps = 4, got 28"):
        case.pipe(**case.arguments(num_inference_steps=28))
    if "timesteps" in inspect.signature(case.pipe.__call__).parameters:
        with pytest.raises(ValueError, match="`timesteps` cannot be given"):
            case.pipe(**case.arguments(timesteps=[900, 600, 300, 1]))
    case.pipe.scheduler.set_timesteps(NFE)
    learned = case.pipe.scheduler.timesteps
    case.pipe(**case.arguments(sigmas=[1.0, 0.5, 0.2, 0.1], output_type="latent"))
    assert torch.equal(case.pipe.scheduler.timesteps, learned)


def test_a_pipeline_that_does_not_scale_its_noise_says_so():
    case = StableDiffusion3()
    solver = like_a_learned_one(case)
    table = Table(solver.table.t, torch.cat([torch.tensor([0.9], dtype=F64), solver.table.a[1:]]), solver.table.b)
    case.pipe.scheduler = BespokeScheduler.from_solver(Solver(table), case.pipe.scheduler)
    with pytest.raises(ValueError, match=r"is 0\.9 times the noise .* did not scale"):
        case.pipe(**case.arguments())


IMG2IMG = {
    StableDiffusion: diffusers.StableDiffusionImg2ImgPipeline,
    StableDiffusionXL: diffusers.StableDiffusionXLImg2ImgPipeline,
    StableDiffusion3: diffusers.StableDiffusion3Img2ImgPipeline,
    Flux: diffusers.FluxImg2ImgPipeline,
}


@torch.no_grad()
@pytest.mark.parametrize("kind", CASES)
def test_a_picture_from_a_picture(kind):
    """Half the strength starts at evaluation 2 of 4: by DPM-Solver++(2M), or by a table for that start."""
    case = kind()
    solver, schedule = like_a_learned_one(case), case.meaning()[1]
    pipe = quiet(IMG2IMG[kind].from_pipe(case.pipe))
    image = torch.rand(2, 4, SIZE // 2, SIZE // 2, generator=torch.Generator().manual_seed(1))  # latents already
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(2))
    times = solver.table.t[2:].float().double()
    alpha, sigma, _, _ = (value.float() for value in schedule(times[0]))
    start = alpha * image + sigma * noise
    if kind is Flux:
        start = pipe._pack_latents(start, 2, 4, SIZE // 2, SIZE // 2)
    arguments = case.arguments(prompt=[PROMPT] * 2, image=image, strength=0.5, output_type="latent")
    if kind in (StableDiffusion, StableDiffusionXL):
        arguments = {name: value for name, value in arguments.items() if name not in ("height", "width")}

    def drawn(solver):
        pipe.scheduler = BespokeScheduler.from_solver(solver, case.pipe.scheduler)
        calls = Calls(case.network)
        latents = pipe(**arguments, generator=torch.Generator().manual_seed(2)).images
        assert len(calls.times) == 2
        return latents

    with pytest.warns(UserWarning, match=r"no table that starts at evaluation 2 of 4; DPM-Solver\+\+\(2M\)"):
        latents = drawn(solver)
    expected = sample(along("dpmpp-2m", times, schedule), case.velocity(), start)
    assert (latents - expected).abs().max() < 1e-5 * max(1, expected.abs().max())

    table = along("dpmpp-2m", times, schedule)
    table = Table(solver.table.t[2:], table.a, 0.9 * table.b)
    latents = drawn(Solver(solver.table, starts={2: table}))
    expected = sample(table, case.velocity(), start)
    assert (latents - expected).abs().max() < 1e-5 * max(1, expected.abs().max())


class DiT(Case):
    make = staticmethod(pipelines.dit)
    own_scale = False

    def call(self):
        labels = torch.tensor([1000, 7])  # no class, and the class
        return lambda time, x: self.network(x, time.expand(2), class_labels=labels).sample[:, :4]


@torch.no_grad()
def test_a_transformer_for_classes():
    case = DiT()
    solver = like_a_learned_one(case)
    x0 = torch.randn(1, *case.shape, generator=torch.Generator().manual_seed(0))
    expected = case.decoded(sample(solver.table, case.velocity(), x0))
    case.pipe.scheduler = BespokeScheduler.from_solver(solver, case.pipe.scheduler)
    calls, options = Calls(case.network), {"guidance_scale": GUIDANCE, "num_inference_steps": NFE, "output_type": "np"}
    (image,) = case.pipe([7], generator=torch.Generator().manual_seed(0), **options).images
    assert len(calls.times) == NFE
    assert expected.std() > 0.05
    torch.testing.assert_close(torch.from_numpy(image).permute(2, 0, 1), expected[0], rtol=0, atol=1e-5)


def test_an_inpainting_pipeline_is_refused():
    case = StableDiffusion()
    scheduler = BespokeScheduler.from_solver(like_a_learned_one(case), case.pipe.scheduler)
    pipe = quiet(diffusers.StableDiffusionInpaintPipeline.from_pipe(case.pipe))
    pipe.scheduler = scheduler
    picture, mask = torch.rand(1, 3, SIZE, SIZE), torch.ones(1, 1, SIZE, SIZE).triu()
    with pytest.raises(ValueError, match=r"edited before step 1.*inpainting pipeline"):
        pipe(**case.arguments(image=picture, mask_image=mask, strength=1.0))
