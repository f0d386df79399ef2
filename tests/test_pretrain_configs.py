"""The configurations of `bespoke pretrain`, and the networks that they make."""

from pathlib import Path

import pytest
import torch
from diffusers.models.attention_processor import Attention
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
    attentions = [part for part in network.modules() if isinstance(part, Attention)]
    assert attentions
    for part in attentions:
        assert part.heads * (config.head_channels or part.to_q.out_features) == part.to_q.out_features
    assert sum(value.numel() for value in network.parameters()) / 1e6 == pytest.approx(PARAMETERS[name], rel=0.005)


# The paper's columns, with 192 channels and a dropout of 0.1 for ImageNet-64 (see the module): channels and their
# multiples, depth, channels of a head, attention, dropout, batch, rate, decay, warm-up, P-unconditional.
CIFAR10, IMAGENET = (128, (2, 2, 2), 4, None, (16,)), (64, (32, 16, 8))
TABLE = {
    "cifar10-eps-vp": (*CIFAR10, 0.1, 512, 5e-4, 0, 0, None),
    "cifar10-fm-ot": (*CIFAR10, 0.3, 512, 1e-4, 0, 0, None),
    "cifar10-fm-v-cs": (*CIFAR10, 0.3, 512, 1e-4, 0, 0, None),
    **{f"imagenet64-{o}": (192, (1, 2, 3, 4), 3, *IMAGENET, 0.1, 2048, 1e-4, 0, 0, 0.2) for o in OBJECTIVES},
    "imagenet128-fm-ot": (256, (1, 1, 2, 3, 4), 2, *IMAGENET, 0.0, 2048, 1e-4, 1, 5000, 0.2),
    "afhq256-fm-ot": (256, (1, 1, 2, 2, 4, 4), 2, 64, (64, 32, 16), 0.0, 256, 1e-4, 1, 5000, 0.2),
}


@pytest.mark.parametrize("name", TABLE)
def test_configurations_follow_the_table(name):
    channels, multiples, *rest = TABLE[name]
    config, names = CONFIGS[name], ("layers", "head_channels", "attention", "dropout", "batch_size", "learning_rate")
    assert config.channels == tuple(channels * multiple for multiple in multiples)
    assert [getattr(config, each) for each in (*names, "decay", "warmup", "label_dropout")] == rest
    assert config.size == {"cifar10": 32, "imagenet64": 64, "imagenet128": 128, "afhq256": 256}[name.split("-")[0]]
    assert (config.name, config.objective) == (name, name.partition("-")[2])


def test_configurations_are_documented_and_can_be_changed():
    page = (Path(__file__).parent.parent / "docs" / "pretraining.md").read_text()
    assert all(name in page for name in CONFIGS)
    assert sorted(TABLE) == sorted(name for name in CONFIGS if not name.startswith("small"))
    assert configuration("small-fm-ot", batch_size=7, learning_rate=None).batch_size == 7
    assert [CONFIGS[f"imagenet64-{o}"].prediction for o in OBJECTIVES] == ["flow", "v", "epsilon"]
