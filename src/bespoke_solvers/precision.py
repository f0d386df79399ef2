"""Full float32, whatever the user's switches say."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_lock, _inside, _before = threading.Lock(), 0, list[Any]()


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """No TF32 and no autocast to half precision: they disturb an adaptive solver at a tolerance of 1e-5.

    TF32's switches are the process's: of several threads the first turns them, and the last one turns them back.
    """
    global _inside, _before
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # PyTorch 2.9 and later
        switches = [(torch.backends.cuda.matmul, "fp32_precision"), (torch.backends.cudnn.conv, "fp32_precision")]  # type: ignore[attr-defined]
        exact: Any = "ieee"
    else:
        switches = [(torch.backends.cuda.matmul, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")]
        exact = False
    with _lock:
        if _inside == 0:
            _before = [getattr(*switch) for switch in switches]
            for where, name in switches:
                setattr(where, name, exact)
        _inside += 1
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                for (where, name), value in zip(switches, _before, strict=True):
                    setattr(where, name, value)
