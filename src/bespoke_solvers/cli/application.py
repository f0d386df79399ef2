"""bespoke app."""

import ipaddress
import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bespoke_solvers import app as page
from bespoke_solvers.cli.common import DryRun, ModelName, Offloading, Precision, Prompts, Size, of_pipelines, solvers
from bespoke_solvers.models import resolve
from bespoke_solvers.playground import Playground


def app(
    model: ModelName,
    solver: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SOLVER]...", help="Solver files, folders with one, or repositories on the Hub."),
    ] = None,
    also: Annotated[
        list[str] | None, typer.Option(metavar="MODEL", help="A further model to choose from; repeatable.")
    ] = None,
    tolerance: Annotated[float, typer.Option(min=0.0, help="Error tolerance of the exact samples.")] = 1e-5,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port to serve at; by default the first free one from 7860 on.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to serve at; the default can be reached from this machine alone.")
    ] = "127.0.0.1",
    prompts: Prompts = None,
    size: Size = None,
    dtype: Precision = None,
    offload: Offloading = None,
    dry_run: DryRun = False,
) -> None:
    """Serve a local page that shows MODEL's samples side by side: by a baseline, by your solvers, and exact."""
    page.gradio()
    if not _is_loopback(host):
        typer.echo(
            f"warning: at {host} everyone who can reach this machine can use the page and its model, without a "
            "password; leave out --host to keep it to yourself",
            err=True,
        )
    more = of_pipelines(prompts, size, dtype, offload)
    found = {short: solvers(name) for short, name in _by_short_names(solver or []).items()}
    models = [model, *(also or [])]
    if dry_run:
        for name in models:
            resolve(name, **more)
        listed = [f"{short} ({', '.join(str(each.nfe) for each in several)} NFE)" for short, several in found.items()]
        typer.echo(f"would show {', '.join(models)} with {', '.join(listed) or 'no solver'}")
        typer.echo(f"at {host}, port {port or 'from 7860 on, the first free one'}")
        return
    page.serve(Playground(partial(resolve, **more), models, found, tolerance), host, port)


def _by_short_names(names: Sequence[str]) -> dict[str, str]:
    """Files by their names, with as many of their folders as tell them apart: the page has little room."""
    for depth in itertools.count(1):
        short = {"/".join(Path(name).parts[-depth:]): name for name in names}
        if len(short) == len(set(map(Path, names))):
            break
    return short


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
