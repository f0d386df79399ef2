"""The losses of trainings, and what they draw."""

import contextlib
import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bespoke_solvers import matching
from bespoke_solvers.adapters.diffusers import as_model, network_time, trained_by_us
from bespoke_solvers.data import Pictures
from bespoke_solvers.matching import Source, target
from bespoke_solvers.pretrain_configs import OBJECTIVES
from bespoke_solvers.velocity import expand
from trainings import CPU, TINY, made


class OnePoint(torch.nn.Module):
    """What the ideal network gives where all the data is one picture: x0 is known from x and t."""

    dtype, device, config = torch.float32, CPU, SimpleNamespace(num_class_embeds=None)

    def __init__(self, trained, picture):
        super().__init__()
        self.trained, self.picture = trained, torch.nn.Parameter(picture)

    def forward(self, x, time, class_labels=None):
        path = self.trained.schedule(1 - time.double() / 1000)
        weights = target(self.trained.prediction, path)
        x0 = (x - expand(path.alpha, x) * self.picture) / expand(path.sigma, x)
        x1_weight, x0_weight = (expand(weight, x) for weight in weights)
        return SimpleNamespace(sample=x1_weight * self.picture + x0_weight * x0)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_minimiser_on_one_picture_is_its_known_velocity(objective):
    """The loss is quadratic in the picture that the network has inside, so two gradients give its minimiser."""
    config = dataclasses.replace(TINY, objective=objective)
    pixels = np.array([[60, 200, 200, 60]], dtype=np.uint8).reshape(1, 1, 1, 4)  # its own mirror image
    x1 = torch.tensor(pixels / 127.5 - 1, dtype=torch.float32)
    torch.manual_seed(0)
    batch = Source(Pictures(pixels, None, [], "one"), 0, None, True, CPU).draw(64, config.schedule)
    gradients = []
    for start in (torch.zeros_like(x1), torch.ones_like(x1)):
        network = OnePoint(config, start)
        matching.loss(network, config.schedule, config.prediction, batch).backward()
        gradients.append(network.picture.grad)
    found = gradients[0] / (gradients[0] - gradients[1])
    torch.testing.assert_close(found, x1, atol=1e-3, rtol=0)

    network = OnePoint(config, x1).requires_grad_(False)
    assert matching.loss(network, config.schedule, config.prediction, batch) < 1e-6
    model = as_model(network, trained_by_us(config.prediction, config.schedule, 0), (1, 1, 4))
    t, x0 = torch.tensor([0.1, 0.5, 0.9]), torch.randn(3, 1, 1, 4)
    alpha, sigma, d_alpha, d_sigma = (expand(value, x0) for value in config.schedule(t))
    velocity = model.bind()(t, alpha * x1 + sigma * x0)
    torch.testing.assert_close(velocity, d_alpha * x1 + d_sigma * x0, atol=2e-3, rtol=1e-3)


def test_the_network_time_and_the_signs_are_those_of_the_shared_models():
    path = OBJECTIVES["fm-ot"].schedule(torch.tensor([0.3]))
    assert [weight.item() for weight in target("flow", path)] == [-1, 1], "noise - data"
    assert network_time(torch.tensor([0.0, 0.25, 1.0])).tolist() == [1000, 750, 0]
    with pytest.raises(ValueError, match="no loss for the prediction 'score'"):
        target("score", path)


def test_the_network_sees_flipped_pictures_where_the_batch_says_so():
    """At t = 1, where x is the picture itself."""
    pixels = torch.tensor([[0, 85, 170, 255]], dtype=torch.uint8).expand(2, 1, 1, 4)
    batch = matching.Batch(pixels, None, torch.tensor([False, True]), torch.ones(2), torch.zeros(2, 1, 1, 4))
    seen = []

    def network(x, time, class_labels):
        seen.append(x)
        return SimpleNamespace(sample=torch.zeros_like(x))

    matching.loss(network, OBJECTIVES["fm-ot"].schedule, "flow", batch)
    third = torch.tensor([-1, -1 / 3, 1 / 3, 1])
    torch.testing.assert_close(seen[0].reshape(2, 4), torch.stack([third, third.flip(0)]))


@pytest.mark.parametrize(("device", "enabled"), [("cpu", False), ("cuda", True)])
def test_the_network_runs_in_bfloat16_on_a_gpu_alone(device, enabled, monkeypatch):
    """Also where there is none: tensors that say that they are on it."""
    entered, placed = [], type("Placed", (torch.Tensor,), {"device": torch.device(device)})
    monkeypatch.setattr(
        torch, "autocast", lambda *given, **options: entered.append((*given, options)) or contextlib.nullcontext()
    )

    def network(x, time, class_labels):
        assert len(entered) == 1, "inside of it"
        return SimpleNamespace(sample=x)

    data = matching.Source(made(), 0, None, True, CPU).draw(2, TINY.schedule)
    batch = data._replace(x0=data.x0.as_subclass(placed))
    matching.loss(network, TINY.schedule, "flow", batch)
    assert entered == [(device, torch.bfloat16, {"enabled": enabled})]


def test_batches_drop_labels_flip_pictures_and_stay_in_the_domain():
    data = made()
    left_to_right = np.broadcast_to(np.arange(8, dtype=np.uint8), data.pixels.shape)
    schedule = OBJECTIVES["eps-vp"].schedule
    torch.manual_seed(0)
    data = dataclasses.replace(data, pixels=data.pixels + left_to_right)
    batch = Source(data, 3, 0.2, True, CPU).draw(20_000, schedule)
    dropped = batch.labels == 3
    assert dropped.float().mean().item() == pytest.approx(0.2, abs=0.01)
    assert torch.equal(batch.labels[~dropped], (batch.pixels[:, 0, 0, 0].long() // 100)[~dropped])
    assert batch.flip.float().mean().item() == pytest.approx(0.5, abs=0.01)
    assert 0 <= batch.t.min() < 0.01
    assert 0.99 < batch.t.max() <= 1 - 0.9e-4, "eps-VP is not trained nearer to the data"
    assert not Source(data, 3, 0.2, False, CPU).draw(100, schedule).flip.any()
    unlabelled = Source(dataclasses.replace(data, labels=None), 0, None, True, CPU).draw(8, schedule)
    assert unlabelled.labels is None
