import pytest
import torch

from bespoke_solvers import toy
from bespoke_solvers.bank import Bank
from bespoke_solvers.evaluation import held_out
from bespoke_solvers.generic import baseline
from bespoke_solvers.transfer import transferred


@pytest.mark.parametrize(
    ("source", "target"), [("fm-ot", "vp"), ("vp", "fm-ot"), ("fm-ot", "fm-v-cs"), ("fm-v-cs", "edm"), ("vp", "vp")]
)
def test_a_solver_transferred_across_paths_does_what_it_does_at_home(source, target):
    """Theorem 2.3; VP and EDM have no snr of 0, so there the steps are a little shorter."""
    here, there = (toy.digits(centres=20, schedule=toy.SCHEDULES[name]) for name in (source, target))
    table = baseline("midpoint", 24).on(here)
    moved = transferred(table, here, there)
    own, found = (
        held_out(Bank(model, batch_size=8), "report", 0, 8).quality(one, model).rmse
        for one, model in ((table, here), (moved, there))
    )
    assert moved.nfe == 24
    assert abs(found - own) < (1e-4 if {source, target} <= {"fm-ot", "fm-v-cs"} else 5e-4)
    if source == target:
        torch.testing.assert_close(moved.b, table.b)


@pytest.mark.parametrize(("source", "target"), [("fm-ot", "vp"), ("fm-v-cs", "edm")])
def test_a_transferred_solver_converges_on_a_path_that_starts_later(source, target):
    """VP and EDM begin at an snr above 0: the source's table runs from that snr on."""
    here, there = (toy.digits(centres=20, schedule=toy.SCHEDULES[name]) for name in (source, target))
    moved = transferred(baseline("midpoint", 200).on(here), here, there)
    assert held_out(Bank(there, batch_size=8), "report", 0, 8).quality(moved, there).rmse < 2e-4
