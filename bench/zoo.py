"""What the zoo's folders hold beside their networks, made from the cells of `bespoke paper`: python -m bench.zoo.

Writes the paper's solvers as a file, and the model card with the FID that was measured; `--into docs/zoo.md` puts the
table of all three there. The lanes of the zoo in bench.networks measure the cells.
"""

import argparse
import json
from pathlib import Path

from bench.tables import into
from bespoke_solvers import cells, model_folder, solver, zoo
from bespoke_solvers.adapters.diffusers import TRAINING, network_time
from bespoke_solvers.files import write_atomically
from bespoke_solvers.judge import in_words
from bespoke_solvers.paper import plan
from bespoke_solvers.paper.lab import EXACT

METHODS = (plan.RK2, plan.RK2_BESPOKE, plan.NS)
FITTED = ("objective", "iterations", "best_iteration", "seconds", "evaluations", "seed", "tolerance")


def solvers(records: list[cells.Record]) -> list[solver.Solver]:
    """RK2-Bespoke at each NFE, with its provenance."""
    found = {(r["measured"], r["method"], r["nfe"]): r for r in records}
    about = found["model", EXACT, 0]
    model = about["model_is"] | {"fingerprint": about["fingerprint"]}
    reference = {name: about[name] for name in ("reference_evaluations", "reference_error")}
    made = []
    for (measured, method, nfe), fitted in found.items():
        if (measured, method) == ("fit", plan.RK2_BESPOKE) and ("error", method, nfe) in found:
            error = found["error", method, nfe]
            table = cells.table_of(fitted)
            made.append(
                solver.Solver(
                    table=table,
                    family=fitted["family"],
                    theta=fitted["theta"],
                    model=model,
                    fit={name: fitted[name] for name in (*FITTED, "budget", "command", "versions", "device")},
                    validation={name: error[name] for name in ("samples", "rmse", "psnr")} | reference,
                    network_time=network_time(table.t).tolist(),
                )
            )
    return sorted(made, key=lambda each: each.nfe)


def fid_section(records: list[cells.Record]) -> str:
    """A table for the model card: FID by method and NFE."""
    measured = {(r["method"], r["nfe"]): r for r in records if r["measured"] == "fid"}
    (samples,) = {r["samples"] for r in measured.values()}
    exact = measured.pop((EXACT, 0), None)
    columns = sorted({nfe for _, nfe in measured})
    lines = [f"| | {' | '.join(f'{nfe} NFE' for nfe in columns)} |", "|---" * (len(columns) + 1) + "|"]
    for method in METHODS:
        row = [f"{measured[method, nfe]['fid']:.2f}" if (method, nfe) in measured else "" for nfe in columns]
        lines.append(f"| {method} | {' | '.join(row)} |")
    own = "" if exact is None else f" The exact solution has {in_words(exact)}."
    return f"\n## FID\n\n{samples:,} samples against the training pictures.{own}\n\n" + "\n".join(lines) + "\n"


def table(store: cells.Store) -> str:
    """FID, in percent of the exact samples' too, and RMSE of each method on each network, against NFE."""
    columns = sorted({r["nfe"] for name in zoo.NAMES for r in store.of(name)} - {0})
    lines = [f"| | exact | | {' | '.join(f'{nfe} NFE' for nfe in columns)} |", "|---" * (len(columns) + 3) + "|"]
    for name in zoo.NAMES:
        found = {(r["measured"], r["method"], r["nfe"]): r for r in store.of(name)}
        exact = found["fid", EXACT, 0]["fid"]
        for method in METHODS:
            row = []
            for nfe in columns:
                fid, error = found.get(("fid", method, nfe)), found.get(("error", method, nfe))
                judged = f"{fid['fid']:.2f} ({fid['fid'] / exact:.1%}), " if fid else ""
                row.append(judged + f"{error['rmse']:.4f}" if error else "")
            lines.append(f"| `{name}` | {exact:.2f} | {method} | {' | '.join(row)} |")
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, default=Path("bench/results/zoo/cells"))
    parser.add_argument("--out", type=Path, help="write there, rather than into the package")
    parser.add_argument("--into", type=Path, help="put the table into this page, where its mark is")
    return parser


def main() -> None:
    options = arguments().parse_args()
    store = cells.Store(options.cells, plan.KEY)
    for name in zoo.NAMES:
        folder = zoo.folder(name)
        out = options.out / folder.name if options.out else folder
        out.mkdir(parents=True, exist_ok=True)
        records = list(store.of(name))
        made = solvers(records)
        solver.save(made, out / zoo.RK2_BESPOKE)
        card = model_folder.card(json.loads((folder / TRAINING).read_text())) + fid_section(records)
        write_atomically(out / "README.md", card.encode())
        print(name, *(f"{s.nfe} NFE: RMSE {s.validation['rmse']:.4f}" for s in made))
    if options.into:
        into(options.into, {"table zoo": table(store)})


if __name__ == "__main__":
    main()
