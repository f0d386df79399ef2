"""A stand-in for the parts of ComfyUI that a SAMPLER and its SIGMAS pass through, with the same names and calls.

    CFGGuider.sample -> KSAMPLER.sample -> sampler_function(model, x, sigmas, ...) -> model(x, sigma, ...) -> network

Of ComfyUI's behaviour it keeps what a sampler can see: how noise is scaled for either kind of model and at the largest
sigma, the time that the network gets, the masking of what is to be kept, and what arrives at the callback.
"""

import importlib.util
import math
import sys
import types
from pathlib import Path

import torch

NODES = Path(__file__).parent.parent / "comfyui" / "__init__.py"


def like(sigma, x):
    return sigma.reshape(-1, *[1] * (x.ndim - 1)) if sigma.numel() > 1 else sigma.reshape(())


class EPS:
    """x = latent + sigma noise; the network gets x in variance-preserving scale and predicts the noise."""

    def calculate_input(self, sigma, x):
        return x / (1 + like(sigma, x) ** 2) ** 0.5

    def calculate_denoised(self, sigma, output, x):
        return x - like(sigma, x) * output

    def noise_scaling(self, sigma, noise, latent_image, max_denoise=False):
        sigma = like(sigma, noise)
        return noise * ((1 + sigma**2) ** 0.5 if max_denoise else sigma) + latent_image

    def inverse_noise_scaling(self, sigma, latent):
        return latent


class V_PREDICTION(EPS):  # noqa: N801, ComfyUI's name
    """The same, but the network predicts v = alpha noise - sigma data."""

    def calculate_denoised(self, sigma, output, x):
        sigma = like(sigma, x)
        return x / (1 + sigma**2) - output * sigma / (1 + sigma**2) ** 0.5


class CONST:
    """x = sigma noise + (1 - sigma) latent; the network predicts noise - data."""

    def calculate_input(self, sigma, x):
        return x

    def calculate_denoised(self, sigma, output, x):
        return x - like(sigma, x) * output

    def noise_scaling(self, sigma, noise, latent_image, max_denoise=False):
        sigma = like(sigma, noise)
        return sigma * noise + (1 - sigma) * latent_image

    def inverse_noise_scaling(self, sigma, latent):
        return latent / (1 - like(sigma, latent))


class ModelSamplingDiscrete:
    """Sigmas of training indices; the network gets the nearest index."""

    def __init__(self, alphas_cumprod):
        alphas = torch.tensor(alphas_cumprod, dtype=torch.float64)
        alphas[-1] = alphas[-1].clamp(min=4.8973451890853435e-08)  # zero terminal snr
        self.sigmas = ((1 - alphas) / alphas).sqrt().float()

    @property
    def sigma_max(self):
        return self.sigmas[-1]

    def timestep(self, sigma):
        return (sigma.log() - self.sigmas.log()[:, None]).abs().argmin(0)

    def sigma(self, timestep):
        below = timestep.floor().long()
        above, w = timestep.ceil().long(), timestep.frac()
        return ((1 - w) * self.sigmas.log()[below] + w * self.sigmas.log()[above]).exp()


class ModelSamplingDiscreteFlow(CONST):
    """Flow times times 1000; the shift moves ComfyUI's own schedulers only."""

    def __init__(self, shift):
        self.shift = shift
        self.sigmas = self.sigma(torch.arange(1, 1001).float())

    @property
    def sigma_max(self):
        return self.sigmas[-1]

    def timestep(self, sigma):
        return 1000 * sigma

    def sigma(self, timestep):
        t = timestep / 1000
        return self.shift * t / (1 + (self.shift - 1) * t)


class BaseModel:
    def __init__(self, model_sampling, network):
        self.model_sampling, self.network = model_sampling, network

    def apply_model(self, x, sigma):
        output = self.network(self.model_sampling.calculate_input(sigma, x), self.model_sampling.timestep(sigma))
        return self.model_sampling.calculate_denoised(sigma, output, x)

    def scale_latent_inpaint(self, x, sigma, noise, latent_image):
        return self.model_sampling.noise_scaling(sigma, noise, latent_image)


class ModelPatcher:
    """A MODEL."""

    def __init__(self, model):
        self.model = model

    def get_model_object(self, name):
        return getattr(self.model, name)


class Masked:
    """The `model` that a sampler function gets; what the mask keeps is replaced before and after the network."""

    def __init__(self, guider, noise, latent_image):
        self.inner_model, self.noise, self.latent_image = guider, noise, latent_image

    def __call__(self, x, sigma, denoise_mask, model_options, seed):
        base = self.inner_model.inner_model
        if denoise_mask is not None:
            kept = base.scale_latent_inpaint(x=x, sigma=sigma, noise=self.noise, latent_image=self.latent_image)
            x = x * denoise_mask + kept * (1 - denoise_mask)
        denoised = self.inner_model(x, sigma, model_options=model_options, seed=seed)
        return denoised if denoise_mask is None else denoised * denoise_mask + self.latent_image * (1 - denoise_mask)


class Sampler:
    def max_denoise(self, model_wrap, sigmas):
        largest, first = float(model_wrap.inner_model.model_sampling.sigma_max), float(sigmas[0])
        return first > largest or math.isclose(first, largest, rel_tol=1e-5)


class KSAMPLER(Sampler):
    def __init__(self, sampler_function, extra_options=None, inpaint_options=None):
        self.sampler_function, self.extra_options = sampler_function, extra_options or {}

    def sample(self, model_wrap, sigmas, extra_args, callback, noise, latent_image, denoise_mask, disable_pbar):
        sampling = model_wrap.inner_model.model_sampling
        extra_args["denoise_mask"] = denoise_mask
        model = Masked(model_wrap, noise, latent_image)
        x = sampling.noise_scaling(sigmas[0], noise, latent_image, self.max_denoise(model_wrap, sigmas))
        steps = len(sigmas) - 1
        samples = self.sampler_function(
            model,
            x,
            sigmas,
            extra_args=extra_args,
            callback=callback and (lambda seen: callback(seen["i"], seen["denoised"], seen["x"], steps)),
            disable=disable_pbar,
            **self.extra_options,
        )
        return sampling.inverse_noise_scaling(sigmas[-1], samples)


class CFGGuider:
    def __init__(self, model_patcher, cfg=1.0):
        self.model_patcher, self.cfg = model_patcher, cfg

    def __call__(self, x, timestep, model_options, seed):
        return self.inner_model.apply_model(x, timestep)

    def sample(self, noise, latent_image, sampler, sigmas, denoise_mask=None, callback=None, model_options=None):
        self.inner_model = self.model_patcher.model
        extra_args = {"model_options": model_options or {}, "seed": 0}
        return sampler.sample(self, sigmas, extra_args, callback, noise, latent_image, denoise_mask, True)


class FolderPaths(types.ModuleType):
    """Of `folder_paths`: models of a kind are files in folders that were registered for it."""

    def __init__(self, models_dir):
        super().__init__("folder_paths")
        self.models_dir, self.folders = str(models_dir), {}

    def add_model_folder_path(self, folder_name, full_folder_path):
        self.folders.setdefault(folder_name, []).append(full_folder_path)

    def get_filename_list(self, folder_name):
        return sorted(path.name for folder in self.folders[folder_name] for path in Path(folder).glob("*"))

    def get_full_path_or_raise(self, folder_name, filename):
        for folder in self.folders[folder_name]:
            if (Path(folder) / filename).is_file():
                return str(Path(folder) / filename)
        raise FileNotFoundError(filename)


def load_nodes(monkeypatch, models_dir):
    """Our folder, loaded as ComfyUI loads a custom node: from its __init__.py, under a name made of its path."""
    comfy, model_sampling, samplers = (
        types.ModuleType(name) for name in ("comfy", "comfy.model_sampling", "comfy.samplers")
    )
    model_sampling.CONST = CONST
    samplers.Sampler, samplers.KSAMPLER = Sampler, KSAMPLER
    comfy.model_sampling, comfy.samplers = model_sampling, samplers
    for module in (comfy, model_sampling, samplers, FolderPaths(models_dir)):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = importlib.util.spec_from_file_location(str(NODES.parent).replace(".", "_x_"), NODES)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
