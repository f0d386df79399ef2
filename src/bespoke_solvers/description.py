"""What solver files and banks say of the model that they belong to, so that they are not used with another."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bespoke_solvers.precision import full_float32
from bespoke_solvers.schedules import EDM, VP, CondOT, Cosine, DiscreteVP, Schedule
from bespoke_solvers.table import Table
from bespoke_solvers.velocity import Model, expand

SCHEDULES: dict[str, Callable[..., Schedule]] = {
    maker.__name__: maker for maker in (CondOT, Cosine, VP, EDM, DiscreteVP)
}


def schedule_of(described: dict[str, Any]) -> Schedule | None:
    """The schedule of a description, such as {"name": "VP", "B": 20, "b": 0.1}; None for one from elsewhere."""
    maker = SCHEDULES.get(described.get("name", ""))
    parameters = {name: tuple(v) if isinstance(v, list) else v for name, v in described.items() if name != "name"}
    return maker and maker(**parameters)


def describe(model: Model) -> dict[str, Any]:
    """What a solver file says of its model, in JSON's own types."""
    description = {
        "schedule": describe_schedule(model.schedule),
        "prediction": model.prediction,
        "domain": model.domain,
        "guidance": model.guidance,
        "shape": model.shape,
        "conditional": model.draw_condition is not None,
        "conditions": model.conditions,
        "fingerprint": fingerprint(model),
    }
    return json.loads(json.dumps(description, default=repr))  # type: ignore[no-any-return]


def describe_schedule(schedule: Schedule) -> dict[str, Any]:
    """Its name and parameters."""
    parameters: dict[str, Any] = dataclasses.asdict(schedule) if dataclasses.is_dataclass(schedule) else {}
    return {"name": type(schedule).__name__, **parameters}


@torch.no_grad()
def fingerprint(model: Model) -> list[float]:
    """Numbers that tell models apart: the size of u at five times on four fixed samples, and four of its entries.

    Refuses what would make every figure worthless: a velocity that fails, is not finite, changes from call to call or
    takes a time for each sample for something else; conditions that do not come from the generator.
    """
    noise, again = model.noise(range(4)), model.noise(range(4))
    if str(noise.condition) != str(again.condition):
        raise ValueError("draw_condition gave other conditions for the same seeds; it must draw from its generator")
    bound = model.bind(noise.condition)

    def u(t: Tensor, x: Tensor) -> Tensor:
        try:
            return bound(t, x)
        except (RuntimeError, TypeError, IndexError) as error:
            raise ValueError(
                f"the model failed on a t of {tuple(t.shape)} and an x of {tuple(x.shape)}: {error}. Check shape (of "
                "one sample), the order (t, x), and that t may be one number or one for each sample"
            ) from error

    times = torch.linspace(model.t_lo, model.t_hi, 7, dtype=torch.float64)[1:-1].to(noise.x0)
    sigmas = model.schedule(times).sigma.to(noise.x0)
    with full_float32(noise.x0.device):
        values = [u(t, sigma * noise.x0) for t, sigma in zip(times, sigmas, strict=True)]
    if not all(value.isfinite().all() for value in values):
        raise ValueError(f"the velocity is not finite on noise at the times {times.tolist()}: check the network")
    if (u(times[0], sigmas[0] * noise.x0) - values[0]).abs().max() > 0.05 * values[0].abs().max():
        raise ValueError("the velocity changes from call to call; has the network dropout? Call net.eval()")
    one_by_one = torch.stack([value[i] for i, value in enumerate(values[:4])])
    together = u(times[:4], expand(sigmas[:4], noise.x0) * noise.x0)
    if (together - one_by_one).abs().max() > 0.05 * one_by_one.abs().max():
        raise ValueError(
            "the velocity gives something else when t holds one value per sample than when it is one number; it must "
            "take both: reshape t to (-1, 1, ..., 1) before it meets x"
        )
    marks = [(value.square().mean().sqrt(), *value.flatten()[:: -(-value.numel() // 4)]) for value in values]
    return [float(f"{number:.6g}") for several in marks for number in several]


def differences(kept: dict[str, Any], given: dict[str, Any], tolerance: float = 0.01) -> dict[str, tuple[Any, Any]]:
    """The fields of two descriptions that differ; the fingerprint by more than `tolerance` of its largest number."""
    found = {name: (kept.get(name), given[name]) for name in given if kept.get(name) != given[name]}
    was, now = kept.get("fingerprint"), given["fingerprint"]
    if isinstance(was, list) and close(was, now, tolerance * max(map(abs, now))):
        found.pop("fingerprint", None)
    return found


def network_time(model: Model, table: Table) -> list[float] | None:
    """The network's own time at each evaluation, where the model says."""
    return None if model.network_time is None else model.network_time(table.t.to(model.device)).tolist()


def in_words(name: str, was: Any, now: Any) -> str:
    """`schedule {'name': 'VP', ...} (here {...})`, cut where it is long."""
    if name == "fingerprint":
        return "other weights (has the network been trained since?)"
    texts = ("none" if value is None else str(value) for value in (was, now))
    short = [text if len(text) <= 60 else text[:60] + "..." for text in texts]
    return f"{name} {short[0]} (here {short[1]})"


def close(got: Any, expected: Sequence[float | None], tolerance: float = 1e-6) -> bool:
    """Whether two lists of numbers agree, None with None."""
    if not isinstance(got, list) or len(got) != len(expected):
        return False
    return all(
        g == e if g is None or e is None else isinstance(g, int | float) and abs(g - e) <= tolerance
        for g, e in zip(got, expected, strict=True)
    )
