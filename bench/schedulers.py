"""diffusers' own schedulers beside BespokeScheduler: python -m bench.schedulers cifar10-fm-ot --models FOLDER ...

Each scheduler runs in diffusers' pipeline for class-conditional U-Nets, with the same network, the same times of the
network and the same noise, and with those of its own options that are best on the choosing set. cifar10-eps-vp is taken
as pipelines have such networks: on the discrete schedule of DDPM.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import diffusers
import torch
from torch import Tensor

from bench.store import KEY, Store
from bespoke_solvers import BespokeScheduler, fit
from bespoke_solvers.adapters.diffusers import as_model, meaning_of
from bespoke_solvers.bank import Bank
from bespoke_solvers.evaluation import HeldOut, Quality, held_out
from bespoke_solvers.fitting import EFFORTS
from bespoke_solvers.velocity import Noise

CLASSES = 10
OURS = "BespokeScheduler"
SPACINGS: dict[str, tuple[Any, ...]] = {"timestep_spacing": ("leading", "trailing", "linspace")}
SIGMAS: dict[str, tuple[Any, ...]] = {**SPACINGS, "use_karras_sigmas": (False, True)}
FLOW: dict[str, Any] = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
SHIFTS: dict[str, tuple[Any, ...]] = {"flow_shift": (0.5, 1.0, 3.0, 5.0), "solver_order": (2, 3)}
# What is fixed, and what is chosen.
NOISE: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "DDIMScheduler": ({"clip_sample": False, "set_alpha_to_one": True}, SPACINGS),
    "DPMSolverMultistepScheduler": ({"final_sigmas_type": "zero"}, {**SIGMAS, "solver_order": (2, 3)}),
    "UniPCMultistepScheduler": ({"final_sigmas_type": "zero"}, {**SIGMAS, "solver_order": (2, 3)}),
    "DEISMultistepScheduler": ({}, {**SIGMAS, "solver_order": (2, 3)}),
    "HeunDiscreteScheduler": ({}, SIGMAS),
}
FLOWS: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "FlowMatchEulerDiscreteScheduler": ({}, {"shift": (0.5, 1.0, 3.0)}),
    "FlowMatchHeunDiscreteScheduler": ({}, {"shift": (0.5, 1.0, 3.0)}),
    "DPMSolverMultistepScheduler": (FLOW | {"final_sigmas_type": "zero"}, SHIFTS),
    "UniPCMultistepScheduler": (FLOW | {"final_sigmas_type": "zero"}, SHIFTS),
    "DEISMultistepScheduler": (FLOW, SHIFTS),
}


class Pipeline:
    """A class-conditional U-Net with its exact samples, sampled by any scheduler."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.options, self.flow = options, name.endswith("fm-ot")
        network: Any = diffusers.UNet2DModel.from_pretrained(options.models / name, low_cpu_mem_usage=False)
        self.network = network.to(options.device).eval().requires_grad_(False)
        flow, noise = diffusers.FlowMatchEulerDiscreteScheduler(), diffusers.DDPMScheduler(clip_sample=False)
        self.scheduler: Any = flow if self.flow else noise
        config = {**self.scheduler.config, "_class_name": type(self.scheduler).__name__}
        size = self.network.config.sample_size
        shape = (self.network.config.in_channels, size, size)
        self.model = as_model(self.network, meaning_of(config)._replace(classes=CLASSES), shape)
        tolerance = {"rtol": options.tolerance, "atol": options.tolerance}
        folder = options.banks and options.banks / f"{name}-discrete"
        self.bank = Bank(self.model, folder, batch_size=options.batch_size, budget=2**36, **tolerance)
        self.report = held_out(self.bank, "report", options.seed, options.samples)
        self.choose = held_out(self.bank, "choose", options.seed, min(options.samples, options.grid_samples))

    @property
    def methods(self) -> list[str]:
        """The schedulers that such networks have."""
        return [*(FLOWS if self.flow else NOISE), OURS]

    def budget(self, method: str) -> str:
        """In words."""
        options = self.options
        return f"{options.effort} effort, {options.paths} paths" if method == OURS else "options chosen"

    def measure(self, method: str, nfe: int) -> dict[str, Any]:
        """The record of a cell."""
        name, scheduler, count = self.own(nfe) if method == OURS else self.best(method, nfe)
        quality = self.quality(scheduler, count, self.report)
        reference = {"reference_evaluations": self.report.evaluations, "reference_error": self.report.own_error}
        return {"name": name, "used": len(scheduler.timesteps), **quality.figures(), **reference}

    def own(self, nfe: int) -> tuple[str, Any, int]:
        """BespokeScheduler with a fit of its own."""
        options = self.options
        counts = {"paths": options.paths, "validation_paths": len(self.choose.x1), "seed": options.seed}
        solver = fit(self.model, nfe=nfe, effort=options.effort, bank=self.bank, progress=False, **counts)
        return solver.family, BespokeScheduler.from_solver(solver, self.scheduler), nfe

    def best(self, method: str, nfe: int) -> tuple[str, Any, int]:
        """The scheduler with those of its options that are best on the choosing set."""
        fixed, chosen = (FLOWS if self.flow else NOISE)[method]
        rated = []
        for values in itertools.product(*chosen.values()):
            options = dict(zip(chosen, values, strict=True))
            scheduler = like(self.scheduler, method, **fixed, **options)
            scheduler.set_timesteps(nfe)
            count = nfe if len(scheduler.timesteps) <= nfe else (nfe + 1) // 2  # Heun's method calls twice in a step
            name = ", ".join(f"{name}={value}" for name, value in options.items())
            rated.append((self.quality(scheduler, count, self.choose).score, name, scheduler, count))
        return max(rated, key=lambda entry: entry[0])[1:]

    def quality(self, scheduler: Any, count: int, held: HeldOut) -> Quality:
        """Of the pipeline's samples, to the exact ones."""
        return held.quality_of(torch.cat([self.sample(scheduler, count, noise) for noise in held.noise]))

    def sample(self, scheduler: Any, count: int, noise: Noise) -> Tensor:
        """What diffusers' pipeline draws from this noise, before it is clipped to a picture."""
        scheduler.set_timesteps(count)  # since this pipeline scales its noise before it does so
        pipeline = diffusers.ConsistencyModelPipeline(self.network, fitting(scheduler))
        pipeline.set_progress_bar_config(disable=True)
        drawn: list[Tensor] = []
        pipeline(
            batch_size=len(noise.x0),
            class_labels=noise.condition,
            num_inference_steps=count,
            latents=noise.x0,
            output_type="pt",
            callback=lambda _, __, x: drawn.append(x),
        )
        return drawn[-1]


def like(scheduler: Any, kind: str, **options: Any) -> Any:
    """A scheduler of another class on the same path, as from a saved pipeline: what was left at its default is in the
    configuration, too, and not replaced by the default of the other class (Heun has betas of its own)."""
    config = {name: value for name, value in scheduler.config.items() if not name.startswith("_")}
    return getattr(diffusers, kind).from_config(config, **options)


def fitting(scheduler: Any) -> Any:
    """The scheduler with what that pipeline asks for and not every one has; none of it changes what a step computes."""
    step = type(scheduler).step
    scheduler.step = lambda output, t, x, generator: step(scheduler, output, t, x, return_dict=False)
    if not hasattr(scheduler, "scale_model_input"):
        scheduler.scale_model_input, scheduler.init_noise_sigma = lambda x, t: x, 1.0
    return scheduler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="+", help="cifar10-fm-ot, cifar10-eps-vp")
    parser.add_argument("--models", type=Path, required=True, help="the folder of the networks")
    parser.add_argument("--method", nargs="+", help="which schedulers; by default all")
    parser.add_argument("--nfe", nargs="+", type=int, default=[5, 8, 10, 20])
    parser.add_argument("--effort", choices=EFFORTS, default="medium", help="of our fits")
    parser.add_argument("--paths", type=int, help="to fit to; by default as many as the effort says")
    parser.add_argument("--samples", type=int, default=256, help="to report on")
    parser.add_argument("--grid-samples", type=int, default=128, help="at most, to choose a scheduler's options by")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--tolerance", type=float, default=1e-5, help="of the exact paths")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--banks", type=Path, help="keep exact paths in this folder")
    parser.add_argument("--store", type=Path, default=Path("bench/results/schedulers"))
    options = parser.parse_args()
    options.paths = options.paths or EFFORTS[options.effort].paths
    store = Store(options.store)
    for name in options.model:
        pipeline = Pipeline(name, options)
        for nfe in options.nfe:
            for method in options.method or pipeline.methods:
                budget = pipeline.budget(method)
                values = (name, method, nfe, options.seed, budget, options.samples, options.tolerance)
                key = dict(zip(KEY, values, strict=True))
                store.cell(key, lambda: pipeline.measure(method, nfe))  # noqa: B023


if __name__ == "__main__":
    main()
