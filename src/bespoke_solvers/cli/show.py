"""bespoke show."""

from pathlib import Path
from typing import Annotated

import typer

from bespoke_solvers import pictures
from bespoke_solvers.cli.common import SOLVER, in_figures, output_file, solvers


def show(
    file: Annotated[str, typer.Argument(metavar="SOLVER", help=SOLVER)],
    out: Annotated[Path | None, typer.Option(help="Picture of what was learned (.png).")] = None,
) -> None:
    """Show what is in a solver file."""
    if out:
        output_file(out, ".png")
    found = solvers(file)
    model = found[0].model
    schedule = dict(model.get("schedule", {}))
    name = schedule.pop("name", "unknown")
    path = " ".join([name, *(f"{key} = {value}" for key, value in schedule.items() if not isinstance(value, list))])
    told = [f"{field} {model[field]}" for field in ("guidance", "conditions") if model.get(field) is not None]
    typer.echo(f"{file}: {len(found)} table{'s' * (len(found) > 1)} for a model of {model.get('shape')}")
    known = [f"path {path}", f"prediction {model.get('prediction')}", f"domain {model.get('domain')}", *told]
    typer.echo(f"  {', '.join(known)}")
    for solver in found:
        fit, validation = solver.fit, solver.validation
        numbers = sum(map(len, solver.theta.values()))
        typer.echo(f"\n{solver.nfe} evaluations, family {solver.family}, {numbers} learned numbers")
        if isinstance(fit.get("evaluations"), dict):
            spent = ", ".join(f"{count:,} {kind}" for kind, count in fit["evaluations"].items())
            paths = f" on {fit['paths']} paths" if "paths" in fit else ""
            typer.echo(
                f"  fitted with {fit.get('objective')}{paths}, iteration {fit.get('best_iteration')} of "
                f"{fit.get('iterations')}, seed {fit.get('seed')}, in {fit.get('seconds')} s"
            )
            typer.echo(f"  evaluations spent: {spent}")
        if "rmse" in validation:
            typer.echo(f"  on {validation.get('samples')} samples: {in_figures(validation)}")
        if solver.starts:
            typer.echo(f"  with tables that start at evaluation {', '.join(map(str, sorted(solver.starts)))}")
        typer.echo("  k   time     a        b, the weights of the velocities before")
        rows = zip([*solver.table.t.tolist(), None], solver.table.a.tolist(), solver.table.b.tolist(), strict=True)
        for k, (t, a, b) in enumerate(rows):
            time = "result " if t is None else f"{t:.5f}"
            typer.echo(f"  {k:<3d} {time}  {a:+.4f}  " + " ".join(f"{weight:+.4f}" for weight in b[:k]))
    if out:
        pictures.save(pictures.transform(found[0]), out)
        typer.echo(f"\n{out}: what was learned")
