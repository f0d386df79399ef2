"""bespoke app."""

import ipaddress
from functools import partial
from typing import Annotated

import typer

from bespoke_solvers import app as page
from bespoke_solvers.cli.common import ModelName, Offloading, Precision, Prompts, Size, of_pipelines, solvers
from bespoke_solvers.models import resolve
from bespoke_solvers.playground import Playground


def app(
    model: ModelName,
    solver: Annotated[
        list[str] | None, typer.Argument(metavar="[SOLVER]...", help="Solver files, folders or repositories.")
    ] = None,
    also: Annotated[list[str] | None, typer.Option(metavar="MODEL", help="Another model to choose from.")] = None,
    tolerance: Annotated[float, typer.Option(min=0.0, help="Of the exact samples.")] = 1e-5,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="By default the first free one from 7860 on.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen at; by default for this machine alone.")
    ] = "127.0.0.1",
    prompts: Prompts = None,
    size: Size = None,
    dtype: Precision = None,
    offload: Offloading = None,
) -> None:
    """Show MODEL's samples by solvers, by a baseline and exact, side by side in a page on this machine."""
    page.gradio()
    if not _is_loopback(host):
        typer.echo(
            f"warning: at {host} everyone who can reach this machine can use the page and its model, without a "
            "password; leave out --host to keep it to yourself",
            err=True,
        )
    load = partial(resolve, **of_pipelines(prompts, size, dtype, offload))
    found = {name: solvers(name) for name in solver or []}
    page.serve(Playground(load, [model, *(also or [])], found, tolerance), host, port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
