"""Small fits of the non-stationary family, shared by the tests."""

import torch

import bespoke_solvers
from bespoke_solvers.evaluation import Quality, held_out
from bespoke_solvers.stages import TRIED

GRIDS = 6  # time grids that the closed form compares
CLOSED = TRIED + 1  # its steps
SMALL = {"nfe": 3, "paths": 16, "validation_paths": 16, "progress": False}
CHAINED = SMALL | {"objective": "endpoint", "iterations": 3}


def fit(model, bank, **options):
    return bespoke_solvers.fit(model, bank=bank, **options)


def entries(solver):
    return torch.cat([solver.table.t, solver.table.a, solver.table.b.flatten()])


def on_choosing_set(solver, bank, model) -> Quality:
    return held_out(bank, "choose", 0, solver.fit["validation_paths"]).quality(solver.table, model)
