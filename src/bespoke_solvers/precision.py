"""Full float32, whatever the user's switches say."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_lock, _inside, _before = threading.Lock(), 0, list[Any]()
EXACT = {"fp32_precision": "ieee", "allow_tf32": False}  # by the name of a switch


def switches() -> list[tuple[Any, str]]:
    """Where PyTorch is told how exact products of float32 are, as objects and names of their attributes."""
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # before PyTorch 2.9
        return [(torch.backends.cuda.matmul, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")]
    cudnn: Any = torch.backends.cudnn
    cpu: Any = torch.backends.mkldnn
    return [(where, "fp32_precision") for where in (torch.backends.cuda.matmul, cudnn.conv, cpu.matmul, cpu.conv)]


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """No TF32, no bfloat16 inside products of float32, no autocast: they disturb an adaptive solver at 1e-5.

    The switches are the process's: of several threads the first turns them, and the last one turns them back.
    """
    global _inside, _before
    with _lock:
        if _inside == 0:
            _before = [getattr(*switch) for switch in switches()]
            for where, name in switches():
                setattr(where, name, EXACT[name])
        _inside += 1
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                for (where, name), value in zip(switches(), _before, strict=True):
                    setattr(where, name, value)
