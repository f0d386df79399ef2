"""Full float32, whatever the user's switches say."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """No TF32 and no autocast to half precision: they disturb an adaptive solver at a tolerance of 1e-5."""
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # PyTorch 2.9 and later
        switches = [(torch.backends.cuda.matmul, "fp32_precision"), (torch.backends.cudnn.conv, "fp32_precision")]  # type: ignore[attr-defined]
        exact: Any = "ieee"
    else:
        switches = [(torch.backends.cuda.matmul, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")]
        exact = False
    before = [getattr(*switch) for switch in switches]
    try:
        for where, name in switches:
            setattr(where, name, exact)
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for (where, name), value in zip(switches, before, strict=True):
            setattr(where, name, value)
