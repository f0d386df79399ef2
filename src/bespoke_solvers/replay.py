"""Networks as CUDA graphs: a small one runs on a GPU in a fraction of the time that Python takes to call it."""

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from bespoke_solvers.precision import switches

AFTER = 3  # calls alike, by which cuDNN has chosen its kernels
SMALL = 2**21  # numbers in an input, above which the GPU is busy for longer than Python is
MOST = 8  # recordings: each is of inputs of one shape, in one precision

_one_at_a_time = threading.Lock()


class Recording(NamedTuple):
    """A graph, where it reads its inputs, and where it leaves its output."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    output: Tensor


class Replayed:
    """A function of tensors that is recorded on the GPU once it was called `AFTER` times alike, and replayed then.

    The kernels are the same, and so are the numbers. What it reads beside its arguments, the network's weights, must
    stay where it is, and it must make no decisions by the values of its inputs: those of the recording would stand. It
    is called as it is on other devices, for gradients, for large inputs, on streams of one's own, and where it cannot
    be recorded.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function
        self.calls: Counter[Hashable] = Counter()
        self.recordings: dict[Hashable, Recording | None] = {}
        self.lock = threading.Lock()

    def __call__(self, *inputs: Any) -> Tensor:
        """What the function returns for these inputs; where one is no tensor, it is not replayed."""
        if not _can_replay(inputs):
            return self.function(*inputs)
        with self.lock:
            recording = self._recording(inputs)
            if recording is None:
                return self.function(*inputs)
            for kept, given in zip(recording.inputs, inputs, strict=True):
                kept.copy_(given)
            recording.graph.replay()
            return recording.output.clone()

    def _recording(self, inputs: tuple[Tensor, ...]) -> Recording | None:
        """The recording for such inputs, made now if it is time; None where there is none."""
        like = _like(inputs)
        if like not in self.recordings:
            self.calls[like] += 1
            if self.calls[like] <= AFTER or len(self.recordings) >= MOST:
                return None
            self.recordings[like] = self._record(inputs)
        return self.recordings[like]

    def _record(self, inputs: tuple[Tensor, ...]) -> Recording | None:
        kept, graph = [given.clone() for given in inputs], torch.cuda.CUDAGraph()
        try:
            with (
                _one_at_a_time,
                torch.cuda.device(inputs[0].device),
                torch.cuda.graph(graph, capture_error_mode="thread_local"),
            ):
                output = self.function(*kept)
        except RuntimeError:  # it waits for the GPU inside, or there is no memory for another one
            return None
        return None if output.requires_grad else Recording(graph, kept, output)


def _can_replay(inputs: tuple[Any, ...]) -> bool:
    if not all(isinstance(given, Tensor) and given.is_cuda for given in inputs):
        return False
    device = inputs[0].device
    return (
        all(given.device == device for given in inputs)
        and max(given.numel() for given in inputs) <= SMALL
        and not (torch.is_grad_enabled() and any(given.requires_grad for given in inputs))
        and forward_ad._current_level < 0
        and torch.cuda.current_stream(device) == torch.cuda.default_stream(device)
    )


def _like(inputs: tuple[Tensor, ...]) -> Hashable:
    """What calls must have in common to run the same kernels."""
    return (
        *((given.shape, given.dtype) for given in inputs),
        *(getattr(*switch) for switch in switches()),
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        torch.is_inference_mode_enabled(),
    )
