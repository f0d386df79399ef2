"""Damped Gauss-Newton steps on the end point, E log MSE(y_n, x(1)), from evaluations of u alone.

The residual x(1) - y_n has thousands of entries in each sample, theta has tens of numbers. Its Jacobian is taken by
differences of u, so that no gradient of the network is needed. log MSE is minimised by weighting the squares with
1 / (MSE + median MSE).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bespoke_solvers.metrics import norm
from bespoke_solvers.reference import Paths
from bespoke_solvers.regression import damped_solve, errors, log_mean, sample_weights
from bespoke_solvers.schedules import float64
from bespoke_solvers.stages import Stage
from bespoke_solvers.table import TableError

DIFFERENCES = (1e-3, 1e-2, 1e-1)  # how far an input is moved: the more, the more a network is rounded (TF32, bfloat16)
DAMPINGS = (1e4, 300.0, 10.0, 0.3, 1e-2, 3e-4, 1e-5, 3e-7)
LEAST = 1e-2  # of the strongest effect on the samples: numbers with less of one are damped as if they had that much
PAYS = 0.02  # nats of MSE (0.09 dB) that a step must gain for another one to be worth its cost


class Linearised(NamedTuple):
    """y_n of a batch and its derivatives by the numbers of theta."""

    y: Float[Tensor, "b *shape"]
    dy: Float[Tensor, "m b *shape"]


class Problem(ABC):
    """Samples as a function of theta."""

    def __init__(self, batches: Sequence[Paths]) -> None:
        self.batches, self.model = batches, batches[0].model

    @abstractmethod
    def start(self) -> Float[Tensor, " m"]:
        """theta of the family as it is."""

    @abstractmethod
    def accept(self, theta: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
        """Change the family to theta; returns theta in the form to go on with."""

    @abstractmethod
    def samples(self, theta: Float[Tensor, " m"]) -> list[Tensor]:
        """y_n of each batch; a TableError where theta gives no table."""

    @abstractmethod
    def linearise(self, theta: Float[Tensor, " m"], weights: list[Tensor], difference: float) -> Iterator[Linearised]:
        """y_n of each batch and its derivatives, by differences of that size; the weights are those of the samples."""


class Candidate(NamedTuple):
    """Where a step may lead."""

    loss: float
    theta: Float[Tensor, " m"]
    errors: list[Tensor]


class GaussNewton(Stage):
    """The stage: theta, and each path's error there."""

    differentiates = False
    every = 1

    def __init__(self, problem: Problem) -> None:
        self.problem, self.theta = problem, problem.start()
        self.gain = math.inf
        self.errors: list[Tensor] = []
        self.smoothest = 0.0
        self.damping = len(DAMPINGS) // 2  # the last step's best, as an index

    @property
    def finished(self) -> bool:
        """Whether the last step hardly paid."""
        return self.gain < PAYS

    @torch.no_grad()
    def step(self) -> float:
        """Linearise, damp (Levenberg's way, relative to Marquardt's diagonal), go downhill from the damping that was
        best in the last step; returns E log MSE.

        Inputs are moved about as far as the samples are off: a network is rougher in the small than a step is long.
        """
        if not self.errors:
            first = self._candidate(self.theta)
            if first.loss == math.inf:
                raise ValueError(
                    "samples of the solver that the fit begins with are not finite; begin with another one"
                )
            self.theta, self.errors = self.problem.accept(first.theta), first.errors
            self.smoothest = smoothest_difference(self.problem.batches[0])
        before = log_mean(self.errors)
        H, g = self._normal_equations(max(self.smoothest, min(math.exp(before / 2), DIFFERENCES[1])))
        if not (H.isfinite().all() and g.isfinite().all()):  # derivatives that overflow lead nowhere
            self.gain = 0.0
            return before
        tried: dict[int, Candidate] = {}

        def loss(index: int) -> float:
            if not 0 <= index < len(DAMPINGS):
                return math.inf
            if index not in tried:
                tried[index] = self._candidate(self.theta + damped_solve(H, g, DAMPINGS[index], LEAST))
            return tried[index].loss

        while loss(self.damping) >= before and self.damping > 0:
            self.damping -= 1
        self.damping = min(self.damping, self.damping + 1, self.damping - 1, key=loss)
        for way in (1, -1):
            while loss(self.damping + way) < loss(self.damping):
                self.damping += way
        best = tried[self.damping]
        self.gain = max(before - best.loss, 0.0)
        if self.gain > 0:
            self.theta, self.errors = self.problem.accept(best.theta), best.errors
        return before - self.gain

    def _candidate(self, theta: Tensor) -> "Candidate":
        try:
            there = errors(self.problem.samples(theta), self.problem.batches)
        except TableError:
            return Candidate(math.inf, theta, [])
        return Candidate(log_mean(there), theta, there)

    def _normal_equations(self, difference: float) -> tuple[Tensor, Tensor]:
        m, batches = len(self.theta), self.problem.batches
        H, g = torch.zeros(m, m, dtype=torch.float64), torch.zeros(m, dtype=torch.float64)
        weights = sample_weights(self.errors)
        linearised = self.problem.linearise(self.theta, weights, difference)
        for paths, weight in zip(batches, weights, strict=True):
            y, dy = next(linearised)
            for i, residual in enumerate(paths.x1 - y):  # one by one: the Jacobian of a batch is large in float64
                J = float64(dy[:, i]).flatten(1)
                weighted = J * weight[i].to(J)
                H += (weighted @ J.T).cpu()
                g += (weighted @ float64(residual).flatten()).cpu()
            del dy  # before the next batch's: one is large
        return H, g

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the family's numbers."""
        return {name: getattr(self, name) for name in ("theta", "gain", "errors", "smoothest", "damping")}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from such a state."""
        for name, value in state.items():
            setattr(self, name, value)


def smoothest_difference(paths: Paths) -> float:
    """The difference whose derivatives of u, forwards and backwards, agree best: large steps bend, small ones round."""
    x0, u = paths.noise.x0, paths.model.bind(paths.noise.condition)
    t = torch.tensor([(paths.model.t_lo + paths.model.t_hi) / 2], dtype=torch.float64)
    x = paths.at(t).x[0]
    here, *there = (u(t[0].to(x), x + h * x0) for h in (0.0, *DIFFERENCES, *(-h for h in DIFFERENCES)))
    forwards, backwards = there[: len(DIFFERENCES)], there[len(DIFFERENCES) :]
    bends = [
        norm(more + less - 2 * here).mean() / norm(more - less).mean()
        for more, less in zip(forwards, backwards, strict=True)
    ]
    return DIFFERENCES[int(torch.stack(bends).nan_to_num(torch.inf).argmin())]
