"""Models in diffusers' folders: a U-Net, and the scheduler's configuration that says what it predicts on which path.

diffusers' times begin at the data. The network of a discrete schedule gets the index k = N (1 - t) - 1; that of a flow
gets 1000 (1 - t) and predicts noise - data, the velocity with the other sign.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bespoke_solvers.description import schedule_of
from bespoke_solvers.replay import Replayed
from bespoke_solvers.schedules import CondOT, DiscreteVP, Schedule
from bespoke_solvers.velocity import Model, guided

PREDICTIONS = {"epsilon": "epsilon", "v_prediction": "v", "sample": "x-start"}
SCHEDULER = "scheduler_config.json"
OURS = "BespokeScheduler"  # whose configuration is that of the scheduler it replaced, and a solver
TRAINING = "training.json"  # of a model that `bespoke pretrain` made, beside its config.json
CHECKPOINT = "checkpoint.pt"  # of its training


class Meaning(NamedTuple):
    """What a network's output is, on which path, and the time that it gets at t.

    classes: labels to draw from; one more, the last, is that of no class, if the network has it. names: of the classes.
    """

    prediction: str
    schedule: Schedule
    network_time: Callable[[Tensor], Tensor]
    sign: float = 1.0
    classes: int | None = None
    names: tuple[str, ...] = ()


def load(folder: Path, *, guidance: float | None = None, device: str | torch.device = "cpu") -> Model:
    """The model of a folder: a pipeline of a U-Net and a scheduler, or a U-Net with a scheduler's configuration.

    guidance: the scale of classifier-free guidance, for a network that was trained with a label for "no class".
    The pipelines of such networks, DDPMPipeline and DDIMPipeline, feed the noise as it is.
    """
    is_pipeline = (folder / "model_index.json").is_file()
    unet = folder / "unet" if is_pipeline else folder
    known = is_pipeline or any((folder / name).is_file() for name in (TRAINING, SCHEDULER))
    if (folder / CHECKPOINT).is_file() and not known:
        raise ValueError(f"the training in {folder} is not finished; give its command again, and it goes on")
    config = read_json(unet / "config.json")
    if config.get("_class_name") != "UNet2DModel":
        raise ValueError(f"{unet} holds a {config.get('_class_name')}; expected a UNet2DModel of diffusers")
    meaning = _meaning(folder, unet)
    from diffusers import UNet2DModel

    network: Any = UNet2DModel.from_pretrained(unet, torch_dtype=torch.float32, low_cpu_mem_usage=False)
    if torch.device(device).type == "cpu":
        network.to(memory_format=torch.channels_last)  # a sixth faster there
    size = network.config.sample_size
    if size is None:
        raise ValueError(f"{unet / 'config.json'} does not say how large the pictures are; write a sample_size into it")
    shape = (network.config.in_channels, *(size if isinstance(size, list | tuple) else (size, size)))
    network.to(device).eval().requires_grad_(False)
    return as_model(network, meaning, shape, guidance, scales_noise=not is_pipeline, replayed=True)


def as_model(
    network: Any,
    meaning: Meaning,
    shape: tuple[int, ...],
    guidance: float | None = None,
    *,
    scales_noise: bool = True,
    replayed: bool = False,
) -> Model:
    """The model of a U-Net; its condition is a label, if it has any.

    replayed: record the network on a GPU and replay it, for one that is moved and changed no more.
    """
    labels = network.config.num_class_embeds or 0
    classes = labels if meaning.classes is None else meaning.classes
    if guidance is not None and classes == labels:
        raise ValueError(f"guidance {guidance:g} needs a label for no class, which the network is not known to have")

    def output(time: Tensor, x: Tensor, *label: Tensor) -> Tensor:
        found: Tensor = network(x.to(network.dtype), time, class_labels=label[0] if label else None).sample
        return meaning.sign * found.to(x.dtype)

    called = Replayed(output) if replayed else output
    return Model.from_network(
        called if guidance is None else guided(called, torch.tensor(classes), guidance),
        prediction=meaning.prediction,
        schedule=meaning.schedule,
        network_time=meaning.network_time,
        shape=shape,
        draw_condition=(lambda generator: torch.randint(classes, (), generator=generator)) if labels else None,
        guidance=guidance,
        labels=meaning.names or tuple(map(str, range(classes))),
        scales_noise=scales_noise,
        device=network.device,
    )


def meaning_of(config: dict[str, Any]) -> Meaning:
    """What the configuration of a diffusers scheduler says of the network that it was made for."""
    import diffusers

    name, predicted = config.get("_class_name", ""), config.get("prediction_type", "epsilon")
    if name == OURS:
        return _replaced(config)
    flows = bool(config.get("use_flow_sigmas"))
    if name.startswith("FlowMatch") or (flows and predicted == "flow_prediction"):
        last = config.get("num_train_timesteps", 1000)
        if config.get("invert_sigmas"):
            return Meaning("flow", CondOT(), lambda t: last * t)
        return Meaning("flow", CondOT(), lambda t: last * (1 - t), sign=-1.0)
    try:
        made: Any = getattr(diffusers, name).from_config(config) if hasattr(diffusers, name) else None
    except NotImplementedError as error:
        raise ValueError(
            f"diffusers cannot make the scheduler of this folder: {error}; mend its configuration"
        ) from error
    if predicted not in PREDICTIONS or flows or not hasattr(made, "alphas_cumprod"):
        raise ValueError(
            f"got a scheduler {name!r} with prediction_type {predicted!r}{' and use_flow_sigmas' * flows}; expected a "
            "FlowMatch scheduler, one with use_flow_sigmas and flow_prediction, or one with alphas_cumprod, such as "
            f"DDPMScheduler, and {', '.join(PREDICTIONS)}"
        )
    if config.get("timestep_type") == "continuous" and predicted == "v_prediction":
        raise ValueError(
            f"got a {name} with timestep_type 'continuous', whose network gets log(sigma) / 4 as its time, on another "
            "path; expected timestep_type 'discrete', or write a function that returns a bespoke_solvers.Model"
        )
    alphas_cumprod = made.alphas_cumprod.double().tolist()
    if config.get("rescale_betas_zero_snr") and alphas_cumprod[-1] >= alphas_cumprod[-2]:
        alphas_cumprod[-1] = 0.0  # some schedulers have 2^-24 in its place, be that more than the one before
    schedule, count = DiscreteVP(tuple(alphas_cumprod)), len(alphas_cumprod)
    return Meaning(PREDICTIONS[predicted], schedule, lambda t: count * (1 - t) - 1)


def _replaced(config: dict[str, Any]) -> Meaning:
    """Of the scheduler that a BespokeScheduler took the place of; where there was none, of our own training."""
    name = config.get("replaced")
    if name is not None:
        rest = {key: value for key, value in config.items() if key not in ("solver", "replaced")}
        return meaning_of(rest | {"_class_name": name})
    try:
        described = config["solver"]["model"]
        return trained_by_us(described["prediction"], _schedule(described["schedule"]), None)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the solver does not say its model's schedule and prediction ({error!r}); give "
            f"{OURS}.from_solver the scheduler that it replaces"
        ) from error


def _schedule(described: dict[str, Any]) -> Schedule:
    if (schedule := schedule_of(described)) is None:
        raise LookupError(f"unknown schedule {described.get('name')!r}")
    return schedule


def network_time(t: Tensor) -> Tensor:
    """Of networks that `bespoke pretrain` makes: 1000 at the noise, 0 at the data."""
    return 1000 * (1 - t)


def trained_by_us(prediction: str, schedule: Schedule, classes: int | None) -> Meaning:
    """Of a network that `bespoke pretrain` made."""
    sign = -1.0 if prediction == "flow" else 1.0
    return Meaning(prediction, schedule, network_time, sign, classes)


def _meaning(folder: Path, unet: Path) -> Meaning:
    """From the record of `bespoke pretrain`, or from the scheduler."""
    if (unet / TRAINING).is_file():
        record = read_json(unet / TRAINING)
        try:
            names, schedule = tuple(map(str, record["data"]["classes"])), _schedule(record["schedule"])
            return trained_by_us(record["prediction"], schedule, len(names))._replace(names=names)
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{unet / TRAINING} is damaged, or no record of bespoke pretrain: {error!r}") from error
    if unet != folder:
        parts = {name for name, value in read_json(folder / "model_index.json").items() if isinstance(value, list)}
        if others := parts - {"unet", "scheduler"}:
            raise ValueError(f"the pipeline {folder} has {', '.join(sorted(others))}; expected a U-Net and a scheduler")
    for config in (folder / "scheduler" / SCHEDULER, folder / SCHEDULER):
        if config.is_file():
            return meaning_of(read_json(config))
    raise ValueError(
        f"{folder} has no {SCHEDULER} to say what its network predicts; save its scheduler there, or write a function "
        "that returns a bespoke_solvers.Model"
    )


def read_json(path: Path) -> dict[str, Any]:
    """A configuration of diffusers."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not there, or no configuration of diffusers: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}; expected a configuration of diffusers")
    return content
