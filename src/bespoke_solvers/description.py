"""What solver files and banks say of the model that they belong to, so that they are not used with another."""

import dataclasses
import functools
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bespoke_solvers.precision import full_float32
from bespoke_solvers.schedules import EDM, VP, CondOT, Cosine, DiscreteVP, Schedule
from bespoke_solvers.table import Table
from bespoke_solvers.velocity import Condition, Model, Noise, Velocity, ends

SCHEDULES: dict[str, Callable[..., Schedule]] = {
    maker.__name__: maker for maker in (CondOT, Cosine, VP, EDM, DiscreteVP)
}

MARKS = 5  # of x after each of the fingerprint's steps: its size, and four means


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
    """Its name and parameters; the full name of one that is called like ours and is another."""
    own = type(schedule)
    clashes = SCHEDULES.get(own.__name__, own) is not own
    name = f"{own.__module__}.{own.__qualname__}" if clashes else own.__name__
    fields: Sequence[dataclasses.Field[Any]] = (
        dataclasses.fields(schedule) if dataclasses.is_dataclass(schedule) else ()
    )
    return {"name": name} | {each.name: _parameter(getattr(schedule, each.name)) for each in fields}


def _parameter(value: Any) -> Any:
    """Of a schedule: another schedule, a function by its name, or what JSON knows."""
    if isinstance(value, Schedule):
        return describe_schedule(value)
    if isinstance(value, tuple):
        return list(value)
    return f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else value


class Course(NamedTuple):
    """Four samples on their way: before each evaluation, and their end."""

    noise: Noise
    times: Tensor
    points: list[Tensor]
    values: list[Tensor]


@torch.no_grad()
def course(model: Model, along: Sequence[Tensor] = ()) -> Course:
    """Five of DDIM's steps from fixed noise, or each from where another model was; refuses a velocity that fails."""
    noise = model.noise(range(4))
    bound = model.bind(noise.condition)
    times = torch.linspace(model.t_lo, model.t_hi, 7, dtype=torch.float64)[1:-1].to(noise.x0)
    points, values = [model.schedule(times[0]).sigma.to(noise.x0) * noise.x0], list[Tensor]()
    with full_float32(noise.x0.device):
        for k, (t, following) in enumerate(itertools.zip_longest(times, times[1:])):
            x = along[k] if along else points[k]
            values.append(_called(bound, t, x))
            if not values[k].isfinite().all():
                own = model.network_time and model.network_time(t)
                told = "" if own is None else f" (the network's own time: {own.item():.4g})"
                raise ValueError(f"the velocity is not finite at t = {t.item():.4g}{told}: check the network there")
            x0, x1 = ends(model.schedule, t, x, values[k])
            alpha, sigma, *_ = (1.0, 0.0) if following is None else model.schedule(following)
            points.append(alpha * x1 + sigma * x0)
    return Course(noise, times, points, values)


def _called(u: Velocity, t: Tensor, x: Tensor) -> Tensor:
    try:
        return u(t, x)
    except (RuntimeError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError) as error:
        what = str(error) if isinstance(error, RuntimeError | TypeError) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"the model failed on a t of {tuple(t.shape)} and an x of {tuple(x.shape)}: {what}. Check shape (of "
            "one sample), the order (t, x), that t may be one number or one for each sample, the conditions, and the "
            f"precision: x is {x.dtype} (a network in another one must cast x, and its output back)"
        ) from error


@torch.no_grad()
def fingerprint(model: Model) -> list[float]:
    """Numbers that tell models apart: after each step of a `course`, the size of x and the mean of a quarter of each
    sample. Models of the same pictures hardly differ on noise, but end at other pictures.

    Refuses what would make every figure worthless: a velocity that fails, is not finite, changes from call to call,
    mixes the samples of a batch or takes a time for each sample for something else; conditions that do not come from
    the generator.
    """
    with full_float32(torch.device(model.device)):  # TF32 would look like a velocity that is not the same twice
        return _fingerprint(model)


def _fingerprint(model: Model) -> list[float]:
    noise, times, points, values = course(model)
    if not _same(noise.condition, model.noise(range(4)).condition):
        raise ValueError("draw_condition gave other conditions for the same seeds; it must draw from its generator")
    u = functools.partial(_called, model.bind(noise.condition))
    if (u(times[0], points[0]) - values[0]).abs().max() > 0.05 * values[0].abs().max():
        raise ValueError("the velocity changes from call to call; has the network dropout? Call net.eval()")
    same = noise.part([0] * len(noise.x0))
    among_itself = _called(model.bind(same.condition), times[0], points[0][:1].expand_as(points[0]))
    if (among_itself - values[0])[0].norm() > 0.02 * values[0][0].norm():
        raise ValueError(
            "the velocity of a sample depends on the others of its batch; has the network batch normalisation? Call "
            "net.eval(), and let no operation mix the first dimension"
        )
    one_by_one = torch.stack([value[i] for i, value in enumerate(values[:4])])
    together = u(times[:4], torch.stack([point[i] for i, point in enumerate(points[:4])]))
    if (together - one_by_one).abs().max() > 0.05 * one_by_one.abs().max():
        raise ValueError(
            "the velocity gives something else when t holds one value per sample than when it is one number; it must "
            "take both: reshape t to (-1, 1, ..., 1) before it meets x"
        )
    marks = [(x.square().mean().sqrt(), *(_quarter(x[i], i).mean() for i in range(4))) for x in points[1:]]
    return [float(f"{number:.6g}") for several in marks for number in several]


def apart(model: Model, other: Model) -> float:
    """How far the steps of two models from the same points lead apart, at most, relative to the size of x."""
    there = course(other).points
    steps = zip(course(model, along=there).points[1:], there[1:], strict=True)
    return max(float((mine - theirs).norm() / theirs.norm()) for mine, theirs in steps)


def _quarter(x: Tensor, i: int) -> Tensor:
    """The i-th of four, each with one number at least."""
    start, end = (i * x.numel() // 4, (i + 1) * x.numel() // 4)
    return x.flatten()[start : max(end, start + 1)]


def differences(kept: dict[str, Any], given: dict[str, Any], tolerance: float = 0.01) -> dict[str, tuple[Any, Any]]:
    """The fields of two descriptions that differ; the fingerprint by more than `tolerance` of x's size after a step."""
    found = {name: (kept.get(name), given[name]) for name in given if not alike(kept.get(name), given[name])}
    if not alike(_to_data(kept), _to_data(given)):
        found["domain"] = kept.get("domain"), given["domain"]
    was, now = kept.get("fingerprint"), given["fingerprint"]
    at_a_time = range(0, len(now), MARKS)
    if isinstance(was, list) and len(was) == len(now):
        parts = ((was[i : i + MARKS], now[i : i + MARKS]) for i in at_a_time)
        if all(close(mine, theirs, tolerance * max(map(abs, theirs))) for mine, theirs in parts):
            found.pop("fingerprint", None)
    return found


def check_kept(kept: dict[str, Any], where: str) -> None:
    """Refuse a description in a file that is no model's: of another kind than `describe` gives."""
    for name, kind, expected in (
        ("shape", int, "a list of whole numbers"),
        ("domain", int | float, "a list of two numbers"),
    ):
        found = kept.get(name, [0, 1])
        right = isinstance(found, list) and all(isinstance(each, kind) for each in found)
        if not right or not found or (name == "domain" and len(found) != 2):
            raise ValueError(f"{where}: field {name!r} of the model is {found!r}, expected {expected}")


def _to_data(described: dict[str, Any]) -> list[float] | None:
    """1 - t at the ends of the domain, where numbers that are close to 1 differ."""
    domain = described.get("domain")
    return [1 - t for t in domain] if isinstance(domain, list | tuple) else None


def alike(one: Any, other: Any) -> bool:
    """Whether two values of JSON are the same, numbers to rounding: those of a schedule differ between processors."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float) and bool not in (type(one), type(other)):
        return math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-9)
    return bool(one == other)


def _same(one: Condition, other: Condition) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return torch.equal(one, other) if isinstance(one, Tensor) and isinstance(other, Tensor) else one is other


def network_time(model: Model, table: Table) -> list[float] | None:
    """The network's own time at each evaluation, where the model says."""
    return None if model.network_time is None else model.network_time(table.t.to(model.device, model.dtype)).tolist()


def in_words(name: str, was: Any, now: Any) -> str:
    """`schedule {'name': 'VP', ...} (here {...})`, cut where it is long."""
    if name == "fingerprint":
        return "other weights or another precision (has the network been trained since?)"
    if isinstance(was, dict) and isinstance(now, dict) and was.keys() == now.keys():
        for key in (key for key in was if not alike(was[key], now[key])):
            return in_words(f"{name} with {key}", was[key], now[key])
    lists = isinstance(was, list) and isinstance(now, list) and len(was) == len(now) > MARKS
    if lists and all(isinstance(number, int | float) for number in (*was, *now)):
        i = max(range(len(was)), key=lambda i: abs(was[i] - now[i]))
        return in_words(f"{name}[{i}]", was[i], now[i])
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


def digest(numbers: Iterable[Tensor]) -> str:
    """A mark of numbers, to their last bit."""
    return hashlib.sha256(b"".join(each.detach().cpu().numpy().tobytes() for each in numbers)).hexdigest()[:16]
