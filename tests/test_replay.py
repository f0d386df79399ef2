import threading

import pytest
import torch

from bespoke_solvers import models, replay
from bespoke_solvers.precision import full_float32
from bespoke_solvers.replay import AFTER, MOST, Recording, Replayed

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are recorded on a GPU")


class Called:
    """A function that counts its calls."""

    def __init__(self):
        self.times = 0

    def __call__(self, t, x):
        self.times += 1
        return t * x.sin()


class Stand(Replayed):
    """Records on the CPU: its graph runs the function once more, on what the recording holds."""

    def _record(self, inputs):
        kept = [given.clone() for given in inputs]
        output = self.function(*kept)

        class Graph:
            def replay(self):
                with torch.no_grad():
                    output.copy_(kept[0] * kept[1].sin())

        return Recording(Graph(), kept, output)


@pytest.fixture
def stand(monkeypatch):
    monkeypatch.setattr(replay, "_can_replay", lambda inputs: True)
    return Stand(Called())


def inputs(*shape, dtype=torch.float32):
    return torch.rand((), dtype=dtype), torch.randn(shape, dtype=dtype)


def test_on_other_devices_the_function_is_called_as_it_is():
    called = Called()
    wrapped = Replayed(called)
    for _ in range(AFTER + 3):
        t, x = inputs(4, 3)
        torch.testing.assert_close(wrapped(t, x), t * x.sin(), rtol=0, atol=0)
    assert called.times == AFTER + 3
    assert not wrapped.recordings


def test_what_is_no_tensor_goes_to_the_function_as_it_is():
    wrapped = Replayed(lambda t, x, condition: t * x + condition["shift"])
    assert wrapped(2.0, torch.ones(3), {"shift": 1.0}).tolist() == [3.0, 3.0, 3.0]


def test_calls_alike_are_recorded_once_and_each_has_its_own_output(stand):
    given = [inputs(4, 3) for _ in range(AFTER + 5)]
    found = [stand(t, x) for t, x in given]
    assert stand.function.times == AFTER + 1
    for (t, x), output in zip(given, found, strict=True):
        torch.testing.assert_close(output, t * x.sin(), rtol=0, atol=0)


def test_another_shape_precision_or_switch_is_another_recording(stand):
    def run(*shape, dtype=torch.float32):
        for _ in range(AFTER + 2):
            stand(*inputs(*shape, dtype=dtype))
        return len(stand.recordings)

    assert [run(4, 3), run(4, 3), run(5, 3), run(4, 3, dtype=torch.float64)] == [1, 1, 2, 3]
    with full_float32(torch.device("cpu")):
        assert run(4, 3) == 4
    with torch.inference_mode():
        assert run(4, 3) == 5


def test_there_is_an_end_to_recordings(stand):
    for size in range(1, MOST + 4):
        for _ in range(AFTER + 2):
            t, x = inputs(size)
            torch.testing.assert_close(stand(t, x), t * x.sin(), rtol=0, atol=0)
    assert len(stand.recordings) == MOST


def test_threads_do_not_mix_their_inputs(stand):
    wrong = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(200):
            t, x = torch.rand((), generator=generator), torch.randn(6, generator=generator)
            if not torch.equal(stand(t, x), t * x.sin()):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@on_gpu
@pytest.mark.parametrize("full", [False, True])
def test_a_network_replayed_on_a_gpu_gives_the_numbers_of_its_calls(full):
    model = models.resolve("zoo:cifar10-fm-ot", device="cuda")
    outputs = []
    noise = model.noise(range(8))
    u = model.bind(noise.condition)
    for _ in range(AFTER + 3):
        with torch.no_grad():
            if full:
                with full_float32(noise.x0.device):
                    outputs.append(u(torch.tensor(0.3, device="cuda"), noise.x0))
            else:
                outputs.append(u(torch.tensor(0.3, device="cuda"), noise.x0))
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        other = u(torch.tensor(0.8, device="cuda"), 2 * noise.x0)
    assert (other - outputs[0]).abs().mean() > 0.01


@on_gpu
def test_a_gpu_is_not_called_by_python_again_and_gradients_are():
    called = Called()
    wrapped = Replayed(called)
    x = torch.randn(4, 3, device="cuda")
    for i in range(AFTER + 5):
        t = torch.tensor(float(i), device="cuda")
        torch.testing.assert_close(wrapped(t, x), t * x.sin())
    assert called.times == AFTER + 1
    y = x.clone().requires_grad_()
    wrapped(torch.ones((), device="cuda"), y).sum().backward()
    torch.testing.assert_close(y.grad, x.cos())
    assert called.times == AFTER + 2


@on_gpu
def test_what_waits_for_the_gpu_is_called_as_it_is():
    def waits(t, x):
        return x * t.item()

    wrapped, x = Replayed(waits), torch.randn(4, 3, device="cuda")
    for i in range(AFTER + 4):
        torch.testing.assert_close(wrapped(torch.tensor(float(i), device="cuda"), x), i * x)
    assert list(wrapped.recordings.values()) == [None]
