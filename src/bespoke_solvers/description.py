"""What solver files and banks say of the model that they belong to, so that they are not used with another."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import torch

from bespoke_solvers.precision import full_float32
from bespoke_solvers.table import Table
from bespoke_solvers.velocity import Model, expand

TIMES = "It must take one number and one for each sample: reshape t to (-1, 1, ..., 1) before it meets x"


def describe(model: Model) -> dict[str, Any]:
    """What a solver file says of its model, in JSON's own types."""
    schedule = model.schedule
    parameters: dict[str, Any] = dataclasses.asdict(schedule) if dataclasses.is_dataclass(schedule) else {}
    description = {
        "schedule": {"name": type(schedule).__name__, **parameters},
        "prediction": model.prediction,
        "domain": model.domain,
        "guidance": model.guidance,
        "shape": model.shape,
        "fingerprint": fingerprint(model),
    }
    return json.loads(json.dumps(description, default=repr))  # type: ignore[no-any-return]


@torch.no_grad()
def fingerprint(model: Model) -> list[float]:
    """Numbers that tell models apart: the size of u at five times on four fixed samples, and four of its entries.

    Refuses a velocity that is not finite there, or that takes a time for each sample for something else.
    """
    noise = model.noise(range(4))
    u = model.bind(noise.condition)
    times = torch.linspace(model.t_lo, model.t_hi, 7, dtype=torch.float64)[1:-1].to(noise.x0)
    sigmas = model.schedule(times).sigma.to(noise.x0)
    with full_float32(noise.x0.device):
        values = [u(t, sigma * noise.x0) for t, sigma in zip(times, sigmas, strict=True)]
    if not all(value.isfinite().all() for value in values):
        raise ValueError(f"the velocity is not finite on noise at the times {times.tolist()}: check the network")
    one_by_one = torch.stack([value[i] for i, value in enumerate(values[:4])])
    try:
        together = u(times[:4], expand(sigmas[:4], noise.x0) * noise.x0)
    except RuntimeError as error:
        raise ValueError(f"the velocity failed when t held one value per sample: {error}. {TIMES}") from error
    if (together - one_by_one).abs().max() > 0.05 * one_by_one.abs().max():
        raise ValueError(f"the velocity gives something else when t holds one value per sample. {TIMES}")
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
    short = [text if len(text) <= 60 else text[:60] + "..." for text in map(str, (was, now))]
    return f"{name} {short[0]} (here {short[1]})"


def close(got: Any, expected: Sequence[float | None], tolerance: float = 1e-6) -> bool:
    """Whether two lists of numbers agree, None with None."""
    if not isinstance(got, list) or len(got) != len(expected):
        return False
    return all(
        g == e if g is None or e is None else isinstance(g, int | float) and abs(g - e) <= tolerance
        for g, e in zip(got, expected, strict=True)
    )
