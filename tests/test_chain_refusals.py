"""What a fit refuses before it begins."""

import dataclasses

import pytest
import torch

from bespoke_solvers import toy
from bespoke_solvers.bank import Bank
from bespoke_solvers.generic import baseline
from chains import CHAINED, SMALL, fit
from problems import CENTRES

pytestmark = pytest.mark.usefixtures("few_steps")


WRONG = {
    "closed form with a start": (
        {"objective": "closed-form", "start": 1},
        "start is for projection and endpoint of ns",
    ),
    "low effort with a start": ({"effort": "low", "start": 1}, "start is for projection and endpoint of ns"),
    "rk2 with a start": ({"family": "rk2", "nfe": 4, "start": 1}, "start is for projection and endpoint of ns"),
    "bound for ns": (
        {"objective": "bound"},
        "unknown objective 'bound' for ns; expected one of closed-form, projection, endpoint",
    ),
    "projection for rk2": (
        {"objective": "projection", "family": "rk2", "nfe": 4},
        "unknown objective 'projection' for rk2; expected one of bound, endpoint",
    ),
    "unknown effort": ({"effort": "huge"}, "effort 'huge' for ns; expected one of low, medium, high"),
    "no paths": ({"paths": 0}, 'paths must be a whole number of at least 1, got 0; or "fresh"'),
    "steps of the closed form": (
        {"objective": "closed-form", "iterations": 5},
        "closed-form cannot have 5 iterations",
    ),
    "effort for rk2": ({"effort": "low", "family": "rk2", "nfe": 4}, "effort 'low' for rk2"),
    "fewer than no steps": ({"iterations": -1}, "iterations must be a whole number of at least 0, got -1"),
}


@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG)
def test_wrong_combinations_are_named(model, bank, options, message):
    if "start" in options:
        options = options | {"start": baseline("euler", SMALL["nfe"]).on(model)}
    with pytest.raises(ValueError, match=message):
        fit(model, bank, **SMALL | options)


@pytest.mark.parametrize("options", [{}, {"family": "rk2", "nfe": 4, "objective": "endpoint"}], ids=["ns", "rk2"])
def test_fresh_paths_are_for_the_bound(model, bank, options):
    with pytest.raises(ValueError, match="are for the bound; endpoint needs paths that are kept"):
        fit(model, bank, **SMALL | {"paths": "fresh"} | options)


def test_a_start_that_scales_noise_that_is_not_scaled_is_named(bank, model):
    """A pipeline, which feeds the noise as it is, would refuse the solver."""
    own = dataclasses.replace(model, scales_noise=False)
    start = baseline("euler", 3).on(model)
    fit(own, Bank(own, batch_size=16), **CHAINED, start=start)
    scaled = dataclasses.replace(start, a=torch.cat([0.5 * start.a[:1], start.a[1:]]))
    with pytest.raises(ValueError, match=r"the start multiplies the noise by 0\.5, but the model's samplers by 1;"):
        fit(own, Bank(own, batch_size=16), **CHAINED, start=scaled)


def test_a_start_with_another_nfe_is_named(model, bank):
    with pytest.raises(ValueError, match=r"4.*3"):
        fit(model, bank, **CHAINED, start=baseline("euler", 4).on(model))


def test_unknown_words_for_paths_are_named(model, bank):
    with pytest.raises(ValueError, match="fresh"):
        fit(model, bank, **CHAINED | {"paths": "new"})


OTHERS = {
    "weights": lambda: dataclasses.replace(
        toy.checkerboard(), velocity=lambda t, x: 1.2 * toy.checkerboard().velocity(t, x)
    ),
    "schedule": lambda: toy.load("toy:checkerboard-vp"),
    "data": lambda: toy.gaussian_mixture(CENTRES[:, :2].float(), 0.1),
    "shape": lambda: toy.digits(10),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_bank_of_another_model_is_refused(model, other):
    with pytest.raises(ValueError, match=r"the bank was made for another model; make it with Bank\(model, ...\)"):
        fit(model, Bank(other(), batch_size=8), **CHAINED)
