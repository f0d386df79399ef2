"""How pipelines of diffusers encode prompts, and how they call their networks: one entry of `KINDS` for each.

U-Nets, SD3, PixArt and DiT get the time as it is, in float32; FLUX gets it in the dtype of its latents.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

Rows = dict[str, Tensor]  # arguments of the network, a row for each prompt
ADDED = ("text_embeds", "time_ids", "resolution", "aspect_ratio")  # arguments that go in `added_cond_kwargs`


class Setting(NamedTuple):
    """The side of a picture, the scale of guidance, whether that takes a second pass of the network; and the device."""

    size: int
    guidance: float | None
    two_passes: bool
    device: torch.device


class Encoded(NamedTuple):
    """What the network gets for each prompt, and for none (where there is a second pass)."""

    rows: Rows
    null: Rows | None


def _stable_diffusion(pipe: Any, prompts: list[str], to: Setting) -> Encoded:
    embeds, null = pipe.encode_prompt(prompts, to.device, 1, to.two_passes)
    return Encoded({"encoder_hidden_states": embeds}, {"encoder_hidden_states": null} if to.two_passes else None)


def _stable_diffusion_xl(pipe: Any, prompts: list[str], to: Setting) -> Encoded:
    """The network is told the size of the picture, before and after a cropping that there was not."""
    options = {"device": to.device, "do_classifier_free_guidance": to.two_passes}
    embeds, null, pooled, null_pooled = pipe.encode_prompt(prompts, **options)

    def rows(embeds: Tensor, pooled: Tensor) -> Rows:
        time_ids = torch.tensor([to.size, to.size, 0, 0, to.size, to.size]).to(embeds).expand(len(embeds), 6)
        return {"encoder_hidden_states": embeds, "text_embeds": pooled, "time_ids": time_ids}

    return Encoded(rows(embeds, pooled), rows(null, null_pooled) if to.two_passes else None)


def _stable_diffusion_3(pipe: Any, prompts: list[str], to: Setting) -> Encoded:
    options = {"device": to.device, "do_classifier_free_guidance": to.two_passes}
    embeds, null, pooled, null_pooled = pipe.encode_prompt(prompts, None, None, **options)

    def rows(embeds: Tensor, pooled: Tensor) -> Rows:
        return {"encoder_hidden_states": embeds, "pooled_projections": pooled}

    return Encoded(rows(embeds, pooled), rows(null, null_pooled) if to.two_passes else None)


def _flux(pipe: Any, prompts: list[str], to: Setting) -> Encoded:
    embeds, pooled, _ = pipe.encode_prompt(prompts, device=to.device)
    scale = {} if to.guidance is None else {"guidance": torch.full((len(prompts),), to.guidance)}
    return Encoded({"encoder_hidden_states": embeds, "pooled_projections": pooled} | scale, None)


def _pixart(pipe: Any, prompts: list[str], to: Setting) -> Encoded:
    options = {"device": to.device, "do_classifier_free_guidance": to.two_passes}
    embeds, mask, null, null_mask = pipe.encode_prompt(prompts, **options)

    def rows(embeds: Tensor, mask: Tensor) -> Rows:
        found = {"encoder_hidden_states": embeds, "encoder_attention_mask": mask}
        if pipe.transformer.use_additional_conditions:
            sides = torch.full((len(embeds), 2), to.size).to(embeds)
            found |= {"resolution": sides, "aspect_ratio": torch.ones_like(sides[:, :1])}
        return found

    return Encoded(rows(embeds, mask), rows(null, null_mask) if to.two_passes else None)


def _dit(pipe: Any, prompts: list[str], to: Setting) -> Encoded:
    """The number after the last class is that of none."""
    count = pipe.transformer.config.num_embeds_ada_norm
    numbers = pipe.get_label_ids(prompts) if prompts else range(count)
    return Encoded({"class_labels": torch.tensor(numbers)}, {"class_labels": torch.tensor([count])})


def _call(network: Any, x: Tensor, time: Tensor, rows: Rows) -> Tensor:
    """Channels beyond those of x are a learned variance, which an ODE has no use for."""
    added = {name: rows[name] for name in ADDED if name in rows}
    options = {name: value for name, value in rows.items() if name not in ADDED}
    if added:
        options["added_cond_kwargs"] = added  # type: ignore[assignment]
    output: Tensor = network(x, timestep=time, return_dict=False, **options)[0]
    return output[:, : x.shape[1]]


def _call_flux(network: Any, x: Tensor, time: Tensor, rows: Rows) -> Tensor:
    """Patches of 2 x 2 in a row, each with its place; the time, cast to their dtype, is off by up to 2 in bfloat16."""
    height, width = x.shape[-2] // 2, x.shape[-1] // 2
    axes = (torch.zeros(1), torch.arange(height).float(), torch.arange(width).float())
    output: Tensor = network(
        pixel_unshuffle(x, 2).flatten(2).mT,
        timestep=time.to(x.dtype) / 1000,
        img_ids=torch.cartesian_prod(*axes).to(x),
        txt_ids=x.new_zeros(rows["encoder_hidden_states"].shape[1], 3),
        return_dict=False,
        **rows,
    )[0]
    return pixel_shuffle(output.mT.reshape(len(x), -1, height, width), 2)


class Kind(NamedTuple):
    """How a pipeline encodes prompts, and how its network is called.

    patch: the side of the squares of latents that the pipeline itself packs into one input. guidance_is_input: there is
    no second pass, and a network may also do without. classes: prompts are names of classes, and the size is fixed.
    scales_noise: whether the pipeline scales the noise as its scheduler says.
    """

    encode: Callable[[Any, list[str], Setting], Encoded]
    call: Callable[[Any, Tensor, Tensor, Rows], Tensor] = _call
    patch: int = 1
    guidance_is_input: bool = False
    classes: bool = False
    scales_noise: bool = True


KINDS = {
    "StableDiffusionPipeline": Kind(_stable_diffusion),
    "StableDiffusionXLPipeline": Kind(_stable_diffusion_xl),
    "StableDiffusion3Pipeline": Kind(_stable_diffusion_3, scales_noise=False),
    "FluxPipeline": Kind(_flux, _call_flux, patch=2, guidance_is_input=True, scales_noise=False),
    "PixArtAlphaPipeline": Kind(_pixart),
    "PixArtSigmaPipeline": Kind(_pixart),
    "DiTPipeline": Kind(_dit, classes=True, scales_noise=False),
}
