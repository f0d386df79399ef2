"""A node for ComfyUI that loads a solver file: copy or link this folder into ComfyUI's `custom_nodes`.

ComfyUI's Python needs the package `bespoke-solvers`. Files are looked up in `models/bespoke_solvers`.
"""

import os
import warnings

import comfy.model_sampling
import comfy.samplers
import folder_paths
import torch

from bespoke_solvers import load
from bespoke_solvers.adapters import k_diffusion

FOLDER = "bespoke_solvers"
folder_paths.add_model_folder_path(FOLDER, os.path.join(folder_paths.models_dir, FOLDER))


def scaling(model_sampling):
    """On which path the tensors of a model are."""
    return "flow" if isinstance(model_sampling, comfy.model_sampling.CONST) else "ve"


def sample_bespoke(model, x, sigmas, extra_args=None, callback=None, disable=None, solver=None):
    """The function of the SAMPLER, called as those in `comfy.k_diffusion.sampling` are."""
    guider, args = model.inner_model, extra_args or {}
    sampling = guider.inner_model.model_sampling
    check_guidance(solver, getattr(guider, "cfg", 1.0))
    one = torch.ones(1, device=sigmas.device)
    full = comfy.samplers.Sampler().max_denoise(guider, sigmas)
    noise_scale = sampling.noise_scaling(sigmas[0], one, torch.zeros_like(one), full).item()
    samples = k_diffusion.sample_bespoke(
        model, x, sigmas, args, callback, disable, solver=solver, scaling=scaling(sampling), noise_scale=noise_scale
    )
    mask = args.get("denoise_mask")
    if mask is None or "denoise_mask_function" in args.get("model_options", {}):
        return samples
    return samples * mask + model.latent_image * (1 - mask)  # what is to be kept, exactly


def check_guidance(solver, cfg):
    """Warn of another guidance scale than the fit's. At cfg = 1 the network may be guided by other means (FLUX)."""
    fitted = solver.model.get("guidance")
    if cfg != 1 and cfg != fitted:
        warnings.warn(
            f"the solver was fitted with {'no guidance' if fitted is None else f'guidance {fitted:g}'}, and cfg is "
            f"{cfg:g}; it may serve worse here",
            stacklevel=2,
        )


class BespokeSolver:
    """A SAMPLER from a solver file, and the SIGMAS that belong to it."""

    CATEGORY = "sampling/custom_sampling/samplers"
    DESCRIPTION = "A fitted solver and its noise levels, for SamplerCustom or SamplerCustomAdvanced."
    RETURN_TYPES = ("SAMPLER", "SIGMAS")
    FUNCTION = "load"

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802, ComfyUI's name
        """The model, a file's name, and which of its tables."""
        nfe = {"default": 8, "min": 1, "max": 1000, "tooltip": "Evaluations; the file must hold a table for so many."}
        return {
            "required": {
                "model": ("MODEL",),
                "solver": (folder_paths.get_filename_list(FOLDER),),
                "nfe": ("INT", nfe),
            }
        }

    @classmethod
    def IS_CHANGED(cls, model, solver, nfe):  # noqa: N802
        """A file that was fitted anew is loaded anew."""
        return os.path.getmtime(folder_paths.get_full_path_or_raise(FOLDER, solver))

    def load(self, model, solver, nfe):
        """The SAMPLER and the SIGMAS."""
        loaded = load(folder_paths.get_full_path_or_raise(FOLDER, solver), nfe)
        sampling = model.get_model_object("model_sampling")
        path, flow = loaded.model["schedule"]["name"], scaling(sampling) == "flow"
        if flow != (path == "CondOT"):
            raise ValueError(
                f"the solver was made for a model on the path {path}, but this one is {'a' if flow else 'no'} flow; "
                "use the solver with the model that it was fitted to"
            )
        sigmas = k_diffusion.sigmas(loaded, scaling(sampling), sigma_max=float(sampling.sigma_max))
        return comfy.samplers.KSAMPLER(sample_bespoke, {"solver": loaded}), sigmas


NODE_CLASS_MAPPINGS = {"BespokeSolver": BespokeSolver}
NODE_DISPLAY_NAME_MAPPINGS = {"BespokeSolver": "Bespoke Solver"}
