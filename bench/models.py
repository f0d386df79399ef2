"""The models of the benchmarks: the toys, the zoo, and two class-conditional CIFAR-10 U-Nets in diffusers' format.

`cifar10-fm-ot` predicts noise - data on the straight path, `cifar10-eps-vp` the noise on the VP path; the timestep of
both is 1000 (1 - t), label 10 is "no class". `cifar10-fm-ot@w2` is guided with scale 2; `cifar10-fm-ot@bfloat16` runs
its network in that precision.

`python -m bench.models FOLDER --out OUT` makes folders of the two that `bespoke paper` and the other commands take.
"""

import argparse
import json
from pathlib import Path

import torch

from bespoke_solvers import Model, schedules
from bespoke_solvers.adapters.diffusers import TRAINING, as_model, trained_by_us
from bespoke_solvers.data.cifar import CLASSES
from bespoke_solvers.description import describe_schedule
from bespoke_solvers.models import resolve
from bespoke_solvers.schedules import Schedule

HALF = ("bfloat16", "float16")
PATHS: dict[str, tuple[str, Schedule]] = {
    "cifar10-fm-ot": ("flow", schedules.CondOT()),
    "cifar10-eps-vp": ("epsilon", schedules.VP()),
}


def full_precision(name: str) -> str:
    """The name of the same model in float32."""
    base, _, variant = name.partition("@")
    return base if variant in HALF else name


def load(name: str, folder: Path | None = None, device: str = "cpu", compiled: bool = False) -> Model:
    """The named model; the U-Nets are looked for in `folder`, and compiled for batches of one size."""
    if name.startswith(("toy:", "zoo:")):
        return resolve(name, device=device)
    from diffusers import UNet2DModel

    if folder is None:
        raise SystemExit(f"{name} needs the folder of the models: --models FOLDER")
    base, _, variant = name.partition("@")
    dtype = getattr(torch, variant) if variant in HALF else torch.float32
    guidance = float(variant[1:]) if variant.startswith("w") else None
    network = UNet2DModel.from_pretrained(folder / base, torch_dtype=dtype, low_cpu_mem_usage=False)
    network = network.to(device).eval().requires_grad_(False)
    if compiled:
        network.to(memory_format=torch.channels_last).compile(dynamic=False)
    meaning = trained_by_us(*PATHS[base], classes=len(CLASSES))
    return as_model(network, meaning, (3, 32, 32), guidance, replayed=not compiled)


def link(folder: Path, out: Path) -> None:
    """The network of a folder with the record that `bespoke pretrain` would have left beside it."""
    prediction, schedule = PATHS[folder.name]
    seconds = json.loads((folder / "training_log.json").read_text())["seconds"]
    out.mkdir(parents=True)
    for name in ("config.json", "diffusion_pytorch_model.safetensors"):
        (out / name).symlink_to((folder / name).resolve(strict=True))
    meaning = {"schedule": describe_schedule(schedule), "prediction": prediction, "data": {"classes": CLASSES}}
    (out / TRAINING).write_text(json.dumps(meaning | {"seconds": seconds}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, help="the folder of the networks")
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    options = parser.parse_args()
    for name in PATHS:
        link(options.models / name, options.out / name)


if __name__ == "__main__":
    main()
