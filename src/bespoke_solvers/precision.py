"""Full float32, whatever the user's switches say."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_lock, _inside, _before = threading.Lock(), 0, list[Any]()


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """No TF32, no bfloat16 inside products of float32, no autocast: they disturb an adaptive solver at 1e-5.

    The switches are the process's: of several threads the first turns them, and the last one turns them back.
    """
    global _inside, _before
    switches: list[tuple[Any, str]]
    exact: Any
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # PyTorch 2.9 and later
        gpu = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
        cpu: Any = torch.backends.mkldnn
        switches, exact = [(where, "fp32_precision") for where in (*gpu, cpu.matmul, cpu.conv)], "ieee"
    else:
        switches, exact = [(torch.backends.cuda.matmul, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")], False
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
