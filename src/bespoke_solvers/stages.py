"""The ways to fit, each as a stage that changes a family of solvers step by step."""

import copy
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bespoke_solvers.evaluation import Quality
from bespoke_solvers.families import Family, NonStationary
from bespoke_solvers.grids import WARPS, straightness, warp
from bespoke_solvers.reference import Paths
from bespoke_solvers.regression import PASSES, Rows, closed_form, errors, log_mean, sample_weights
from bespoke_solvers.screening import screen
from bespoke_solvers.table import TableError
from bespoke_solvers.velocity import Model, Velocity

TRIED = 5  # of the time grids
DIFFERENCES = (1e-2, 1e-1)  # of x, of which one is neither so short that the network's rounding nor so long that
WRONG = 0.3  # its bends make a derivative seem wrong by so much
Loss = Callable[[Any, Paths], Tensor]  # of a family and a batch: each path's loss


class Stage(ABC):
    """One way to fit a family, which it changes in place."""

    every: int  # steps between two validations
    differentiates: bool  # whether a backward pass follows each evaluation

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether another step would not pay."""

    @abstractmethod
    def step(self) -> float:
        """One step; returns the loss."""

    def better(self, new: Quality, best: Quality) -> bool:
        """Whether to keep the new solver instead of the best; the qualities are those on the choosing set."""
        return new.score > best.score

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the family's numbers."""

    @abstractmethod
    def resume(self, state: dict[str, Any]) -> None:
        """Go on from such a state."""


def check_gradient(model: Model) -> None:
    """Refuse a velocity whose gradient is not what differences say: the loss would have a gradient, a wrong one.

    That of a network under torch.no_grad, say: what `Model.from_network` adds to its output still knows x.
    """
    x, condition = model.noise([0])
    way, u = model.noise([1])[0], model.bind(condition)
    for part in (0.25, 0.5, 0.9):
        t = torch.full((), model.t_lo + part * (model.t_hi - model.t_lo), dtype=model.dtype, device=model.device)
        if min(_gradient_off(u, t, x, h * way) for h in DIFFERENCES) > WRONG:
            raise ValueError(
                f"the velocity passes no gradient to x at t = {t.item():.3g}, or not its network's (is it under "
                "torch.no_grad, or detached?), which this objective needs; let it, or fit to the end point (objective "
                "endpoint), which needs none"
            )


def _gradient_off(u: Velocity, t: Tensor, x: Tensor, step: Tensor) -> float:
    """The relative error of what u's gradient foretells of the way from x - step to x + step."""
    with torch.no_grad():
        change = (u(t, x + step) - u(t, x - step)) / 2
    with torch.enable_grad():
        start = x.detach().clone().requires_grad_()
        output = u(t, start)
        known = torch.autograd.grad(output, start, change, allow_unused=True)[0] if output.requires_grad else None
    if known is None:
        return math.inf
    foretold, found = (known * step).sum().item(), change.square().sum().item()
    return abs(foretold - found) / max(found, 1e-12 * step.square().sum().item())


class Adam(Stage):
    """Algorithm 2 of the paper: gradient steps on a loss, one batch of paths each.

    The graph of a whole batch is large: where it does not fit into the memory, the gradient is that of its parts.
    """

    differentiates = True

    def __init__(
        self, family: Family, batch: Callable[[int], Paths], loss_of: Loss, learning_rate: float, every: int
    ) -> None:
        self.family, self.batch, self.loss_of, self.every = family, batch, loss_of, every
        self.learned = [parameter for parameter in family.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.Adam(self.learned, lr=learning_rate)
        self.iteration = 0
        self.parts = 1  # of a batch
        self.astray = False

    @property
    def finished(self) -> bool:
        """Where a step led to numbers that are no table."""
        return self.astray

    def step(self) -> float:
        """One step of Adam, which is taken back if it leads to numbers that are no table."""
        paths, before = self.batch(self.iteration), copy.deepcopy(self.family.state_dict())
        loss = None
        while loss is None:
            try:
                loss = self._differentiate(paths)
            except torch.cuda.OutOfMemoryError:
                if self.parts >= len(paths.x1):
                    raise
                self.parts *= 2
        self.optimizer.step()
        self.iteration += 1
        try:
            self.family()
        except TableError as error:
            self.family.load_state_dict(before)
            self.astray = True
            warnings.warn(
                f"the fit went astray in iteration {self.iteration} ({error}) and ends there, with the best solver "
                "before; take a lower learning rate",
                stacklevel=2,
            )
        return loss

    def _differentiate(self, paths: Paths) -> float:
        """The gradient of the mean loss into the parameters; returns that mean."""
        self.optimizer.zero_grad()
        mean = 0.0
        for part in paths.split(-(-len(paths.x1) // self.parts)):
            loss = self.loss_of(self.family, part).mean() * (len(part.x1) / len(paths.x1))
            if not torch.isfinite(loss):
                raise ValueError(
                    f"the loss is {loss.item()} at iteration {self.iteration}; the velocity must be finite everywhere"
                )
            loss.backward(inputs=self.learned)  # type: ignore[no-untyped-call]
            mean += loss.item()
        return mean

    def better(self, new: Quality, best: Quality) -> bool:
        """By RMSE, as the paper chooses."""
        return new.rmse < best.rmse or not math.isfinite(best.rmse)

    def state(self) -> dict[str, Any]:
        """The optimiser's moments."""
        return {"optimizer": self.optimizer.state_dict(), "iteration": self.iteration, "astray": self.astray}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from such a state."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.iteration, self.astray = state["iteration"], state.get("astray", False)


class ClosedForm(Stage):
    """Rows in closed form: of a handful of time grids the most promising ones (`screen`) are tried on half of the
    paths, then the best of these is fitted to all.

    A sample that is hard on one grid is hard on the others, so each grid is tried in one pass with the weights of the
    best one before it; with equal weights a few samples would decide which grid is best.

    rank: of the grid to take, 0 for the best one.
    """

    differentiates = False

    def __init__(self, family: NonStationary, batches: Sequence[Paths], rank: int = 0) -> None:
        self.family, self.batches, self.rank = family, batches, rank
        model, least = batches[0].model, 0.0 if family.learn_scale else 0.5  # of c, below which it is 0
        warps = [(c if c > least else 0.0, p, q) for c, p, q in WARPS]
        held, self.scale = family.held_start(model), family.held_scale(model)
        if held is not None:
            c = family.nfe * straightness(model.schedule, held).item()
            warps = [(c, p, q) for _, p, q in WARPS]
        self.grids = [warp(model, family.nfe, *each) for each in dict.fromkeys(warps)]
        self.every = len(self.grids) + 1
        self.untried: list[int] | None = None  # the most promising first; None before they are compared
        self.losses: dict[int, float] = {}  # of grids, infinite where the velocity overflows
        self.weights: list[Tensor] = []
        self.done = False

    @property
    def finished(self) -> bool:
        """Whether the best grid was fitted to the end."""
        return self.done

    def step(self) -> float:
        """Try one more grid, or fit the best one to the end."""
        half = self.batches[: -(-len(self.batches) // 2)]
        if self.untried is None:
            scores = screen(self.grids, half, self.scale)
            self.untried = sorted(range(len(scores)), key=scores.__getitem__)
        while True:
            ranked = sorted(
                (grid for grid, loss in self.losses.items() if loss < math.inf), key=self.losses.__getitem__
            )
            if self.untried and len(ranked) < TRIED:
                return self._try(self.untried.pop(0), half)
            if not ranked:
                raise ValueError(
                    "the velocity is not finite near the exact paths, at whatever times; it must be finite everywhere"
                )
            chosen = ranked[: self.rank + 1][-1]
            rows, loss, _ = self._fit(chosen, self.batches, PASSES)
            if rows is not None:
                self.family.load_table(rows.table.off(self.batches[0].model))
                self.done = True
                return loss
            self.losses[chosen] = math.inf  # it overflows on paths that were not tried

    def _try(self, grid: int, batches: Sequence[Paths]) -> float:
        """E log MSE on a grid, whose samples' weights are kept if it is the best so far."""
        _, loss, found = self._fit(grid, batches, 1 if self.weights else 2, self.weights)
        self.losses[grid] = loss
        if loss < math.inf and loss <= min(self.losses.values()):
            self.weights = sample_weights(found)
        return loss

    def _fit(
        self, grid: int, batches: Sequence[Paths], passes: int, weights: Sequence[Tensor] = ()
    ) -> tuple[Rows | None, float, list[Tensor]]:
        """The rows on a grid, E log MSE and each sample's MSE; None, and infinite, where the velocity overflows."""
        try:
            rows = closed_form(self.grids[grid], batches, passes, self.scale, weights)
        except TableError:
            return None, math.inf, []
        found = errors(rows.samples, batches)
        return (rows if log_mean(found) < math.inf else None), log_mean(found), found

    def state(self) -> dict[str, Any]:
        """What was tried so far, and the weights."""
        return {"untried": self.untried, "losses": self.losses, "weights": self.weights, "done": self.done}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from such a state."""
        for name, value in state.items():
            setattr(self, name, value)
