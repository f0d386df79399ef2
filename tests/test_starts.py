import dataclasses

import pytest
import torch

from bespoke_solvers import Solver, load
from bespoke_solvers.bank import Bank
from bespoke_solvers.dedicated import along, baseline
from bespoke_solvers.description import describe
from bespoke_solvers.metrics import rmse
from bespoke_solvers.starts import with_start
from bespoke_solvers.table import sample


@pytest.mark.parametrize("k", [2, 5])
def test_a_fitted_start_beats_the_method_that_takes_its_place(model, bank, tmp_path, k):
    """From x(t_k) of paths that the fit has not seen, to their ends."""
    solver = with_start(Solver(baseline("dpmpp-2m", 6, model), model=describe(model)), model, k, bank=bank, paths=48)
    solver.save(tmp_path / "s.json")
    table = load(tmp_path / "s.json").starts[k]
    new = bank.paths(seed=1, index=0)
    start = new.at(table.t[:1]).x[0]
    assert table.nfe == 6 - k
    torch.testing.assert_close(table.a[0].item(), 1.0, rtol=0, atol=1e-6)
    fitted, other = (
        rmse(sample(each, model.bind(new.noise.condition), start), new.x1)
        for each in (table, along("dpmpp-2m", table.t, model.schedule))
    )
    assert fitted < 0.95 * other


def test_what_is_no_middle_or_another_model_is_refused(model, bank):
    solver = Solver(baseline("dpmpp-2m", 4, model), model=describe(model))
    for k in (0, 4):
        with pytest.raises(ValueError, match=rf"a start in the middle of 4 evaluations is from 1 to 3, got {k}"):
            with_start(solver, model, k, bank=bank)
    with pytest.raises(ValueError, match="made for a model with prediction"):
        with_start(dataclasses.replace(solver, model=solver.model | {"prediction": "v"}), model, 2, bank=bank)
    other = Bank(dataclasses.replace(model, velocity=lambda t, x, *more: -model.velocity(t, x, *more)))
    with pytest.raises(ValueError, match="the bank was made for another model"):
        with_start(solver, model, 2, bank=other)
