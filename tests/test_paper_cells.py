"""`bespoke paper`: what its cells belong to, and what it does when something is wrong."""

import json

import pytest

from bespoke_solvers import toy
from bespoke_solvers.bank import Bank
from bespoke_solvers.cells import Store
from bespoke_solvers.evaluation import held_out
from bespoke_solvers.generic import baseline
from bespoke_solvers.transfer import transferred

KEY = ("model", "method", "nfe")


@pytest.mark.parametrize(("source", "target"), [("fm-ot", "vp"), ("fm-ot", "edm"), ("fm-v-cs", "edm"), ("vp", "edm")])
def test_a_transferred_solver_converges_on_a_path_that_starts_later(source, target):
    """VP and EDM begin at an snr above 0: the source's table runs from that snr on."""
    here, there = (toy.digits(centres=20, schedule=toy.SCHEDULES[name]) for name in (source, target))
    moved = transferred(baseline("midpoint", 200).on(here), here, there)
    assert held_out(Bank(there, batch_size=8), "report", 0, 8).quality(moved, there).rmse < 2e-4


@pytest.mark.parametrize(
    ("line", "words"), [('{"model": "m", "nfe": 3}', "it has no method;"), ("[1, 2]", r"it is \[1, 2\];")]
)
def test_a_line_that_is_no_cell_is_named(tmp_path, line, words):
    (tmp_path / "m.jsonl").write_text(json.dumps({"model": "m", "method": "x", "nfe": 2}) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=rf"line 2 of .*m\.jsonl is no cell .*{words} expected .* model, method, nfe"):
        Store(tmp_path, KEY)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"rmse": None, "psnr": None}, "astray"),
        ({"rmse": 0.0}, "rmse 0"),
        ({"rmse": 0.25}, "rmse 0.25"),
        ({"pictures": "..."}, "samples"),
    ],
)
def test_what_is_told_of_a_cell(tmp_path, values, told):
    heard = []
    store = Store(tmp_path, (*KEY, "measured"), say=heard.append)
    store.cell({"model": "m", "method": "x", "nfe": 2, "measured": "samples"}, lambda: values)
    assert heard == [f"m, 2 NFE, x: {told}"]
