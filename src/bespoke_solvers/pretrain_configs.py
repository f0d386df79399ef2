"""What `pretrain` can train: the paper's networks (its table of hyper-parameters), and small ones that take minutes.

The U-Net is Dhariwal & Nichol's (2021), as diffusers' `UNet2DModel`. Two entries of the paper's table cannot be meant:
196 channels do not divide into heads of 64, and a dropout of 1.0 leaves nothing of a network; Dhariwal & Nichol's own
values for ImageNet-64, 192 and 0.1, stand in for them.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from bespoke_solvers.schedules import VP, CondOT, Cosine, Schedule

if TYPE_CHECKING:
    from diffusers import UNet2DModel


class Objective(NamedTuple):
    """The path, and what the network predicts on it."""

    schedule: Schedule
    prediction: str


OBJECTIVES = {
    "fm-ot": Objective(CondOT(), "flow"),
    "fm-v-cs": Objective(Cosine(), "v"),
    "eps-vp": Objective(VP(), "epsilon"),
}


@dataclass(frozen=True)
class Config:
    """A network, and how it is trained.

    size: height and width of the pictures.
    channels: of each level of the U-Net; a level has half the resolution of the one before.
    layers: residual blocks of a level (the paper's depth).
    attention: the resolutions that have it; heads of `head_channels` channels, or one head.
    residual: Dhariwal & Nichol's residual up- and downsampling and scale-shift norm, rather than plain convolutions.
    label_dropout: how often a label is replaced by "no class"; None trains without labels.
    flip: whether half of the pictures are mirrored; None mirrors all but grey ones, which are digits or letters.
    warmup, decay: the rate grows linearly over so many steps, and falls as (1 - progress)^decay.
    """

    name: str
    objective: str
    size: int
    channels: tuple[int, ...]
    layers: int
    attention: tuple[int, ...]
    head_channels: int | None
    batch_size: int
    learning_rate: float
    dropout: float = 0.0
    label_dropout: float | None = 0.2
    warmup: int = 0
    decay: float = 0.0
    residual: bool = True
    flip: bool | None = None
    groups: int = 32

    @property
    def schedule(self) -> Schedule:
        """The Gaussian path."""
        return OBJECTIVES[self.objective].schedule

    @property
    def prediction(self) -> str:
        """What the network predicts, by the names of `velocity.PREDICTIONS`."""
        return OBJECTIVES[self.objective].prediction


CIFAR10: dict[str, Any] = {
    "size": 32,
    "channels": (256, 256, 256),
    "layers": 4,
    "attention": (16,),
    "head_channels": None,
    "batch_size": 512,
    "learning_rate": 1e-4,
    "dropout": 0.3,
    "label_dropout": None,
}
IMAGENET64: dict[str, Any] = {
    "size": 64,
    "channels": (192, 384, 576, 768),
    "layers": 3,
    "attention": (32, 16, 8),
    "head_channels": 64,
    "batch_size": 2048,
    "learning_rate": 1e-4,
    "dropout": 0.1,
}
IMAGENET128: dict[str, Any] = {
    "size": 128,
    "channels": (256, 256, 512, 768, 1024),
    "layers": 2,
    "attention": (32, 16, 8),
    "head_channels": 64,
    "batch_size": 2048,
    "learning_rate": 1e-4,
    "warmup": 5000,
    "decay": 1.0,
}
AFHQ256: dict[str, Any] = {
    "size": 256,
    "channels": (256, 256, 512, 512, 1024, 1024),
    "layers": 2,
    "attention": (64, 32, 16),
    "head_channels": 64,
    "batch_size": 256,
    "learning_rate": 1e-4,
    "warmup": 5000,
    "decay": 1.0,
}
SMALL: dict[str, Any] = {
    "size": 32,
    "channels": (24, 48, 64, 64),
    "layers": 2,
    "attention": (8,),
    "head_channels": 64,
    "groups": 8,
    "batch_size": 512,
    "learning_rate": 1e-3,
    "warmup": 500,
    "decay": 1.0,
    "residual": False,
}

CONFIGS = {
    config.name: config
    for config in (
        *(Config(f"small-{objective}", objective, **SMALL) for objective in OBJECTIVES),
        *(Config(f"cifar10-{objective}", objective, **CIFAR10) for objective in ("fm-ot", "fm-v-cs")),
        Config("cifar10-eps-vp", "eps-vp", **CIFAR10 | {"learning_rate": 5e-4, "dropout": 0.1}),
        *(Config(f"imagenet64-{objective}", objective, **IMAGENET64) for objective in OBJECTIVES),
        Config("imagenet128-fm-ot", "fm-ot", **IMAGENET128),
        Config("afhq256-fm-ot", "fm-ot", **AFHQ256),
    )
}


def configuration(name: str, **changes: Any) -> Config:
    """The named configuration with some values changed; None leaves a value as it is."""
    if name not in CONFIGS:
        raise ValueError(f"unknown configuration {name!r}; expected one of {', '.join(CONFIGS)}")
    return dataclasses.replace(CONFIGS[name], **{key: value for key, value in changes.items() if value is not None})


def unet(config: Config, colours: int, classes: int) -> "UNet2DModel":
    """The network with new weights; with classes, one more label stands for "no class"."""
    try:
        from diffusers import UNet2DModel
    except ImportError as error:
        raise ValueError("the networks are diffusers' U-Nets, which is not installed: pip install diffusers") from error
    plain = {"Down": "ResnetDownsampleBlock2D", "Up": "ResnetUpsampleBlock2D"} if config.residual else {}

    def blocks(way: str) -> list[str]:
        levels = [config.size >> level in config.attention for level in range(len(config.channels))]
        return [f"Attn{way}Block2D" if attends else plain.get(way, f"{way}Block2D") for attends in levels]

    return UNet2DModel(
        sample_size=config.size,
        in_channels=colours,
        out_channels=colours,
        block_out_channels=config.channels,
        layers_per_block=config.layers,
        down_block_types=tuple(blocks("Down")),
        up_block_types=tuple(blocks("Up")[::-1]),
        downsample_type="resnet" if config.residual else "conv",
        upsample_type="resnet" if config.residual else "conv",
        resnet_time_scale_shift="scale_shift" if config.residual else "default",
        attention_head_dim=config.head_channels,
        norm_num_groups=config.groups,
        dropout=config.dropout,
        num_class_embeds=classes + 1 if classes else None,
    )
