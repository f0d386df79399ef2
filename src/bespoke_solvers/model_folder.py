"""A trained network as a folder: weights that diffusers loads, `training.json`, and a model card made from it."""

import copy
import hashlib
import itertools
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from bespoke_solvers.adapters.diffusers import TRAINING, read_json
from bespoke_solvers.files import write_atomically

if TYPE_CHECKING:
    from diffusers import UNet2DModel

WEIGHTS = "diffusion_pytorch_model.safetensors"
FILES = (WEIGHTS, "config.json", TRAINING, "README.md")  # which `save` writes
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


@dataclass(frozen=True)
class Start:
    """A trained network that another training goes on from: its record and its weights."""

    folder: Path
    training: dict[str, Any]
    weights: dict[str, torch.Tensor]
    digest: str

    @property
    def seed(self) -> int:
        """What is added to the seed, so that the training does not begin with the draws of the one before."""
        return int(self.digest, 16) % 2**32

    @property
    def record(self) -> dict[str, Any]:
        """What the next record says of it, and of what it began with itself."""
        kept = ("command", "steps", "images", "seconds", "device", "fid", "start")
        return {"digest": self.digest} | {name: self.training[name] for name in kept if name in self.training}

    def check(self, config: str, classes: list[str], shape: tuple[int, ...]) -> None:
        """Refuse the network of another configuration, of other classes or for other pictures."""
        data = self.training["data"]
        for name, own, wanted in (
            ("configuration", self.training["config"], config),
            ("classes", data["classes"], classes),
            ("shape", tuple(data["shape"]), shape),
        ):
            if own != wanted:
                raise ValueError(f"{self.folder} was trained with the {name} {own}, expected {wanted}, to start from")

    def put_into(self, network: "UNet2DModel") -> None:
        """Give a network the weights."""
        try:
            network.load_state_dict(self.weights)
        except RuntimeError as error:
            raise ValueError(f"the network in {self.folder} is not the one of its configuration: {error}") from error


def start(folder: Path) -> Start:
    """The network of a folder that `bespoke pretrain` made."""
    for name in (WEIGHTS, TRAINING):
        if not (folder / name).is_file():
            raise ValueError(f"there is no {folder / name}; a training starts from a folder of bespoke pretrain")
    content, training = (folder / WEIGHTS).read_bytes(), read_json(folder / TRAINING)
    data = training.get("data")
    known = training | data if isinstance(data, dict) else training
    if missing := [name for name in ("config", "classes", "shape", "steps", "images", "seconds") if name not in known]:
        raise ValueError(f"{folder / TRAINING} has no {', '.join(missing)}; expected the record of bespoke pretrain")
    if not isinstance(known["shape"], list) or not isinstance(known["classes"], list):
        raise ValueError(
            f"shape and classes in {folder / TRAINING} are no lists; expected the record of bespoke pretrain"
        )
    try:
        weights = load(content)
    except SafetensorError as error:
        raise ValueError(f"{folder / WEIGHTS} is damaged ({error}); give another --start") from error
    return Start(folder, training, weights, hashlib.sha256(content).hexdigest()[:16])


def trainings(record: dict[str, Any]) -> list[dict[str, Any]]:
    """A record, and those of the trainings that it began from, the last one first."""
    found = [record]
    while isinstance(begun := found[-1].get("start"), dict):
        found.append(begun)
    return found


def check_free(folder: Path) -> None:
    """Refuse a folder in which `save` would replace something."""
    if there := [name for name in FILES if (folder / name).exists()]:
        raise ValueError(
            f"{folder} holds {', '.join(there)}, which a training would replace, and no checkpoint of it; give "
            "another --out"
        )


def save(network: "UNet2DModel", record: dict[str, Any], folder: Path, half: bool) -> None:
    """Write the weights, in float16 if asked to, the record and the card."""
    plain = copy.deepcopy(network).to(memory_format=torch.contiguous_format)
    (plain.half() if half else plain).save_pretrained(folder)
    shutil.copymode(folder / "config.json", folder / WEIGHTS)  # safetensors writes for the owner alone
    write_atomically(folder / TRAINING, (json.dumps(record, indent=1) + "\n").encode())
    write_atomically(folder / "README.md", card(record).encode())


def card(record: dict[str, Any]) -> str:
    """The model card."""
    data, settings = record["data"], record["settings"]
    given, velocity, scheduler = MEANINGS[record["prediction"]]
    flipped = " and flipped at random" if settings.get("flip", True) else ""
    labels = "The network has no classes."
    if data["classes"]:
        count = len(data["classes"])
        labels = (
            f'`class_labels` 0 to {count - 1} are the classes, {count} is "no class" (put in place of a share of '
            f"{settings['label_dropout']} of the labels in training), so classifier-free guidance works."
        )
    speed = f"; {record['images'] / record['seconds']:,.0f} pictures a second" if record["seconds"] else ""
    if used := record.get("gpu_memory"):
        speed += f", {used / 2**30:.1f} GiB of its memory"
    fid = "; ".join(
        ", ".join(f"{value:.2f} after {seconds / 60:.1f} minutes" for _, seconds, value, *_ in measured) + by
        for by, measured in itertools.groupby(record.get("fid", []), _by)
    )
    along = f"\n| FID along the way | {fid} |" if fid else ""
    command = f"\n| command | `{record['command']}` |" if record.get("command") else ""
    return f"""---
library_name: diffusers
pipeline_tag: unconditional-image-generation
tags: [bespoke-solvers]
---
# {record["config"]} on {data["name"]}

A `diffusers.UNet2DModel` of {record["parameters"] / 1e6:.2f} M parameters ({record["weights"]}, averaged weights),
trained by `bespoke pretrain` on {data["pictures"]:,} pictures of {" x ".join(map(str, data["shape"]))},
scaled to [-1, 1]{flipped}.

| | |
|---|---|
| path | {record["schedule"]["name"]}: x = alpha data + sigma noise, t = 0 is noise, t = 1 is data |
| `timestep` | 1000 (1 - t), as a float tensor (a Python float is cut to an integer by diffusers) |
| the network predicts | {given} |
| velocity dx/dt | {velocity} |
| scheduler of diffusers with the same meaning | {scheduler} |
| training | {record["steps"]:,} steps, {record["images"]:,} pictures seen |{_begun(record)}
| time | {record["seconds"] / 60:.1f} minutes on {record["device"]}, {record["precision"]}{speed} |
| batch, learning rate, seed | {settings["batch_size"]}, {settings["learning_rate"]:g}, {settings["seed"]} |
| last loss | {record["losses"][-1][2]:.4f} |{along}{command}

{labels}

    bespoke fit FOLDER --nfe 8 --out solver.json

`training.json` holds the loss over time and all settings.
"""


def _by(measured: Sequence[Any]) -> str:
    """By what an FID was measured, in brackets; earlier records do not say."""
    by = measured[3] if len(measured) > 3 else None
    return f" ({by})" if isinstance(by, str) else ""


def _begun(record: dict[str, Any]) -> str:
    """Rows of the card: what came before the training, if it did not begin with new weights."""
    before = trainings(record)[1:]
    if not before:
        return ""
    images, seconds = (sum(each[name] for each in before) for name in ("images", "seconds"))
    told = f"{images:,} pictures in {seconds / 60:.1f} minutes, weights {before[0]['digest']}"
    if (fid := before[0].get("fid")) and fid[-1][0] == before[0]["steps"]:
        told += f", FID {fid[-1][2]:.2f}{_by(fid[-1])}"
    if commands := [f"`{each['command']}`" for each in before if each.get("command")]:
        told += f": {', begun from '.join(commands)}"
    whole = f"{record['images'] + images:,} pictures in {(record['seconds'] + seconds) / 60:.1f} minutes"
    return f"\n| begun from | {told} |\n| in all | {whole} |"
