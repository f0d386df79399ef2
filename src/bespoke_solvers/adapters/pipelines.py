"""Pipelines of diffusers that make pictures of prompts, as models of their latents.

The prompts are encoded once; the condition of a sample is the number of its prompt, drawn with the noise. The network
is called as the pipeline calls it, guidance included, so that a solver is fitted to what is used.
"""

import hashlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from bespoke_solvers.adapters.diffusers import meaning_of, read_json
from bespoke_solvers.adapters.pipeline_networks import KINDS, Kind, Rows, Setting
from bespoke_solvers.velocity import Model, guided

Offload = Literal["model", "sequential"]
INDEX = "model_index.json"
TOGETHER = 8  # prompts in one call of the text encoders


def is_pipeline(folder: Path) -> bool:
    """Whether `load` is for that folder, rather than the adapter for a U-Net of pixels."""
    parts = ("vae", "text_encoder", "transformer")
    return (folder / INDEX).is_file() and any(part in read_json(folder / INDEX) for part in parts)


def load(
    folder: Path,
    prompts: Sequence[str] = (),
    *,
    guidance: float | None = None,
    size: int | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    offload: Offload | None = None,
) -> Model:
    """The model of a pipeline's folder, as in `as_model`; what encodes the prompts is dropped when they are encoded.

    dtype: of the network; the VAE has float32, since some overflow in float16. offload: each network is on the device
    only from its call to that of another ("model"), or each layer only while it works ("sequential", slow).
    """
    import diffusers

    name = read_json(folder / INDEX).get("_class_name")
    if name not in KINDS:
        raise ValueError(f"{folder} holds a {name}; expected one of {', '.join(KINDS)}")
    if offload and torch.device(device).type == "cpu":
        raise ValueError(f"offload {offload!r} needs a GPU to work on, and there is none")
    try:
        pipe: Any = getattr(diffusers, name).from_pretrained(folder, dtype={"default": dtype, "vae": torch.float32})
    except ImportError as error:
        raise ValueError(
            f"a {name} takes packages that are not installed (transformers, accelerate): {error}"
        ) from error
    if _network(pipe).dtype != dtype:  # older versions do not know the argument
        pipe.to(dtype)
        pipe.vae.to(torch.float32)
    match offload:
        case "model":
            pipe.enable_model_cpu_offload(device=device)
        case "sequential":
            pipe.enable_sequential_cpu_offload(device=device)
        case None:
            pipe.to(device)
    return as_model(pipe, prompts, guidance=guidance, size=size)


@torch.no_grad()
def as_model(
    pipe: Any, prompts: Sequence[str] = (), *, guidance: float | None = None, size: int | None = None
) -> Model:
    """The model of a pipeline, where it is and as it is; its scheduler says what the network predicts on which path.

    prompts: drawn from at random, one for each sample; for DiT names of classes, by default all. guidance: by default
    the pipeline's own; up to 1 it is none. size: the side of a picture; by default the pipeline's own.
    """
    name, prompts = type(pipe).__name__, list(prompts)
    if name not in KINDS:
        raise ValueError(f"got a {name}; expected one of {', '.join(KINDS)}")
    kind, network = KINDS[name], _network(pipe)
    if not (prompts or kind.classes):
        raise ValueError(f"a {name} needs prompts to draw from, one in each line of a file (--prompts), got none")
    channels, side, pixels = _shape(pipe, network, kind, size)
    scale = _guidance(pipe, network, kind, guidance)
    two_passes = scale is not None and scale > 1 and not kind.guidance_is_input
    rows = _encode(kind, pipe, prompts, Setting(pixels, scale, two_passes, pipe._execution_device))
    count = len(next(iter(rows.values()))) - two_passes
    meaning = meaning_of({**pipe.scheduler.config, "_class_name": type(pipe.scheduler).__name__})

    def output(time: Tensor, x: Tensor, number: Tensor) -> Tensor:
        chosen = {key: value[number] for key, value in rows.items()}
        found = kind.call(network, x.to(network.dtype), time.expand(len(x)), chosen)
        return meaning.sign * found.to(x.dtype)

    return Model.from_network(
        guided(output, torch.tensor(count), scale) if two_passes and scale else output,
        prediction=meaning.prediction,
        schedule=meaning.schedule,
        network_time=meaning.network_time,
        shape=(channels, side, side),
        draw_condition=lambda generator: torch.randint(count, (), generator=generator),
        guidance=scale,
        conditions=_in_short(prompts) if prompts else None,
        labels=tuple(prompts or map(str, range(count))),
        decode=_decoder(pipe.vae),
        scales_noise=kind.scales_noise,
        device=pipe._execution_device,
    )


def _network(pipe: Any) -> Any:
    return pipe.unet if hasattr(pipe, "unet") else pipe.transformer


def _shape(pipe: Any, network: Any, kind: Kind, size: int | None) -> tuple[int, int, int]:
    """Channels and side of a latent, and the side of its picture."""
    channels, latent = network.config.in_channels // kind.patch**2, pipe.vae.config.latent_channels
    if channels != latent:
        raise ValueError(
            f"the network of this {type(pipe).__name__} takes {channels} channels, but latents have {latent}: it edits "
            "pictures; expected one that makes them"
        )
    factor = 2 ** (len(pipe.vae.config.block_out_channels) - 1)
    own = getattr(pipe, "default_sample_size", None) or network.config.sample_size
    if size is None:
        return channels, own, own * factor
    step = factor * max(kind.patch, network.config.get("patch_size") or 1)
    if kind.classes and size != own * factor:
        raise ValueError(f"size {size} was asked for, but this {type(pipe).__name__} has {own * factor} alone")
    if size % step:
        raise ValueError(f"size {size} does not suit this {type(pipe).__name__}; expected a multiple of {step}")
    return channels, size // factor, size


def _guidance(pipe: Any, network: Any, kind: Kind, asked: float | None) -> float | None:
    """The scale asked for, or the pipeline's own; None for a network that is made to do without."""
    if network.config.get("time_cond_proj_dim"):
        raise ValueError("the network has guidance in its time: it is distilled to few steps, and follows no ODE")
    if kind.guidance_is_input and not network.config.guidance_embeds:
        if asked is not None:
            raise ValueError(f"guidance {asked:g} was asked for, but this network is made to do without")
        return None
    own: float = inspect.signature(pipe.__call__).parameters["guidance_scale"].default
    return own if asked is None else asked


def _encode(kind: Kind, pipe: Any, prompts: list[str], setting: Setting) -> Rows:
    """The rows of all prompts, and at the end that of none where there is a second pass."""
    parts = [prompts[i : i + TOGETHER] for i in range(0, len(prompts), TOGETHER)] or [prompts]
    encoded = [kind.encode(pipe, part, setting) for part in parts]
    several = [found.rows for found in encoded]
    if setting.two_passes and encoded[0].null:
        several.append({name: value[:1] for name, value in encoded[0].null.items()})
    return {name: torch.cat([rows[name] for rows in several]).to(setting.device) for name in several[0]}


def _in_short(prompts: list[str]) -> str:
    digest = hashlib.sha256("\n".join(prompts).encode()).hexdigest()
    return f"{len(prompts)} prompts, {digest[:16]}"


def _decoder(vae: Any) -> Callable[[Tensor], Tensor]:
    """Pictures of latents, one at a time; in float32 where float16 is too small for the network, as in SDXL."""
    config, dtype = vae.config, vae.dtype
    upcast = bool(config.get("force_upcast")) and dtype == torch.float16

    @torch.no_grad()
    def decode(x: Tensor) -> Tensor:
        if not upcast:
            return decoded(x, dtype)
        vae.to(torch.float32)
        try:
            return decoded(x, torch.float32)
        finally:
            vae.to(dtype)

    def decoded(x: Tensor, dtype: torch.dtype) -> Tensor:
        z = x.to(dtype)
        if config.get("latents_mean") and config.get("latents_std"):
            mean, std = (torch.tensor(config[name]).to(z).reshape(-1, 1, 1) for name in ("latents_mean", "latents_std"))
            z = z * std / config.scaling_factor + mean
        else:
            z = z / config.scaling_factor + (config.get("shift_factor") or 0.0)
        return torch.cat([vae.decode(one[None], return_dict=False)[0] for one in z]).to(x.dtype)

    return decode


def read_prompts(path: Path) -> list[str]:
    """The prompts of a file, one in each line."""
    if not path.is_file():
        raise ValueError(f"there is no file {path} of prompts")
    prompts = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    if not prompts:
        raise ValueError(f"{path} holds no prompt; expected one in each line")
    return prompts
