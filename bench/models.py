"""The models of the benchmarks: the toys, and two class-conditional CIFAR-10 U-Nets in diffusers' format.

`cifar10-fm-ot` predicts noise - data on the straight path, `cifar10-eps-vp` the noise on the VP path; the timestep of
both is 1000 (1 - t), label 10 is "no class". `cifar10-fm-ot@w2` is guided with scale 2; `cifar10-fm-ot@bfloat16` runs
its network in that precision.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bespoke_solvers import Model, schedules, toy
from bespoke_solvers.velocity import guided

NULL = 10
HALF = ("bfloat16", "float16")


def full_precision(name: str) -> str:
    """The name of the same model in float32."""
    base, _, variant = name.partition("@")
    return base if variant in HALF else name


def load(name: str, folder: Path | None = None, device: str = "cpu") -> Model:
    """The named model; the U-Nets are looked for in `folder`."""
    if name.startswith("toy:"):
        return toy.load(name)
    from diffusers import UNet2DModel

    base, _, variant = name.partition("@")
    dtype = getattr(torch, variant) if variant in HALF else torch.float32
    scale = float(variant[1:]) if variant.startswith("w") else None
    if folder is None:
        raise SystemExit(f"{name} needs the folder of the models: --models FOLDER")
    network = UNet2DModel.from_pretrained(folder / base, torch_dtype=torch.float32, low_cpu_mem_usage=False)
    network = network.to(device, dtype).eval().requires_grad_(False)

    def output(time: Tensor, x: Tensor, label: Tensor) -> Tensor:
        return network(x.to(dtype), time, class_labels=label).sample.to(x.dtype)

    common: dict[str, Any] = {
        "shape": (3, 32, 32),
        "network_time": lambda t: 1000 * (1 - t),
        "draw_condition": lambda generator: torch.randint(NULL, (), generator=generator),
        "device": device,
    }
    if scale is not None:
        output = guided(output, torch.tensor(NULL), scale)  # as that of the velocity: both are linear in the output
        common["guidance"] = scale
    if base.endswith("eps-vp"):
        return Model.from_network(output, prediction="epsilon", schedule=schedules.VP(), **common)
    return Model.from_network(
        lambda time, x, label: -output(time, x, label), prediction="flow", schedule=schedules.CondOT(), **common
    )
