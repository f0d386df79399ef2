"""Models as velocity fields: dx/dt = u(t, x), whatever the network predicts (paper, eq. 1 and 23).

A velocity is a callable `u(t, x)`. `t` comes first and is a float tensor on x's device, 0-d or one value per sample.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from bespoke_solvers.schedules import Schedule, float64

Velocity = Callable[[Tensor, Tensor], Tensor]
Condition = Tensor | dict[str, Tensor] | None
PREDICTIONS = ("flow", "epsilon", "v", "x-start", "score")
NoiseSet = Literal["fit", "choose", "report"]

LARGEST_SNR = 1e3  # where a prediction is divided by alpha or sigma, the domain ends at this snr or its inverse


def expand(value: Tensor, x: Tensor) -> Tensor:
    """`value` (0-d or one per sample) in x's dtype and on its device, shaped to multiply `x`."""
    moved = value.to(x, non_blocking=x.is_cuda)  # `to` takes the numbers before it returns: they are not pinned
    return moved.reshape(value.shape + (1,) * (x.ndim - value.ndim if value.ndim else 0))


class Coefficients(NamedTuple):
    """u = x_weight * x + output_weight * output."""

    x_weight: Tensor
    output_weight: Tensor


def coefficients(prediction: str, schedule: Schedule, t: Tensor) -> Coefficients:
    """How the velocity follows from x and the network's output at t, in float64.

    Solves x = alpha x1 + sigma x0, u = d_alpha x1 + d_sigma x0 with the output that is known: flow = u itself; epsilon
    = x0; x-start = x1; score = -x0 / sigma; v = alpha x0 - sigma x1 (Salimans & Ho 2022, for any alpha and sigma).
    """
    path = schedule(t)
    alpha, sigma, d_alpha, d_sigma = path
    match prediction:
        case "flow":
            return Coefficients(torch.zeros_like(alpha), torch.ones_like(alpha))
        case "epsilon":
            return Coefficients(d_alpha / alpha, -path.wronskian / alpha)
        case "score":
            return Coefficients(d_alpha / alpha, sigma * path.wronskian / alpha)
        case "x-start":
            return Coefficients(d_sigma / sigma, path.wronskian / sigma)
        case "v":
            square = alpha**2 + sigma**2
            return Coefficients((alpha * d_alpha + sigma * d_sigma) / square, -path.wronskian / square)
    raise ValueError(f"unknown prediction {prediction!r}; expected one of {', '.join(PREDICTIONS)}")


class Ends(NamedTuple):
    """The noise and the data that a velocity at (t, x) points from and to."""

    x0: Tensor
    x1: Tensor


def ends(schedule: Schedule, t: Tensor, x: Tensor, u: Tensor) -> Ends:
    """x0_hat and x1_hat of the straight reading x = alpha x1 + sigma x0, u = d_alpha x1 + d_sigma x0."""
    path = schedule(t)
    alpha, sigma, d_alpha, d_sigma = (expand(value / path.wronskian, x) for value in path)
    return Ends(x0=d_alpha * x - alpha * u, x1=sigma * u - d_sigma * x)


class Noise(NamedTuple):
    """Starting points x0 ~ N(0, I), and the conditions that belong to them."""

    x0: Tensor
    condition: Condition

    def part(self, which: slice | list[int]) -> "Noise":
        """Some of them."""
        return Noise(self.x0[which], map_condition(lambda c: c[which], self.condition))

    def first(self, count: int) -> "Noise":
        """The first `count` of them."""
        return self.part(slice(count))


def checked(output: Any, t: Tensor, x: Tensor, dtype: torch.dtype | None = None, of: str = "velocity") -> Tensor:
    """What a velocity returned for t and x; refuses all but a tensor of x's shape, and of `dtype`, if one is given."""
    if not isinstance(output, Tensor):
        raise ValueError(
            f"the {of} returned a {type(output).__name__}; it must return a tensor like x (of a tuple, [0])"
        )
    if output.shape != x.shape or dtype not in (None, output.dtype):
        raise ValueError(
            f"the {of} returned {output.dtype} {tuple(output.shape)} for an x of {x.dtype} {tuple(x.shape)} and a t of "
            f"{tuple(t.shape)}; it must return what x is (.to(x.dtype) for another precision, .chunk(2, 1)[0] where a "
            "variance comes with it)"
        )
    return output


def map_condition(function: Callable[[Tensor], Tensor], condition: Condition) -> Condition:
    """`function` applied to each tensor of a condition."""
    if isinstance(condition, dict):
        return {name: function(value) for name, value in condition.items()}
    return None if condition is None else function(condition)


def noise_seeds(noise_set: NoiseSet, seed: int, start: int, count: int) -> list[int]:
    """Seeds of the samples `start` to `start + count` of one of the three noise sets, which do not overlap.

    They are hashes. Of a seed, PyTorch's generator takes 32 bits: of 50,000 samples, one may be there twice.
    """
    names = (f"{noise_set}/{seed}/{i}" for i in range(start, start + count))
    return [int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) >> 1 for name in names]


def _default_domain(prediction: str, schedule: Schedule) -> tuple[float, float]:
    t_lo, t_hi = schedule.domain
    limit = torch.tensor(math.log(LARGEST_SNR), dtype=torch.float64)
    if prediction in ("epsilon", "score"):
        t_lo = max(t_lo, float(schedule.time(-limit)))
    if prediction in ("x-start", "score"):
        t_hi = min(t_hi, float(schedule.time(limit)))
    return t_lo, t_hi


def _float32_inside(t_lo: float, t_hi: float) -> tuple[float, float]:
    """The ends as float32 numbers, rounded inwards, so that no cast of a time can leave the domain."""
    low, high = torch.tensor([t_lo, t_hi], dtype=torch.float32)
    low = torch.nextafter(low, low + 1) if low.item() < t_lo else low
    high = torch.nextafter(high, high - 1) if high.item() > t_hi else high
    return low.item(), high.item()


@dataclass(frozen=True)
class Model:
    """A pre-trained model: its velocity, the shape of a sample, and the Gaussian path it was trained on.

    velocity: `u(t, x)`; with `draw_condition`, `u(t, x, condition)`.
    draw_condition: makes one sample's condition (a tensor or a dict of tensors) from a `torch.Generator`.
    prediction: what the network behind `velocity` predicts; decides the domain and where reference paths are solved.
    domain: the times on which the network is valid; u is never called outside. By default from schedule and prediction.
    network_time: the network's own time at t, kept in solver files as a check.
    guidance: the classifier-free guidance scale inside `velocity`, kept in solver files as a check.
    conditions: what `draw_condition` draws from, in short; a bank is for one such set of conditions.
    labels: where a condition is a number, what each number stands for: the names of classes, or prompts.
    decode: makes pictures in [-1, 1] of samples that are latents.
    scales_noise: whether what the solver is for lets it scale the noise; if not, `ns` does not.
    """

    velocity: Callable[..., Tensor]
    shape: tuple[int, ...]
    schedule: Schedule
    prediction: str = "flow"
    domain: tuple[float, float] | None = None
    draw_condition: Callable[[torch.Generator], Any] | None = None
    network_time: Callable[[Tensor], Tensor] | None = None
    guidance: float | None = None
    conditions: str | None = None
    labels: tuple[str, ...] = ()
    decode: Callable[[Tensor], Tensor] | None = None
    scales_noise: bool = True
    device: str | torch.device = "cpu"
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.prediction not in PREDICTIONS:
            raise ValueError(f"unknown prediction {self.prediction!r}; expected one of {', '.join(PREDICTIONS)}")
        if not isinstance(self.schedule, Schedule):
            raise ValueError(f"schedule must be a Schedule such as schedules.CondOT(), got {self.schedule!r}")
        numbers = self.shape if isinstance(self.shape, Sequence) else ()
        if not numbers or not all(isinstance(n, int) and n > 0 for n in numbers):
            raise ValueError(f"shape must be that of one sample, such as (3, 32, 32), got {self.shape!r}")
        if self.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"dtype must be torch.float32 or torch.float64, got {self.dtype}; a half-precision network "
                "is cast to and from inside the velocity"
            )
        if torch.device(self.device).type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"there is no GPU that torch can use for device = {str(self.device)!r}; give device='cpu'")
        t_lo, t_hi = _default_domain(self.prediction, self.schedule) if self.domain is None else self.domain
        if not 0 <= t_lo < t_hi <= 1:
            raise ValueError(f"domain must be two times with 0 <= t_lo < t_hi <= 1, got {(t_lo, t_hi)}")
        path = self.schedule(torch.tensor([t_lo, t_hi], dtype=torch.float64))
        for name, value, at, needed_by in (
            ("alpha", path.alpha[0], t_lo, ("epsilon", "score")),
            ("sigma", path.sigma[1], t_hi, ("x-start", "score")),
        ):
            if value == 0 and self.prediction in needed_by:
                raise ValueError(
                    f"{self.prediction} is divided by {name}, which is 0 at t = {at}: the domain must not reach it"
                )
        object.__setattr__(self, "domain", _float32_inside(t_lo, t_hi))
        object.__setattr__(self, "shape", tuple(self.shape))

    @classmethod
    def from_network(
        cls,
        network: Callable[..., Tensor],
        *,
        prediction: str,
        schedule: Schedule,
        network_time: Callable[[Tensor], Tensor] | None = None,
        **fields: Any,
    ) -> "Model":
        """A model from a `network(time, x)` or `network(time, x, condition)` and what it predicts.

        The network gets `network_time(t)` (t itself by default) in float32 or better; the other fields are `Model`'s.
        """
        own_time = network_time or (lambda t: t)

        def velocity(t: Tensor, x: Tensor, *condition: Any) -> Tensor:
            x_weight, output_weight = coefficients(prediction, schedule, t)
            time = own_time(float64(t))
            if not isinstance(time, Tensor):
                raise ValueError(f"network_time returned a {type(time).__name__}; it must return a tensor like t")
            output = checked(network(time.to(x.device, t.dtype), x, *condition), t, x, of="network")
            return expand(x_weight, x) * x + expand(output_weight, x) * output

        return cls(velocity=velocity, schedule=schedule, prediction=prediction, network_time=network_time, **fields)

    @property
    def t_lo(self) -> float:
        """Where the domain begins."""
        assert self.domain is not None
        return self.domain[0]

    @property
    def t_hi(self) -> float:
        """Where the domain ends."""
        assert self.domain is not None
        return self.domain[1]

    @property
    def start_scale(self) -> float:
        """c in x(t_lo) = c x0: the schedule's own scale, shrunk with sigma where the domain begins later than t = 0."""
        start = self.schedule(torch.tensor([0.0, self.t_lo], dtype=torch.float64)).sigma
        return self.schedule.prior_scale * float(start[1] / start[0])

    def pictures(self, x: Tensor) -> Tensor:
        """The samples, decoded if they are latents."""
        return x if self.decode is None else self.decode(x)

    def bind(self, condition: Condition = None) -> Velocity:
        """u(t, x) with the condition inside; refuses an output of another shape or dtype than x's."""
        if (condition is None) != (self.draw_condition is None):
            got, expected = ("no", "a") if condition is None else ("a", "no")
            raise ValueError(f"got {got} condition, but the model expects {expected} condition (see draw_condition)")
        arguments = () if condition is None else (condition,)

        def u(t: Tensor, x: Tensor) -> Tensor:
            found = checked(self.velocity(t, x, *arguments), t, x, dtype=x.dtype)
            return found.clone()  # a recorded network writes into the same memory each time

        return u

    def noise(self, seeds: Sequence[int]) -> Noise:
        """One sample per seed. A sample depends on its own seed alone, not on the batch, the device or the dtype."""
        x0, conditions = [], []
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)
            x0.append(torch.randn(self.shape, generator=generator, dtype=torch.float64))
            if self.draw_condition is not None:
                conditions.append(self.draw_condition(generator))
        condition: Condition = None
        try:
            if conditions and isinstance(conditions[0], dict):
                condition = {name: torch.stack([c[name] for c in conditions]) for name in conditions[0]}
            elif conditions:
                condition = torch.stack([torch.as_tensor(c) for c in conditions])
        except (TypeError, RuntimeError, KeyError) as error:
            expected = "a number, a tensor of one shape for all samples, or a dict of such tensors"
            raise ValueError(f"the conditions of {len(conditions)} samples: {error}; draw {expected}") from error
        return Noise(torch.stack(x0).to(self.device, self.dtype), map_condition(lambda c: c.to(self.device), condition))


def guided(velocity: Callable[..., Tensor], null: Condition, scale: float) -> Callable[..., Tensor]:
    """Classifier-free guidance: u_null + scale (u_condition - u_null), both halves in one call of the network.

    `velocity(t, x, condition)` as in `Model`; `null` is the condition of one unconditional sample.
    """

    def beside_null(condition: Tensor, null: Tensor) -> Tensor:
        return torch.cat([condition, null.to(condition).expand_as(condition)])

    def u(t: Tensor, x: Tensor, condition: Condition) -> Tensor:
        if isinstance(condition, dict) and isinstance(null, dict):
            both: Condition = {name: beside_null(value, null[name]) for name, value in condition.items()}
        elif isinstance(condition, Tensor) and isinstance(null, Tensor):
            both = beside_null(condition, null)
        else:
            raise TypeError(f"condition and null must be alike, got {type(condition)} and {type(null)}")
        with_condition, without = velocity(torch.cat([t, t]) if t.ndim else t, torch.cat([x, x]), both).chunk(2)
        return without + scale * (with_condition - without)

    return u


def default_device() -> str:
    """The GPU, where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


class Counter:
    """A velocity that counts: `calls` of u, and `evaluations`, one per sample and call."""

    def __init__(self, velocity: Callable[..., Tensor]) -> None:
        self.velocity = velocity
        self.calls = 0
        self.evaluations = 0

    def __call__(self, t: Tensor, x: Tensor, *condition: Any) -> Tensor:
        """u(t, x), counted."""
        self.calls += 1
        self.evaluations += len(x)
        return self.velocity(t, x, *condition)
