"""A table with its provenance, and the JSON file that holds one or several of them by their number of evaluations."""

import hashlib
import json
import math
import numbers
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from bespoke_solvers import hub
from bespoke_solvers.description import check_kept, close, describe, differences, in_words, network_time, schedule_of
from bespoke_solvers.doubts import strange_noise
from bespoke_solvers.files import readable, write_atomically
from bespoke_solvers.table import Table, sample
from bespoke_solvers.velocity import Model, Velocity

FORMAT, VERSION = "bespoke-solver", 1
MADE_FOR = "the solver was made for a model with {}; it may serve worse here"


@dataclass(frozen=True)
class Solver:
    """One table for one model. `model`, `fit` and `validation` say what it was made for, how, and how good it is.

    starts: tables that begin in the middle, by the evaluation k that is their first: they run along t_k, t_{k+1}, ...
    and x0 is x(t_k) to them.
    """

    table: Table
    family: str = "table"
    theta: dict[str, list[float]] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    fit: dict[str, Any] = field(default_factory=dict)
    validation: dict[str, Any] = field(default_factory=dict)
    network_time: list[float] | None = None
    starts: dict[int, Table] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for k, start in self.starts.items():
            if not 0 < k < self.nfe or not torch.equal(start.t, self.table.t[k:]):
                raise ValueError(
                    f"the table that starts at evaluation {k} has the times {start.t.tolist()}; expected those of the "
                    f"solver from there, {self.table.t[k:].tolist()}, with k from 1 to {self.nfe - 1}"
                )

    @property
    def nfe(self) -> int:
        """Evaluations of u that a sample costs."""
        return self.table.nfe

    @torch.no_grad()
    def sample(self, u: Velocity | Model, x0: Tensor) -> Tensor:
        """Samples from noise x0 ~ N(0, I), with `nfe` calls of u(t, x), which may be a `model.bind(condition)`.

        Of u nothing is known but what it returns; a `Model` without conditions is checked first (see `check`).
        """
        if isinstance(u, Model):
            self.check(u)
            u = u.bind()
        expected, got = tuple(self.model.get("shape", x0.shape[1:])), tuple(x0.shape[1:])
        if len(got) != len(expected) or got[:1] != expected[:1]:
            raise ValueError(f"x0 has the shape {tuple(x0.shape)}; expected a batch of samples like {expected}")
        if got != expected:
            warnings.warn(MADE_FOR.format(in_words("shape", expected, got)), stacklevel=2)
        if self.model and (strange := strange_noise(x0)):
            warnings.warn(strange, stacklevel=2)
        x1 = sample(self.table, u, x0)
        if not x1.isfinite().all():
            bad = (~x1.isfinite().flatten(1).all(1)).nonzero().flatten().tolist()
            raise ValueError(f"samples {bad} of {len(x1)} are not finite; check u(t, x) and the noise, N(0, I)")
        return x1

    def check(self, model: Model) -> None:
        """Refuse a model that the solver was not made for; warn where it may still serve (`doubts`)."""
        if doubts := self.doubts(model):
            warnings.warn(doubts, stacklevel=2)

    def doubts(self, model: Model) -> str | None:
        """Why the solver may serve worse on that model, if so; refuses a model that it was not made for.

        Another schedule, prediction or number of channels is refused, and conditions where there were none. Another
        guidance scale, picture size, domain, network time or other weights (a transferred solver) is a doubt. Other
        prompts are what a solver is for; with them, or another guidance or size, weights cannot be compared.
        """
        if not self.model:
            return None
        found = differences(self.model, describe(model))
        if found.pop("conditions", None) or found.keys() & {"guidance", "shape"}:
            found.pop("fingerprint", None)
        here = network_time(model, self.table)
        if self.network_time and here and not close(self.network_time, here, tolerance=1e-3):
            found["network time"] = (self.network_time, here)
        for name, (was, now) in found.items():
            if name in ("schedule", "prediction", "conditional") or (name == "shape" and was[:1] != now[:1]):
                raise ValueError(
                    f"the solver was made for a model with {in_words(name, was, now)}; fit one for this model"
                )
        named = ", ".join(in_words(name, *pair) for name, pair in found.items())
        return MADE_FOR.format(named) if named else None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the solver as a JSON file of one table; an existing file is replaced in one go."""
        save([self], path)

    def save_pretrained(self, folder: str | os.PathLike[str], *, base_model: str | None = None) -> None:
        """Write the solver and its card into a folder (see the function `save_pretrained`)."""
        save_pretrained([self], folder, base_model=base_model)

    def push_to_hub(self, repo_id: str, *, base_model: str | None = None, **options: Unpack[hub.Upload]) -> str:
        """Upload the solver and its card (see the function `push_to_hub`)."""
        return push_to_hub([self], repo_id, base_model=base_model, **options)

    @classmethod
    def from_pretrained(
        cls, name: str | os.PathLike[str], nfe: int | None = None, **options: Unpack[hub.Download]
    ) -> "Solver":
        """The solver of a repository of the Hub (user/name) or of a folder; of several, the one with `nfe` evaluations.

        The options are huggingface_hub's. `hub.find` gives the file itself, for `available` and `load`.
        """
        return load(hub.find(name, **options), nfe)


def save(solvers: Sequence[Solver], path: str | os.PathLike[str]) -> None:
    """One file with the tables of several solvers of the same model."""
    write_atomically(path, _encoded(content_of(solvers)))


def content_of(solvers: Sequence[Solver]) -> dict[str, Any]:
    """What a file with the tables of these solvers holds."""
    if not solvers:
        raise ValueError("there is no solver to save")
    first = solvers[0].model
    other = any(s.model != first and (not s.model or not first or differences(first, s.model, 1e-3)) for s in solvers)
    if other or len({solver.nfe for solver in solvers}) < len(solvers):
        raise ValueError("the solvers of a file must belong to one model and differ in nfe")
    tables = {str(solver.nfe): _record(solver) for solver in sorted(solvers, key=lambda s: s.nfe)}
    return {"format": FORMAT, "version": VERSION, "model": first, "tables": tables}


def save_pretrained(
    solvers: Sequence[Solver], folder: str | os.PathLike[str], *, base_model: str | None = None
) -> None:
    """A folder with one file of all the solvers and a model card; what is there under their names is replaced."""
    content = content_of(solvers)
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_atomically(Path(folder) / hub.FILE, _encoded(content))
    write_atomically(Path(folder) / hub.CARD, hub.card(content, base_model=base_model).encode())


def push_to_hub(
    solvers: Sequence[Solver], repo_id: str, *, base_model: str | None = None, **options: Unpack[hub.Upload]
) -> str:
    """Put one file of all the solvers and a model card into a repository, which is made if need be.

    base_model: the repository of the model that they were fitted to, for the card. The other options are
    huggingface_hub's. Returns the address of the commit.
    """
    content = content_of(solvers)
    files = {hub.FILE: _encoded(content), hub.CARD: hub.card(content, repo_id, base_model).encode()}
    return hub.upload(files, repo_id, **options)


def _encoded(content: dict[str, Any]) -> bytes:
    return (readable(content) + "\n").encode()


def _record(solver: Solver) -> dict[str, Any]:
    table = solver.table
    starts = {str(k): _numbers(start) for k, start in solver.starts.items()}
    return {
        **_numbers(table),
        "log_snr": _log_snr(solver.model, table.t),
        "network_time": solver.network_time,
        "family": solver.family,
        "theta": solver.theta,
        "digest": _digest(table, solver.theta, solver.starts),
        **({"starts": starts} if starts else {}),
        "fit": solver.fit,
        "validation": solver.validation,
    }


def _numbers(table: Table) -> dict[str, Any]:
    return {name: getattr(table, name).tolist() for name in "tab"}


def _digest(table: Table, theta: dict[str, Any], starts: dict[int, Table]) -> str:
    """What tells a table that was edited by hand."""
    several = (table, *(starts[k] for k in sorted(starts)))
    numbers = [numbers for each in several for numbers in _numbers(each).values()] + [theta]
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()[:16]


def _log_snr(model: dict[str, Any], t: Tensor) -> list[float | None] | None:
    """The log-snr at each time, None where it is infinite; None as a whole for a schedule from elsewhere."""
    schedule = schedule_of(model.get("schedule", {}))
    if schedule is None:
        return None
    return [value if math.isfinite(value) else None for value in schedule.log_snr(t).tolist()]


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a solver file holds, not checked yet."""
    file = hub.find(path) if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise ValueError(f"there is no solver file {file}")
    try:
        content = json.loads(file.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a solver file, or a damaged one: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a solver file: it holds a {type(content).__name__}")
    return content


def _parts(content: dict[str, Any], where: str) -> tuple[dict[str, Any], dict[int, Any]]:
    """The model of a file's content, and its tables by NFE."""
    if content.get("format") != FORMAT:
        raise ValueError(
            f"{where} is not a solver file: field 'format' is {content.get('format')!r}, expected {FORMAT!r}"
        )
    if content.get("version") != VERSION:
        raise ValueError(
            f"{where}: field 'version' is {content.get('version')!r}, expected {VERSION}; update bespoke-solvers"
        )
    model, tables = (_field(content, name, dict, where) for name in ("model", "tables"))
    check_kept(model, where)
    if not tables:
        raise ValueError(f"{where}: field 'tables' is empty, expected one table at least")
    for key in tables:
        if not key.isdecimal():
            raise ValueError(f"{where}: table {key!r} is not a number of evaluations")
    return model, {int(key): tables[key] for key in sorted(tables, key=int)}


def solvers_in(content: dict[str, Any], where: str) -> dict[int, Solver]:
    """All solvers of a file's content by NFE; errors say `where` it is from."""
    model, tables = _parts(content, where)
    return {nfe: _solver(record, model, nfe, f"{where}: table {nfe}") for nfe, record in tables.items()}


def available(path: str | os.PathLike[str]) -> list[int]:
    """The NFE for which a file holds a table."""
    return list(_parts(read(path), str(path))[1])


def load(path: str | os.PathLike[str], nfe: int | None = None) -> Solver:
    """The solver of a file; of a file with several, the one with `nfe` evaluations."""
    model, tables = _parts(read(path), str(path))
    if not isinstance(nfe, numbers.Integral | None):
        raise ValueError(f"nfe must be a whole number, got {nfe!r}")
    if nfe is None and len(tables) == 1:
        (nfe,) = tables
    if nfe is None or nfe not in tables:
        asked = "no nfe was given" if nfe is None else f"nfe = {nfe} was asked for"
        raise ValueError(f"{path} holds tables for nfe = {', '.join(map(str, tables))}; {asked}, choose one of these")
    return _solver(tables[nfe], model, nfe, f"{path}: table {nfe}")


def _solver(record: Any, model: dict[str, Any], nfe: int, where: str) -> Solver:
    if not isinstance(record, dict):
        raise ValueError(f"{where} is {type(record).__name__}, expected an object with t, a and b")
    table = _table(record, where)
    t = table.t
    if table.nfe != nfe or t.ndim != 1:
        raise ValueError(
            f"{where} has {table.nfe} evaluations for each of {tuple(t.shape[1:])} samples, expected {nfe}"
        )
    try:
        kept, expected = record.get("log_snr"), _log_snr(model, t)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{where}: field 'schedule' of the model is no schedule: {error}") from error
    if kept is not None and expected is not None and not close(kept, expected):
        raise ValueError(
            f"{where}: field 'log_snr' does not belong to the times and the schedule; expected {expected}, got {kept}"
        )
    theta = _field(record, "theta", dict, where)
    starts = _field({"starts": {}} | record, "starts", dict, where)
    if not all(key.isdecimal() for key in starts):
        raise ValueError(f"{where}: field 'starts' has the keys {list(starts)}, expected numbers of evaluations")
    begun = {int(k): _table(numbers, f"{where}, start {k}") for k, numbers in starts.items()}
    if record.get("digest") != _digest(table, theta, begun):
        raise ValueError(
            f"{where}: field 'digest' does not belong to the numbers, which were edited; fit the solver again"
        )
    return Solver(
        table=table,
        family=_field(record, "family", str, where),
        theta=theta,
        model=model,
        fit=_field(record, "fit", dict, where),
        validation=_field(record, "validation", dict, where),
        network_time=record.get("network_time"),
        starts=begun,
    )


def _table(record: dict[str, Any], where: str) -> Table:
    rows = [_field(record, name, list, where) for name in "tab"]
    try:
        return Table(*(torch.tensor(each, dtype=torch.float64) for each in rows))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{where}: {error}") from error


def _field(record: dict[str, Any], name: str, kind: type, where: str) -> Any:
    if name not in record:
        raise ValueError(f"{where}: field {name!r} is missing")
    if not isinstance(record[name], kind):
        raise ValueError(f"{where}: field {name!r} is {type(record[name]).__name__}, expected {kind.__name__}")
    return record[name]
