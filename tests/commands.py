"""The command as the shell runs it, and a module of a user's own."""

import pytest

from bespoke_solvers.cli import main

QUICK = ["--paths", "8", "--validation-paths", "8", "--batch-size", "8", "--iterations", "25", "--quiet"]

OWN = """
import time
import torch
from bespoke_solvers import Model, schedules, toy

board = toy.checkerboard()

def slow(t, x):
    time.sleep(0.003)
    return board.velocity(t, x)

def model():
    return Model(velocity=slow, shape=(2,), schedule=schedules.CondOT())

def broken(returned):
    return lambda: Model(velocity=lambda t, x: returned(x), shape=(2,), schedule=schedules.CondOT())

shrinking = broken(lambda x: -x)
nan = broken(lambda x: x * torch.nan)
shape = broken(lambda x: x[:, :1])
dtype = broken(lambda x: x.double())
picture = lambda: Model(velocity=lambda t, x: -x, shape=(3, 4, 4), schedule=schedules.CondOT())
latent = lambda: Model(velocity=lambda t, x: -x, shape=(4, 4, 4), schedule=schedules.CondOT())
net = torch.nn.Identity()
channel = Model.from_network(lambda t, x: x[:, :1], prediction="v", schedule=schedules.VP(), shape=(2,))
half = Model(velocity=lambda t, x: x @ torch.eye(2).half(), shape=(2,), schedule=schedules.CondOT())
number = lambda: 3
text = "a model"
given = lambda scale: model()
"""


def run(*arguments: str) -> None:
    """The command as the shell runs it; fails unless it ends well."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    assert end.value.code == 0


def refused(capsys, *arguments: str) -> str:
    """The one line that a command prints when it refuses something."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    assert end.value.code == 1
    printed = capsys.readouterr().err.strip().splitlines()
    assert len(printed) == 1, printed
    assert printed[0].startswith("error: ")
    return printed[0]
