"""diffusers' own schedulers beside BespokeScheduler: python -m bench.schedulers cifar10-fm-ot --models FOLDER ...

Each scheduler is called as diffusers' pipelines call it, with the same network, the same times of the network and the
same noise, and with those of its own options that are best on the choosing set. cifar10-eps-vp is taken as pipelines
have such networks: on the discrete schedule of DDPM.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import diffusers
import torch

from bench.store import KEY, Store
from bespoke_solvers import BespokeScheduler, fit
from bespoke_solvers.adapters.diffusers import as_model, meaning_of
from bespoke_solvers.bank import Bank
from bespoke_solvers.evaluation import HeldOut, Quality, held_out
from bespoke_solvers.fitting import EFFORTS
from bespoke_solvers.metrics import psnr, rmse

CLASSES = 10
OURS = "BespokeScheduler"
SPACINGS: dict[str, tuple[Any, ...]] = {"timestep_spacing": ("leading", "trailing", "linspace")}
SIGMAS: dict[str, tuple[Any, ...]] = {**SPACINGS, "use_karras_sigmas": (False, True)}
FLOW: dict[str, Any] = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
SHIFTS: dict[str, tuple[Any, ...]] = {"flow_shift": (0.5, 1.0, 3.0)}
# What is fixed, and what is chosen.
NOISE: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "DDIMScheduler": ({"clip_sample": False, "set_alpha_to_one": True}, SPACINGS),
    "DPMSolverMultistepScheduler": ({"final_sigmas_type": "zero"}, {**SIGMAS, "solver_order": (2, 3)}),
    "UniPCMultistepScheduler": ({"final_sigmas_type": "zero"}, SIGMAS),
    "DEISMultistepScheduler": ({}, SIGMAS),
    "HeunDiscreteScheduler": ({}, SIGMAS),
}
FLOWS: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "FlowMatchEulerDiscreteScheduler": ({}, {"shift": (0.5, 1.0, 3.0)}),
    "FlowMatchHeunDiscreteScheduler": ({}, {"shift": (0.5, 1.0, 3.0)}),
    "DPMSolverMultistepScheduler": (FLOW | {"final_sigmas_type": "zero"}, {**SHIFTS, "solver_order": (2, 3)}),
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
        return f"{self.options.paths} paths" if method == OURS else "options chosen"

    def measure(self, method: str, nfe: int) -> dict[str, Any]:
        """The record of a cell."""
        name, scheduler, count = self.own(nfe) if method == OURS else self.best(method, nfe)
        quality = self.quality(scheduler, count, self.report)
        reference = {"reference_evaluations": self.report.evaluations, "reference_error": self.report.own_error}
        return {"name": name, "used": len(scheduler.timesteps), **quality.figures(), **reference}

    def own(self, nfe: int) -> tuple[str, Any, int]:
        """BespokeScheduler with the default fit."""
        solver = fit(
            self.model, nfe=nfe, paths=self.options.paths, seed=self.options.seed, bank=self.bank, progress=False
        )
        return solver.family, BespokeScheduler.from_solver(solver, self.scheduler), nfe

    def best(self, method: str, nfe: int) -> tuple[str, Any, int]:
        """The scheduler with those of its options that are best on the choosing set."""
        fixed, chosen = (FLOWS if self.flow else NOISE)[method]
        rated = []
        for values in itertools.product(*chosen.values()):
            options = dict(zip(chosen, values, strict=True))
            scheduler = getattr(diffusers, method).from_config(self.scheduler.config, **fixed, **options)
            scheduler.set_timesteps(nfe)
            count = nfe if len(scheduler.timesteps) <= nfe else (nfe + 1) // 2  # Heun's method calls twice in a step
            name = ", ".join(f"{name}={value}" for name, value in options.items())
            rated.append((self.quality(scheduler, count, self.choose).score, name, scheduler, count))
        return max(rated, key=lambda entry: entry[0])[1:]

    @torch.no_grad()
    def quality(self, scheduler: Any, count: int, held: HeldOut) -> Quality:
        """Of samples as a pipeline draws them, to the exact ones."""
        drawn = []
        for noise in held.noise:
            scheduler.set_timesteps(count, device=noise.x0.device)
            x = noise.x0 * getattr(scheduler, "init_noise_sigma", 1.0)
            for t in scheduler.timesteps:
                scaled = scheduler.scale_model_input(x, t) if hasattr(scheduler, "scale_model_input") else x
                output = self.network(scaled, t, class_labels=noise.condition).sample
                x = scheduler.step(output, t, x, return_dict=False)[0]
            drawn.append(x)
        x1 = torch.cat(drawn)
        return Quality(rmse(x1, held.x1), psnr(x1, held.x1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="+", help="cifar10-fm-ot, cifar10-eps-vp")
    parser.add_argument("--models", type=Path, required=True, help="the folder of the networks")
    parser.add_argument("--method", nargs="+", help="which schedulers; by default all")
    parser.add_argument("--nfe", nargs="+", type=int, default=[5, 8, 10, 20])
    parser.add_argument("--paths", type=int, default=EFFORTS["medium"].paths, help="to fit to")
    parser.add_argument("--samples", type=int, default=256, help="to report on")
    parser.add_argument("--grid-samples", type=int, default=128, help="at most, to choose a scheduler's options by")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--tolerance", type=float, default=1e-5, help="of the exact paths")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--banks", type=Path, help="keep exact paths in this folder")
    parser.add_argument("--store", type=Path, default=Path("bench/results/schedulers"))
    options = parser.parse_args()
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
