"""Fit a solver to a pipeline of diffusers that makes pictures of prompts, and see what it draws beside the exact ones.

    python diffusers_fitting.py path/to/pipeline prompts.txt

The pipeline is a folder of Stable Diffusion, SDXL, SD3, FLUX, PixArt or DiT; prompts.txt has a prompt in each line.
"""

import sys
from pathlib import Path

import torch

import bespoke_solvers as bs
from bespoke_solvers import pictures
from bespoke_solvers.adapters import pipelines
from bespoke_solvers.velocity import default_device

TOLERANCE = 3e-5  # of the exact latents; a fit warns where their own error is too large to fit to


def main(folder: Path, prompts: list[str]) -> None:
    """Fit with 6 evaluations; draw 4 pictures both ways, from the same noise and for the same prompts."""
    model = pipelines.load(folder, prompts, guidance=3.5, device=default_device())
    # Four latents at a time: this is what bounds the memory. The exact paths are kept, for fits with other nfe.
    bank = bs.Bank(model, "exact.bank", batch_size=4, rtol=TOLERANCE, atol=TOLERANCE)
    solver = bs.fit(model, nfe=6, effort="low", paths=8, validation_paths=4, bank=bank)
    solver.save_pretrained("my-solver")  # solver.json and a model card; solver.push_to_hub("user/my-solver") shares it
    print(f"RMSE of latents {solver.validation['rmse']:.4f}, midpoint {solver.validation['baseline_rmse']:.4f}")

    noise = model.noise(range(4))
    print("prompts:", ", ".join(prompts[number] for number in noise.condition.tolist()))
    exact = bs.reference.solve(model, noise, rtol=TOLERANCE, atol=TOLERANCE)
    drawn = solver.sample(model.bind(noise.condition), noise.x0)
    both = torch.cat([model.pictures(exact.x1), model.pictures(drawn)])
    pictures.save_samples(both, "exact-above-solver.png", columns=4)
    print(f"exact-above-solver.png: {exact.evaluations} evaluations above, {solver.nfe} below")


if __name__ == "__main__":
    main(Path(sys.argv[1]), pipelines.read_prompts(Path(sys.argv[2])))
