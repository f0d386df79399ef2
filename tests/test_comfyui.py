"""The node for ComfyUI, in a stand-in of it, against the plain loop."""

import json
import os

import pytest
import torch

from bespoke_solvers.description import describe
from bespoke_solvers.schedules import EDM, CondOT, DiscreteVP
from bespoke_solvers.solver import Solver, save
from bespoke_solvers.table import sample
from bespoke_solvers.velocity import Model, ends, expand
from comfyui_stand_in import (
    EPS,
    V_PREDICTION,
    BaseModel,
    CFGGuider,
    ModelPatcher,
    ModelSamplingDiscrete,
    ModelSamplingDiscreteFlow,
    load_nodes,
)
from problems import full_table, mixture, points, stable_diffusion_alphas
from test_documentation import ROOT

SD, ZERO_SNR = (DiscreteVP(stable_diffusion_alphas(zero_terminal=zero)) for zero in (False, True))


class DiscreteEPS(EPS, ModelSamplingDiscrete):
    pass


class DiscreteV(V_PREDICTION, ModelSamplingDiscrete):
    pass


def network(prediction, schedule):
    """The ideal network of the mixture, network(x, time), with the time that such networks get."""
    u = mixture(schedule)

    def output(x, time):
        t = 1 - time.double() / 1000 if prediction == "flow" else 1 - (time.double() + 1) / 1000
        velocity = u(t, x)
        x0, x1 = ends(schedule, t, x, velocity)
        alpha, sigma, _, _ = (expand(value, x) for value in schedule(t))
        return {"flow": -velocity, "epsilon": x0, "v": alpha * x0 - sigma * x1}[prediction]

    return output


KINDS = {
    "SD": ("epsilon", SD, DiscreteEPS(SD.alphas_cumprod)),
    "SD with zero terminal snr": ("v", ZERO_SNR, DiscreteV(ZERO_SNR.alphas_cumprod)),
    "SD3": ("flow", CondOT(), ModelSamplingDiscreteFlow(shift=3.0)),
}


class Installed:
    """ComfyUI with the node, a model of a kind, and a solver file for it; beside them the model for the plain loop."""

    def __init__(self, kind, monkeypatch, folder, guidance=None):
        prediction, schedule, self.model_sampling = KINDS[kind]
        self.network_times = []
        ideal = network(prediction, schedule)

        def in_comfyui(x, time):
            self.network_times.append(time.flatten()[0].item())
            return ideal(x, time)

        self.nodes = load_nodes(monkeypatch, folder)
        self.patcher = ModelPatcher(BaseModel(self.model_sampling, in_comfyui))
        self.own_time = (lambda t: 1000 * (1 - t)) if prediction == "flow" else (lambda t: 1000 * (1 - t) - 1)
        self.model = Model.from_network(
            lambda time, x: (-1 if prediction == "flow" else 1) * ideal(x, time),
            prediction=prediction,
            schedule=schedule,
            network_time=self.own_time if prediction == "flow" else (lambda t: self.own_time(t).round()),
            domain=(0.0, 0.999),
            shape=(3,),
            guidance=guidance,
        )
        described = describe(self.model)
        self.solvers = {nfe: Solver(full_table(nfe).on(self.model), model=described) for nfe in (4, 7)}
        self.folder = folder / "bespoke_solvers"
        self.folder.mkdir()
        save(list(self.solvers.values()), self.folder / "solver.json")

    def load(self, nfe=7, name="solver.json"):
        return self.nodes.BespokeSolver().load(self.patcher, name, nfe)

    def sample(self, noise, sampler, sigmas, latent=None, cfg=1.0, **options):
        latent = torch.zeros_like(noise) if latent is None else latent
        return CFGGuider(self.patcher, cfg).sample(noise, latent, sampler, sigmas, **options)


@pytest.fixture(params=KINDS)
def installed(request, monkeypatch, tmp_path):
    return Installed(request.param, monkeypatch, tmp_path)


@pytest.fixture
def sd(monkeypatch, tmp_path):
    return Installed("SD", monkeypatch, tmp_path, guidance=3.5)


@pytest.mark.parametrize("nfe", [4, 7])
def test_samples_are_those_of_the_plain_loop(installed, nfe):
    noise, seen = points().float(), []
    sampler, sigmas = installed.load(nfe)
    samples = installed.sample(noise, sampler, sigmas, callback=lambda *called: seen.append(called))
    expected = sample(installed.solvers[nfe].table, installed.model.bind(), noise)
    torch.testing.assert_close(samples, expected, rtol=1e-5, atol=1e-5)

    assert len(installed.network_times) == nfe
    assert sigmas.shape == (nfe + 1,)
    assert [(i, total) for i, _, _, total in seen] == [(i, nfe) for i in range(nfe)]
    for (_, denoised, x, _), sigma in zip(seen[1:], sigmas[1:-1], strict=True):
        again = installed.patcher.model.apply_model(x, sigma.expand(len(x)))
        assert torch.equal(denoised, again), "the denoised x of that x at that sigma"


def test_the_networks_times_are_those_of_the_solver(installed):
    """ComfyUI's own ways between sigma and the network's time lead from the SIGMAS to the times of the table."""
    sampler, sigmas = installed.load(7)
    wanted = installed.own_time(installed.solvers[7].table.t)
    installed.sample(points().float(), sampler, sigmas)
    whole = isinstance(installed.model_sampling, ModelSamplingDiscrete)
    got = torch.tensor(installed.network_times, dtype=torch.float64)
    torch.testing.assert_close(got, wanted.round() if whole else wanted, rtol=0, atol=1e-3)
    if whole:
        back = installed.model_sampling.sigma(wanted[1:])
        torch.testing.assert_close(sigmas[1:-1], back.float(), rtol=1e-4, atol=0)
    assert sigmas[0] == pytest.approx(installed.model_sampling.sigma_max.item(), rel=1e-5)


@pytest.mark.parametrize("first", [1 - 5e-5, 1 - 1e-6, 1 + 1e-6])
def test_the_noise_is_found_again_however_it_was_scaled(sd, first):
    """ComfyUI scales noise otherwise where the first sigma is the model's largest, up to rounding, than below it."""
    sampler, sigmas = sd.load()
    expected = sd.sample(points().float(), sampler, sigmas)
    sigmas = torch.cat([sigmas[:1] * first, sigmas[1:]])
    torch.testing.assert_close(sd.sample(points().float(), sampler, sigmas), expected, rtol=1e-4, atol=1e-4)


def test_inpainting_keeps_what_the_mask_keeps(installed):
    noise, latent = points().float(), points(seed=1).float()
    mask = torch.tensor([1.0, 1.0, 0.0]).expand_as(noise)
    sampler, sigmas = installed.load()
    samples = installed.sample(noise, sampler, sigmas, latent, denoise_mask=mask)
    assert torch.equal(samples[:, 2], latent[:, 2])
    assert len(installed.network_times) == 7
    free = installed.sample(noise, sampler, sigmas, latent)
    assert (samples[:, :2] - free[:, :2]).abs().max() > 1e-3, "what is kept is seen by the network"
    soft = installed.sample(
        noise, sampler, sigmas, latent, denoise_mask=mask, model_options={"denoise_mask_function": None}
    )
    assert not torch.equal(soft[:, 2], latent[:, 2]), "a mask that changes on the way is ComfyUI's own affair"


def test_the_end_of_the_sigmas_is_img2img(installed):
    """As SplitSigmasDenoise gives it, with a picture as the latent: the sample is close to the picture."""
    latent, noise = 0.3 * points(seed=1).float(), points().float()
    sampler, sigmas = installed.load()
    with pytest.warns(UserWarning, match=r"evaluation 6 of 7 \(img2img\)"):
        samples = installed.sample(noise, sampler, sigmas[-3:], latent)
    assert len(installed.network_times) == 2
    assert (samples - latent).abs().max() < 1


def test_other_sigmas_are_refused(installed):
    sampler, sigmas = installed.load(7)
    with pytest.raises(ValueError, match=r"this solver of 7 evaluations goes with .* SIGMAS of the node"):
        installed.sample(points().float(), sampler, installed.load(4)[1])
    with pytest.raises(ValueError, match="this solver of 7 evaluations goes with"):
        installed.sample(points().float(), sampler, sigmas[:4])
    assert installed.network_times == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_solver_of_another_kind_of_model_is_refused(installed, kind):
    model_sampling = KINDS[kind][2]
    if model_sampling is not installed.model_sampling:
        installed.patcher = ModelPatcher(BaseModel(model_sampling, None))
        with pytest.raises(ValueError, match=r"the solver was made for a model .* but (here it|this one)"):
            installed.load()


def test_the_node_follows_comfyuis_conventions(sd):
    node = sd.nodes.NODE_CLASS_MAPPINGS["BespokeSolver"]
    assert sd.nodes.NODE_DISPLAY_NAME_MAPPINGS.keys() == sd.nodes.NODE_CLASS_MAPPINGS.keys()
    required = node.INPUT_TYPES()["required"]
    assert required["model"] == ("MODEL",)
    assert required["solver"] == (["solver.json"],)
    assert required["nfe"][0] == "INT"
    assert node.RETURN_TYPES == ("SAMPLER", "SIGMAS")
    assert callable(getattr(node, node.FUNCTION))
    before = node.IS_CHANGED(model=None, solver="solver.json", nfe=7)
    os.utime(sd.folder / "solver.json", (0, 0))
    assert node.IS_CHANGED(model=None, solver="solver.json", nfe=7) != before
    with pytest.raises(ValueError, match="holds tables for nfe = 4, 7; nfe = 5 was asked for"):
        sd.load(5)


def test_the_workflow_of_the_examples_fits_the_node(sd):
    """Its node has all inputs, and its outputs go where ComfyUI's SamplerCustom takes them; links lead to nodes."""
    workflow = json.loads((ROOT / "examples" / "comfyui_workflow.json").read_text())
    node = sd.nodes.NODE_CLASS_MAPPINGS["BespokeSolver"]
    (number, given), (_, sampling) = (
        next((number, entry["inputs"]) for number, entry in workflow.items() if entry["class_type"] == kind)
        for kind in ("BespokeSolver", "SamplerCustom")
    )
    required = node.INPUT_TYPES()["required"]
    assert given.keys() == required.keys()
    assert given["solver"] in required["solver"][0]
    for name in ("sampler", "sigmas"):
        assert sampling[name] == [number, node.RETURN_TYPES.index(name.upper())]
    assert given["model"] == sampling["model"]
    links = [value for entry in workflow.values() for value in entry["inputs"].values() if isinstance(value, list)]
    assert all(target in workflow for target, _ in links)
    sampler, sigmas = getattr(node(), node.FUNCTION)(**given | {"model": sd.patcher})
    samples = sd.sample(points().float(), sampler, sigmas, cfg=sampling["cfg"])
    assert samples.isfinite().all()
    assert len(sd.network_times) == given["nfe"]


@pytest.mark.parametrize(("cfg", "warned"), [(3.5, False), (1.0, False), (7.0, True)])
def test_another_guidance_scale_is_a_warning(sd, cfg, warned, recwarn):
    sampler, sigmas = sd.load()
    sd.sample(points().float(), sampler, sigmas, cfg=cfg)
    assert [str(w.message)[:66] for w in recwarn] == [
        "the solver was fitted with guidance 3.5, and cfg is 7; it may serv"
    ] * warned


def test_an_edm_solver_serves_a_model_of_the_same_sigmas(sd):
    """Any path through the model's noise levels will do: what the network predicts is ComfyUI's affair."""
    largest = sd.model_sampling.sigma_max.item()
    edm = EDM(sigma_max=largest, sigma_min=0.03)
    model = Model(velocity=mixture(edm), shape=(3,), schedule=edm)
    solver = Solver(full_table(7).on(model), model=describe(model))
    solver.save(sd.folder / "edm.json")
    sampler, sigmas = sd.load(7, "edm.json")
    samples = sd.sample(points().float(), sampler, sigmas)
    expected = sample(solver.table, model.bind(), points().float())
    torch.testing.assert_close(samples, expected, rtol=0, atol=0.02)  # ComfyUI's network times are whole numbers
