"""Fits of the bound that `bespoke paper` made, as cells of bench.frontier: python -m bench.from_paper OUT.

The same counts give the same noise, exact samples and fit, so nothing is computed: the records keep their provenance.
A cell that the frontier has already stays. Models with guidance are left out: the frontier has them with other counts.
"""

import argparse
import re
from pathlib import Path

from bench.frontier import adam_budget, cost
from bench.store import Store
from bespoke_solvers import cells
from bespoke_solvers.cells import Record
from bespoke_solvers.paper import plan
from bespoke_solvers.paper.lab import EXACT

METHODS = {plan.RK1_BESPOKE: "rk1-bespoke, bound", plan.RK2_BESPOKE: "rk2-bespoke, bound"}
BUDGET = re.compile(r"(\d+) paths, \d+ at a time, (\d+) to choose by, (\d+) iterations at (.+)")
COURSE = ("evaluations", "seconds", "best_iteration", "history", "theta", "table")
KEPT = (*COURSE, "command", "date", "versions", "device")


def converted(paper: cells.Store, error: Record) -> Record:
    """The cell of an error together with that of its fit and that of its model, in the fields of the frontier."""
    found = BUDGET.fullmatch(error["budget"])
    if not found:
        raise SystemExit(f"{error['budget']!r} is no budget of a fit by Adam")
    paths, choose, steps, rate = int(found[1]), int(found[2]), int(found[3]), float(found[4])
    fitted = paper.get(error | {"measured": "fit", "samples": choose})
    about = paper.get(error | {"measured": "model", "method": EXACT, "nfe": 0, "budget": ""})
    if not (fitted and about):
        raise SystemExit(f"the fit or the model is not among the cells of {error}")
    return {
        "model": error["model"],
        "method": METHODS[error["method"]],
        **{name: error[name] for name in ("nfe", "seed")},
        "budget": adam_budget(paths, steps, rate),
        **{name: error[name] for name in ("samples", "tolerance", "rmse", "psnr", "rmse_se")},
        **{name: about[name] for name in ("reference_evaluations", "reference_error")},
        "choose": choose,
        "cost": cost(fitted["evaluations"]),
        **{name: fitted[name] for name in KEPT},
        "history": [[*row, None] for row in fitted["history"]],  # without PSNR
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder of `bespoke paper`")
    parser.add_argument("--store", type=Path, default=Path("bench/results/frontier"))
    options = parser.parse_args()
    store, paper = Store(options.store), cells.Store(options.out / "cells", plan.KEY)
    if not paper.records:
        raise SystemExit(f"{options.out} holds no cells of `bespoke paper`")
    for record in paper.records.values():
        guided = ", guidance " in record["model"]
        if record["measured"] == "error" and record["method"] in METHODS and not guided:
            cell = converted(paper, record)
            if store.get(cell) is None:
                store.add(cell)


if __name__ == "__main__":
    main()
