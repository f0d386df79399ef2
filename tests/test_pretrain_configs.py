"""The configurations of `bespoke pretrain`, and the networks that they make."""

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bespoke_solvers.pretrain_configs import CONFIGS, OBJECTIVES, configuration, unet


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_small_networks_are_small(objective):
    """At most 4 MB in float16, and 0.5 GFLOP for an evaluation."""
    with torch.device("meta"):
        network = unet(CONFIGS[f"small-{objective}"], 3, 10)
        with FlopCounterMode(display=False) as counter:
            network(torch.zeros(1, 3, 32, 32), torch.zeros(1), torch.zeros(1, dtype=torch.long))
    assert 2 * sum(value.numel() for value in network.parameters()) <= 4e6
    assert counter.get_total_flops() <= 0.5e9


PARAMETERS = {  # in millions: Dhariwal & Nichol's table of ImageNet models; the others as built here
    **{"imagenet64-fm-ot": 296, "imagenet128-fm-ot": 422, "afhq256-fm-ot": 537, "cifar10-fm-ot": 71},
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_networks_of_the_paper_can_be_built(name):
    config = CONFIGS[name]
    with torch.device("meta"):
        network = unet(config, 3, 1000 if "imagenet" in name else 0)
        labels = torch.zeros(1, dtype=torch.long) if "imagenet" in name else None
        x = torch.zeros(1, 3, config.size, config.size)
        assert network(x, torch.zeros(1), labels).sample.shape == x.shape
    assert sum(value.numel() for value in network.parameters()) / 1e6 == pytest.approx(PARAMETERS[name], rel=0.005)


def test_configurations_follow_the_table():
    page = (Path(__file__).parent.parent / "docs" / "pretraining.md").read_text()
    assert all(name in page for name in CONFIGS)
    assert configuration("small-fm-ot", batch_size=7, learning_rate=None).batch_size == 7
    assert CONFIGS["cifar10-eps-vp"].learning_rate == 5e-4
    assert [CONFIGS[f"imagenet64-{o}"].prediction for o in OBJECTIVES] == ["flow", "v", "epsilon"]
