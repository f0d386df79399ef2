"""Recordings of networks: on a GPU, and, for what surrounds them, on one that is feigned."""

import copy
import pickle
import threading
from contextlib import nullcontext

import pytest
import torch

from bespoke_solvers import models, replay
from bespoke_solvers.precision import full_float32
from bespoke_solvers.replay import AFTER, MOST, Replayed

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are recorded on a GPU")


def expected(t, x):
    return t * x.sin()


class Called:
    """A function that counts its calls, and those that are recorded."""

    def __init__(self):
        self.times = 0

    def __call__(self, t, x):
        self.times += 1
        output = expected(t, x)
        if FeignedGraph.recording:
            FeignedGraph.recording.inputs, FeignedGraph.recording.output = (t, x), output
        return output


class FeignedGraph:
    """Computes what was recorded once more, from where the inputs were to where the output was."""

    recording = None

    def replay(self):
        self.output.copy_(expected(*self.inputs))


class Capture:
    def __init__(self, graph, stream, capture_error_mode, pool=None):
        assert capture_error_mode == "thread_local"
        self.graph, self.pool, self.stream = graph, pool, stream

    def __enter__(self):
        assert self.stream in entered
        FeignedGraph.recording = self.graph

    def __exit__(self, *error):
        FeignedGraph.recording = None


entered = []  # streams that work goes to


class Stream:
    def __init__(self, device=None):
        self.waited = []

    def wait_stream(self, other):
        self.waited.append(other)

    def __enter__(self):
        entered.append(self)

    def __exit__(self, *error):
        entered.remove(self)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU whose tensors are those of the CPU."""
    usual = Stream()
    monkeypatch.setattr(replay, "_can_replay", lambda inputs: not torch.is_grad_enabled())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FeignedGraph)
    monkeypatch.setattr(torch.cuda, "graph", Capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: usual)
    with torch.no_grad():
        yield usual


@pytest.fixture
def wrapped(gpu):
    return Replayed(Called())


def inputs(*shape, dtype=torch.float32):
    return torch.rand((), dtype=dtype), torch.randn(shape, dtype=dtype)


def test_on_other_devices_the_function_is_called_as_it_is():
    wrapped = Replayed(Called())
    with torch.no_grad():
        for _ in range(AFTER + 3):
            t, x = inputs(4, 3)
            torch.testing.assert_close(wrapped(t, x), expected(t, x), rtol=0, atol=0)
    assert wrapped.function.times == AFTER + 3
    assert not wrapped.recordings


@torch.no_grad()
def test_transformed_calls_are_not_replayed():
    x, seen = torch.ones(2), []

    def seeing(x):
        seen.append(replay._plainly_called())
        return x.sum()

    seeing(x)
    torch.func.vmap(seeing)(x)
    torch.func.jvp(seeing, (x,), (x,))
    with torch.enable_grad():
        seeing(x)
    with torch.autocast("cuda", torch.bfloat16) if torch.cuda.is_available() else nullcontext():
        seeing(x)
    assert seen == [True, False, False, False, not torch.cuda.is_available()]


def test_what_is_no_tensor_goes_to_the_function_as_it_is():
    wrapped = Replayed(lambda t, x, condition: t * x + condition["shift"])
    assert wrapped(2.0, torch.ones(3), {"shift": 1.0}).tolist() == [3.0, 3.0, 3.0]


def test_calls_alike_are_recorded_once_and_each_has_its_own_output(gpu, wrapped):
    given = [inputs(4, 3) for _ in range(AFTER + 5)]
    found = [wrapped(t, x) for t, x in given]
    assert wrapped.function.times == AFTER + 2, "to choose kernels, and to be recorded"
    for (t, x), output in zip(given, found, strict=True):
        torch.testing.assert_close(output, expected(t, x), rtol=0, atol=0)
    (side,) = wrapped.sides.values()
    assert (side.waited, gpu.waited, entered) == ([gpu], [side], [])


def test_another_shape_precision_or_switch_is_another_recording(wrapped):
    def run(*shape, dtype=torch.float32, turned=False):
        for _ in range(AFTER + 2):
            t, x = inputs(*shape, dtype=dtype)
            x = x.mT if turned else x
            torch.testing.assert_close(wrapped(t, x), expected(t, x), rtol=0, atol=0)
        return len(wrapped.recordings)

    assert [run(3, 3), run(3, 3), run(5, 3), run(3, 3, dtype=torch.float64), run(3, 3, turned=True)] == [1, 1, 2, 3, 4]
    with full_float32(torch.device("cpu")):
        assert run(3, 3) == 5
    with torch.inference_mode():
        assert run(3, 3) == 6
    assert len(wrapped.sides) == 1


def test_there_is_an_end_to_recordings(wrapped):
    for size in range(1, MOST + 4):
        for _ in range(AFTER + 2):
            t, x = inputs(size)
            torch.testing.assert_close(wrapped(t, x), expected(t, x), rtol=0, atol=0)
    assert len(wrapped.recordings) == MOST


def test_where_it_cannot_be_recorded_it_is_called_and_that_is_said_once(wrapped, monkeypatch):
    ends = []

    def fails(self, *error):
        FeignedGraph.recording = None
        ends.append((self.pool, replay._one_at_a_time.locked()))
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Capture, "__exit__", fails)

    def run():
        for _ in range(AFTER + 4):
            t, x = inputs(4)
            torch.testing.assert_close(wrapped(t, x), expected(t, x), rtol=0, atol=0)

    with pytest.warns(UserWarning, match="cannot be recorded as a CUDA graph, and runs without: operation") as said:
        run()
    assert len(said) == 1
    assert list(wrapped.recordings.values()) == [None]
    assert not entered, "work goes on where it was"
    assert ends == [("pool", True), (None, True)], "there is one at a time, the empty one that follows included"


def test_gradients_are_those_of_the_function(wrapped):
    for _ in range(AFTER + 2):
        wrapped(*inputs(4))
    x = torch.randn(4).requires_grad_()
    with torch.enable_grad():
        wrapped(torch.ones(()), x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())


def test_threads_do_not_mix_their_inputs(wrapped):
    wrong = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():  # which each thread has for itself
            for _ in range(200):
                t, x = torch.rand((), generator=generator), torch.randn(6, generator=generator)
                if not torch.equal(wrapped(t, x), expected(t, x)):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_copy_has_recordings_of_its_own(wrapped):
    for _ in range(AFTER + 2):
        wrapped(*inputs(4))
    for copied in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert copied.function.times == AFTER + 2
        assert not copied.recordings


@on_gpu
@pytest.mark.parametrize("full", [False, True])
def test_a_network_replayed_on_a_gpu_gives_the_numbers_of_its_calls(full, monkeypatch):
    model = models.resolve("zoo:cifar10-fm-ot", device="cuda")
    noise = model.noise(range(8))
    u = model.bind(noise.condition)
    times = torch.linspace(0.1, 0.9, AFTER + 4, device="cuda")
    recorded, record = [], Replayed._record
    monkeypatch.setattr(Replayed, "_record", lambda *given: recorded.append(record(*given)) or recorded[-1])

    def outputs():
        with torch.no_grad(), full_float32(noise.x0.device) if full else nullcontext():
            return [u(t, (1 + t) * noise.x0) for t in times]

    replayed = outputs()
    assert [each is not None for each in recorded] == [True]
    monkeypatch.setattr(replay, "_can_replay", lambda inputs: False)
    for found, called in zip(replayed, outputs(), strict=True):
        torch.testing.assert_close(found, called, rtol=1e-5, atol=1e-5)


@on_gpu
def test_a_gpu_is_not_called_by_python_again_and_gradients_are():
    wrapped, x = Replayed(Called()), torch.randn(4, 3, device="cuda")
    with torch.no_grad():
        for i in range(AFTER + 5):
            t = torch.tensor(float(i), device="cuda")
            torch.testing.assert_close(wrapped(t, x), expected(t, x))
    assert wrapped.function.times == AFTER + 2
    y = x.clone().requires_grad_()
    wrapped(torch.ones((), device="cuda"), y).sum().backward()
    torch.testing.assert_close(y.grad, x.cos())
    assert wrapped.function.times == AFTER + 3
    with torch.no_grad(), torch.autocast("cuda"):
        wrapped(torch.ones((), device="cuda"), x)
    assert wrapped.function.times == AFTER + 4


@on_gpu
def test_what_waits_for_the_gpu_is_called_as_it_is():
    wrapped, x = Replayed(lambda t, x: x * t.item()), torch.randn(4, 3, device="cuda")

    @torch.no_grad()
    def run():
        for i in range(AFTER + 4):
            torch.testing.assert_close(wrapped(torch.tensor(float(i), device="cuda"), x), i * x)

    with pytest.warns(UserWarning, match="cannot be recorded"):
        run()
    assert list(wrapped.recordings.values()) == [None]
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.randn(4, device="cuda").isfinite().all(), "random numbers are drawn as before"
