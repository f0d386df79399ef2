"""Networks as CUDA graphs: a small one runs on a GPU in a fraction of the time that Python takes to call it."""

import contextlib
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

from bespoke_solvers.precision import switches

AFTER = 3  # calls alike, before one is recorded: many are made once or twice only
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
    is called as it is on other devices, where gradients are enabled, under autocast or `torch.func`, for large inputs,
    on streams of one's own, and, with a warning, where it cannot be recorded.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function
        self.calls: Counter[Hashable] = Counter()
        self.recordings: dict[Hashable, Recording | None] = {}
        self.sides: dict[torch.device, torch.cuda.Stream] = {}  # which recordings are made on
        self.pool: Any = None  # the memory of all of them: only one runs at a time, and its output is copied out
        self.lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has recordings of its own."""
        return type(self), (self.function,)

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
        device, graph = inputs[0].device, torch.cuda.CUDAGraph()
        if device not in self.sides:
            self.sides[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        usual, side = torch.cuda.current_stream(device), self.sides[device]
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        kept = [given.clone() for given in inputs]
        side.wait_stream(usual)
        try:
            with _one_at_a_time, torch.cuda.stream(side):  # which also leads back where a recording fails
                self.function(*kept)  # so that this thread has chosen its kernels
                with torch.cuda.graph(graph, pool=self.pool, stream=side, capture_error_mode="thread_local"):
                    output = self.function(*kept)
        except RuntimeError as error:  # it waits for the GPU inside, say
            # PyTorch's random numbers raise from here on, until a recording has come to its end: an empty one does.
            empty = torch.cuda.graph(torch.cuda.CUDAGraph(), stream=side, capture_error_mode="thread_local")
            with _one_at_a_time, contextlib.suppress(RuntimeError), torch.cuda.stream(side), empty:
                torch.zeros(1, device=device)
            warnings.warn(f"the network cannot be recorded as a CUDA graph, and runs without: {error}", stacklevel=4)
            return None
        usual.wait_stream(side)
        return Recording(graph, kept, output)


def _can_replay(inputs: tuple[Any, ...]) -> bool:
    if not all(isinstance(given, Tensor) and given.is_cuda for given in inputs):
        return False
    device = inputs[0].device
    return (
        all(given.device == device for given in inputs)
        and max(given.numel() for given in inputs) <= SMALL
        and _plainly_called()
        and torch.cuda.current_stream(device) == torch.cuda.default_stream(device)
    )


def _plainly_called() -> bool:
    """Whether no gradient is taken, forwards or backwards, and no `torch.func` is at work."""
    return (
        not torch.is_grad_enabled()
        and forward_ad._current_level < 0
        and peek_interpreter_stack() is None
        and not torch.is_autocast_enabled("cuda")  # which keeps copies of weights, for as long as it lasts
    )


def _like(inputs: tuple[Tensor, ...]) -> Hashable:
    """What calls must have in common to run the same kernels."""
    return (
        *((given.device, given.dtype, given.shape, given.stride()) for given in inputs),
        *(getattr(*switch) for switch in switches()),
        torch.is_inference_mode_enabled(),
    )
