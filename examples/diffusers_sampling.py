"""A diffusers pipeline that samples with a solver: fit, replace the scheduler, save the pipeline and load it again.

Put your own pipeline in the place of the small one here, whose network is random.
"""

import diffusers
import torch

import bespoke_solvers as bs
from bespoke_solvers.models import resolve


def small_pipeline() -> diffusers.DDPMPipeline:
    """Of a network with random weights, made blind to its time: smooth in it, as a trained one is."""
    torch.manual_seed(0)
    network = diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(8, 8),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )
    network.time_embedding.linear_1.weight.data.zero_()
    return diffusers.DDPMPipeline(network.eval(), diffusers.DDPMScheduler(beta_end=0.004, clip_sample=False))


def main() -> None:
    """Fit with 6 evaluations, and draw."""
    pipe = small_pipeline()
    pipe.save_pretrained("pipeline")
    solver = bs.fit(resolve("pipeline"), nfe=6, effort="low", paths=32, validation_paths=32)
    solver.save("solver.json")
    print(
        f"RMSE to the exact samples {solver.validation['rmse']:.4f}, midpoint {solver.validation['baseline_rmse']:.4f}"
    )

    pipe.scheduler = bs.BespokeScheduler.from_solver("solver.json", pipe.scheduler)
    images = pipe(
        batch_size=4, generator=torch.Generator().manual_seed(0), num_inference_steps=6, output_type="pt"
    ).images

    pipe.save_pretrained("with-solver")  # the whole solver is in its scheduler_config.json
    again = diffusers.DDPMPipeline.from_pretrained("with-solver")
    same = again(
        batch_size=4, generator=torch.Generator().manual_seed(0), num_inference_steps=6, output_type="pt"
    ).images
    print("the same pictures from the saved pipeline:", torch.allclose(images, same, atol=1e-6))


if __name__ == "__main__":
    main()
