"""The closed form: with its times fixed, a table's rows are linear regressions on the exact paths.

Row k regresses x(t_k) on x0, u_0, ..., u_{k-1}, the last row x(1), where u_j are the velocities that the fitted rows
themselves run into. It is the optimal linear subspace of Duan et al. (2023) in the non-stationary family.
"""

import errno
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from bespoke_solvers.metrics import mse
from bespoke_solvers.reference import Paths
from bespoke_solvers.schedules import float64
from bespoke_solvers.table import Table, combine

RIDGE = 1e-9  # of the diagonal; with 1e-6 the fits lose decibels
PASSES = 3
ROUNDING = 1e-6  # of how far the other numbers move the samples, below which one moves them by rounding alone
AT_ONCE = 2**22  # numbers in float64, the regressors of a row in as many samples
ROOM = 10  # times what is kept on a GPU for all paths together must be free there
SMALL = 2**26  # bytes that are kept in memory on a CPU: so few need no file


@dataclass(frozen=True)
class Rows:
    """A fitted table on the model; of each batch the velocities it met and its samples."""

    table: Table
    velocities: list[Float[Tensor, "n b *shape"]]
    samples: list[Float[Tensor, "b *shape"]]


def scratch(count: int, like: Sequence[Tensor]) -> list[Tensor]:
    """`count` uninitialised tensors like each of those: beside them where there is plenty of room, else in files."""
    size, device = count * sum(x.numel() * x.element_size() for x in like), like[0].device
    if size < (torch.cuda.mem_get_info(device)[0] / ROOM if device.type == "cuda" else SMALL):
        return [torch.empty((count, *x.shape), dtype=x.dtype, device=x.device) for x in like]
    return [on_disk((count, *x.shape), x.dtype) for x in like]


def on_disk(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor in a temporary file, so that it takes disk and page cache instead of memory."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file, size = Path(folder) / "tensor", int(torch.Size(shape).numel())
        _reserve(file, size * dtype.itemsize)
        return torch.from_file(str(file), shared=True, size=size, dtype=dtype).reshape(tuple(shape))


def _reserve(file: Path, size: int) -> None:
    """Make a file of that size: a disk without room is an error here, and would be a signal when it is written to."""
    with file.open("wb") as empty:
        try:
            os.posix_fallocate(empty.fileno(), 0, size)
        except (AttributeError, OSError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                need = f"{error.strerror}: the fit needs {size:,} bytes in {tempfile.gettempdir()}"
                raise OSError(error.errno, f"{need}; make room, or set TMPDIR") from error
            empty.truncate(size)  # where none can be reserved


@torch.no_grad()
def fit_rows(
    t: Float[Tensor, " n"],
    batches: Sequence[Paths],
    weights: Sequence[Float[Tensor, " b"]],
    known: Rows | None = None,
    first: int = 0,
    scale: float | None = None,
) -> Rows:
    """The table with times t whose rows from `first` on are regressions with these weights; those before are known.

    Normal equations in float64 add up over the batches, a few samples at a time, and what is kept of each path lies in
    files, unless there is plenty of room on the GPU: memory grows neither with the number of paths nor with n beyond
    that. scale: a_0, if it is held.
    """
    n = len(t)
    a, b = torch.zeros(n + 1, dtype=torch.float64), torch.zeros(n + 1, n, dtype=torch.float64)
    velocities = scratch(n, [paths.x1 for paths in batches])
    if known is not None:
        a[:first], b[:first] = known.table.a[:first], known.table.b[:first]
        for mine, theirs in zip(velocities, known.velocities, strict=True):
            mine[:first] = theirs[:first]
    gram, entered = torch.zeros(n + 1, n + 1, dtype=torch.float64), 0
    for k in range(first, n + 1):
        moments = torch.zeros(k + 1, dtype=torch.float64)
        for paths, us, weight in zip(batches, velocities, weights, strict=True):
            x0 = paths.noise.x0
            if k > first:  # the last velocity before row k, at what row k - 1 gives
                y = combine(a[k - 1], b[k - 1], x0, list(us[: k - 1].to(x0.device)))
                us[k - 1] = paths.model.bind(paths.noise.condition)(t[k - 1].to(x0), y)
            target = paths.x1 if k == n else paths.at(t[k : k + 1]).x[0]
            rows, size = [x0, *us[:k].to(x0.device)], max(1, AT_ONCE // ((k + 1) * x0[0].numel()))
            for part in (slice(first, first + size) for first in range(0, len(x0), size)):
                basis = float64(torch.stack([row[part] for row in rows])).flatten(2)
                w = weight[part].to(basis)[:, None]
                gram[entered : k + 1, : k + 1] += torch.einsum("ibd,jbd->ij", w * basis[entered:], basis).cpu()
                moments += torch.einsum("ibd,bd->i", basis, w * float64(target[part]).flatten(1)).cpu()
        entered = k + 1
        lower = gram[: k + 1, : k + 1]
        a[k], b[k, :k] = damped_solve(lower.tril() + lower.tril(-1).T, moments, RIDGE).tensor_split([1])
        if k == 0 and scale is not None:
            a[0] = scale
    table = Table(t, a, b)
    samples = [
        combine(a[n], b[n], paths.noise.x0, list(us.to(paths.noise.x0.device)))
        for paths, us in zip(batches, velocities, strict=True)
    ]
    return Rows(table, velocities, samples)


def damped_solve(
    gram: Float[Tensor, "m m"], moments: Float[Tensor, " m"], damping: float, least: float = ROUNDING
) -> Float[Tensor, " m"]:
    """The solution of the normal equations, whose diagonal is made 1 + damping times as large.

    A number with less than `least` of the strongest effect on the samples is damped as if it had that much: scaled by
    its own, it could go anywhere.
    """
    scale = gram.diagonal().sqrt()
    scale = scale.clamp(min=max(least * scale.max().item(), 1e-30))
    damped = gram / scale[:, None] / scale + damping * torch.eye(len(gram), dtype=gram.dtype)
    return torch.linalg.solve(damped, moments / scale) / scale  # type: ignore[no-any-return]


def errors(samples: Sequence[Tensor], batches: Sequence[Paths]) -> list[Float[Tensor, " b"]]:
    """The mean square error of each sample, batch by batch, in float64; floored so that its logarithm is finite."""
    tiny = torch.finfo(torch.float32).tiny
    return [float64(mse(x, paths.x1)).clamp(min=tiny) for x, paths in zip(samples, batches, strict=True)]


def log_mean(errors: Sequence[Float[Tensor, " b"]]) -> float:
    """E log MSE; infinite where a sample is not finite."""
    value = torch.cat(list(errors)).log().mean().item()
    return value if math.isfinite(value) else math.inf


def sample_weights(errors: Sequence[Float[Tensor, " b"]]) -> list[Float[Tensor, " b"]]:
    """1 / (MSE + median MSE) of each sample: errors are heavy-tailed, and few samples would decide everything."""
    median = torch.cat(list(errors)).median()
    return [median / (error + median) for error in errors]


def closed_form(
    t: Float[Tensor, " n"],
    batches: Sequence[Paths],
    passes: int = PASSES,
    scale: float | None = None,
    weights: Sequence[Float[Tensor, " b"]] = (),
) -> Rows:
    """Rows fitted with these weights (equal ones by default), then again with those that the last fit's errors give."""
    weights = weights or [torch.ones(len(paths.x1), dtype=torch.float64) for paths in batches]
    for _ in range(passes):
        rows = fit_rows(t, batches, weights, scale=scale)
        weights = sample_weights(errors(rows.samples, batches))
    return rows
