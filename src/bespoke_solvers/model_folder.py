"""A trained network as a folder: weights that diffusers loads, `training.json`, and a model card made from it."""

import copy
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bespoke_solvers import schedules
from bespoke_solvers.files import write_atomically
from bespoke_solvers.matching import network_time
from bespoke_solvers.schedules import Schedule
from bespoke_solvers.velocity import Model

if TYPE_CHECKING:
    from diffusers import UNet2DModel

WEIGHTS = "diffusion_pytorch_model.safetensors"
MEANINGS = {  # of a prediction: what the network gives, dx/dt, and the stock diffusers scheduler
    "flow": ("noise - data", "-output", "`FlowMatchEulerDiscreteScheduler` with shift 1"),
    "v": (
        "v = alpha noise - sigma data, with alpha = sin(pi t / 2) and sigma = cos(pi t / 2)",
        "-(pi / 2) output",
        "the DDIM and DPM-Solver family with `squaredcos_cap_v2` betas and `v_prediction` (close, not equal)",
    ),
    "epsilon": (
        "the noise",
        "(d_alpha / alpha) x - (sigma d_alpha / alpha - d_sigma) output",
        "the DDIM and DPM-Solver family with linear betas from 1e-4 to 0.02 and `epsilon` (close, not equal)",
    ),
}


def as_model(
    network: "UNet2DModel", schedule: Schedule, prediction: str, shape: tuple[int, ...], classes: int
) -> Model:
    """The model of a network that `matching.loss` trained; its condition is a label below `classes`, if it has any."""
    sign = -1 if prediction == "flow" else 1

    def output(time: Tensor, x: Tensor, label: Tensor | None = None) -> Tensor:
        predicted: Tensor = network(x.to(network.dtype), time, class_labels=label).sample
        return sign * predicted.to(x.dtype)

    return Model.from_network(
        output,
        prediction=prediction,
        schedule=schedule,
        network_time=network_time,
        shape=shape,
        draw_condition=(lambda generator: torch.randint(classes, (), generator=generator)) if classes else None,
        device=network.device,
    )


def load(folder: str | os.PathLike[str], device: str | torch.device = "cpu") -> Model:
    """The model that `bespoke pretrain` left in a folder, in float32."""
    from diffusers import UNet2DModel

    if not (Path(folder) / "training.json").exists():
        raise ValueError(f"{folder} holds no trained model; expected what bespoke pretrain has written when it ended")
    record = json.loads((Path(folder) / "training.json").read_text())
    network = UNet2DModel.from_pretrained(folder, torch_dtype=torch.float32, low_cpu_mem_usage=False)
    network = network.to(device).eval().requires_grad_(False)
    parameters = dict(record["schedule"])
    schedule = getattr(schedules, parameters.pop("name"))(**parameters)
    shape, classes = tuple(record["data"]["shape"]), record["data"]["classes"]
    return as_model(network, schedule, record["prediction"], shape, len(classes))


def save(network: "UNet2DModel", record: dict[str, Any], folder: Path, half: bool) -> None:
    """Write the weights, in float16 if asked to, the record and the card."""
    plain = copy.deepcopy(network).to(memory_format=torch.contiguous_format)
    (plain.half() if half else plain).save_pretrained(folder)
    write_atomically(folder / "training.json", (json.dumps(record, indent=1) + "\n").encode())
    write_atomically(folder / "README.md", card(record).encode())


def card(record: dict[str, Any]) -> str:
    """The model card."""
    data, settings = record["data"], record["settings"]
    given, velocity, scheduler = MEANINGS[record["prediction"]]
    labels = "The network has no classes."
    if data["classes"]:
        count = len(data["classes"])
        labels = (
            f'`class_labels` 0 to {count - 1} are the classes, {count} is "no class" (put in place of a share of '
            f"{settings['label_dropout']} of the labels in training), so classifier-free guidance works."
        )
    return f"""---
library_name: diffusers
pipeline_tag: unconditional-image-generation
tags: [bespoke-solvers]
---
# {record["config"]} on {data["name"]}

A `diffusers.UNet2DModel` of {record["parameters"] / 1e6:.2f} M parameters ({record["weights"]}, averaged weights),
trained by `bespoke pretrain` on {data["pictures"]:,} pictures of {" x ".join(map(str, data["shape"]))},
scaled to [-1, 1] and flipped at random.

| | |
|---|---|
| path | {record["schedule"]["name"]}: x = alpha data + sigma noise, t = 0 is noise, t = 1 is data |
| `timestep` | 1000 (1 - t), as a float tensor (a Python float is cut to an integer by diffusers) |
| the network predicts | {given} |
| velocity dx/dt | {velocity} |
| scheduler of diffusers with the same meaning | {scheduler} |
| training | {record["steps"]:,} steps, {record["images"]:,} pictures seen |
| time | {record["seconds"] / 60:.1f} minutes on {record["device"]}, {record["precision"]} |
| batch, learning rate, seed | {settings["batch_size"]}, {settings["learning_rate"]:g}, {settings["seed"]} |
| last loss | {record["losses"][-1][2]:.4f} |

{labels}

    from bespoke_solvers.model_folder import load
    model = load("FOLDER")    # a bespoke_solvers.Model

`training.json` holds the loss over time and all settings.
"""
