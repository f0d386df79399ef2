"""A training that takes seconds."""

import numpy as np
import torch

from bespoke_solvers.data import Pictures
from bespoke_solvers.pretrain_configs import Config

CPU = torch.device("cpu")
TINY = Config(
    **{"name": "tiny", "objective": "fm-ot", "size": 8, "channels": (8, 8), "layers": 1, "attention": (4,)},
    **{"head_channels": 4, "batch_size": 8, "learning_rate": 4e-3, "dropout": 0.1, "decay": 1.0, "groups": 4},
    residual=False,
)


def made(count=32, classes=3, size=8) -> Pictures:
    """Pictures of one grey each, the darker the lower the class."""
    labels = np.arange(count) % classes
    pixels = np.broadcast_to((labels * 100).astype(np.uint8)[:, None, None, None], (count, 1, size, size)).copy()
    return Pictures(pixels, labels, [f"grey {i}" for i in range(classes)], "greys")
