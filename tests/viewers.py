"""The viewer of a report, shared by the tests."""

from bespoke_solvers import gallery
from bespoke_solvers.bank import Bank
from bespoke_solvers.evaluation import held_out
from bespoke_solvers.generic import baseline


def shown(model, sampled=20, tables=()):
    """The viewer of a model's samples."""
    noise = held_out(Bank(model, batch_size=16), "report", 0, sampled)
    samples = {("euler", table.nfe): noise.sample(table, model) for table in tables or [baseline("euler", 2)]}
    return gallery.viewer(model, noise, samples, lambda name, nfe: "good", "euler")
