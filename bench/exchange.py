"""The cells that the benchmarks and `bespoke paper` share, from one store into the other: python -m bench.exchange OUT.

The same counts give the same noise, exact samples and fit, so nothing is computed: the records keep their provenance,
and a cell that is there already stays. Models of one store alone are left out, and those with guidance, which the two
have with other counts. FID goes from bench.fid to the paper's, given the pictures that it was measured to (`--real`,
`--weights`).
"""

import argparse
import re
from pathlib import Path

from bench import fid
from bench.frontier import DEFAULT, adam_budget, cost
from bench.store import Store
from bespoke_solvers import cells, inception
from bespoke_solvers.cells import Record
from bespoke_solvers.judge import CLOSE, FINE, STAND_IN, mark, stand_in
from bespoke_solvers.paper import plan
from bespoke_solvers.paper.lab import EXACT

BOUND = {plan.RK1_BESPOKE: "rk1-bespoke, bound", plan.RK2_BESPOKE: "rk2-bespoke, bound"}
ALIKE = {plan.BASELINES[name]: name for name in (plan.RK1, plan.RK2, plan.RK4, plan.DPM2)}  # EDM is on another grid
FIGURES = ("rmse", "psnr", "rmse_se")
COURSE = ("evaluations", "seconds", "best_iteration", "history", "table")
PROVENANCE = ("command", "date", "versions", "device")


def _of(record: Record, *names: str) -> Record:
    return {name: record[name] for name in names if name in record}


def from_paper(paper: cells.Store, error: Record) -> Record | None:
    """The cell of the frontier for an error of a fit by the bound, with that of the fit and that of its model."""
    if error["measured"] != "error" or error["method"] not in BOUND or ", guidance " in error["model"]:
        return None
    found = re.fullmatch(r"(\d+) paths, \d+ at a time, (\d+) to choose by, (\d+) iterations at (.+)", error["budget"])
    if not found:
        raise SystemExit(f"{error['budget']!r} is no budget of a fit by Adam")
    paths, choose, steps, rate = int(found[1]), int(found[2]), int(found[3]), float(found[4])
    fitted = paper.get(error | {"measured": "fit", "samples": choose})
    about = _model(paper, error)
    if not (fitted and about):
        raise SystemExit(f"the fit or the model is not among the cells of {error}")
    return {
        **_of(error, "model", "nfe", "seed", "samples", "tolerance", *FIGURES),
        "method": BOUND[error["method"]],
        "budget": adam_budget(paths, steps, rate),
        **_of(about, "reference_evaluations", "reference_error"),
        "choose": choose,
        "cost": cost(fitted["evaluations"]),
        **_of(fitted, *COURSE, "theta", *PROVENANCE),
        "history": [[*row, None] for row in fitted["history"]],  # without PSNR
    }


def to_paper(paper: cells.Store, record: Record) -> list[Record]:
    """The cells of the paper's for one of the frontier: a baseline's error, or the fit and the error of our default."""
    key = _of(record, "model", "nfe", "seed", "samples", "tolerance") | {"real": ""}
    figures = {"measured": "error"} | _of(record, *FIGURES, *PROVENANCE)
    if not _model(paper, key):
        return []
    if record["method"] in ALIKE and record["used"] == record["nfe"]:
        method = ALIKE[record["method"]]
        grid = {"grid": record["name"]} if method in plan.ON_BEST_GRID else {}
        (seen,) = re.findall(r"--grid-samples (\d+)", record["command"]) or [record["samples"]]
        by = plan.budget(method, plan.FULL._replace(choose=min(int(seen), record["samples"])))
        return [key | {"method": method, "budget": by} | figures | grid]
    if record["method"] != DEFAULT:
        return []
    (paths,) = re.findall(r"(\d+) paths", record["budget"])
    (at_a_time,) = re.findall(r"--batch-size (\d+)", record["command"])
    counts = {"paths": int(paths), "batch_size": int(at_a_time), "choose": record["choose"]}
    key |= {"method": plan.NS, "budget": plan.budget(plan.NS, plan.FULL._replace(**counts))}
    course = _of(record, *COURSE, *PROVENANCE) | {"iterations": record["history"][-1][0]}
    fitted = {"measured": "fit", "samples": record["choose"], "objective": "endpoint", "family": "ns", "theta": {}}
    return [key | fitted | course, key | figures]


def fid_to_paper(paper: cells.Store, frontier: Store, record: Record, real: str) -> Record | None:
    """The cell of the paper's for the FID of the same table, or of the solver that stands for the exact samples."""
    if not any(paper.of(record["model"])):  # in half precision, say
        return None
    figures = {"measured": "fid", "real": real} | _of(record, "fid", "kid", *PROVENANCE)
    key = _of(record, "model", "nfe", "seed", "samples", "tolerance")
    if record["method"] == fid.EXACT:
        of = next(paper.of(record["model"]))["tolerance"]  # FID does not see the difference
        by = f"{fid.EXACT} to {record['tolerance']:g}"
        return key | {"method": EXACT, "nfe": 0, "budget": "", "tolerance": of, "by": by} | figures
    if record["method"] == STAND_IN and record["nfe"] in FINE and record["rmse"] < CLOSE:
        by = stand_in(record["name"], record["nfe"], record["rmse"])
        return key | {"method": EXACT, "nfe": 0, "budget": "", "by": by} | figures
    same = ("method", "nfe", "seed", "budget", "tolerance")
    alike = [r for r in frontier.of(record["model"]) if all(r[name] == record[name] for name in same)]
    alike = [r for r in alike if "table" not in r or r["rmse"] == record.get("rmse")]  # else it was fitted again since
    found = (cell for r in alike for cell in paper.of(record["model"]) if _same_solver(cell, r))
    return next((key | _of(cell, "method", "budget") | figures for cell in found), None)


def _same_solver(cell: Record, measured: Record) -> bool:
    """Whether a cell of the paper's has the table of one of the frontier's, or is of the same method on its grid."""
    if any(cell[name] != measured[name] for name in ("model", "nfe", "seed", "tolerance")):
        return False
    if "table" in measured:
        return bool(cell["measured"] == "fit" and cell["table"] == measured["table"])
    alike = cell["measured"] == "error" and cell["method"] == ALIKE.get(measured["method"])
    return alike and measured["used"] == measured["nfe"] and cell.get("grid") in (None, measured["name"])


def _model(paper: cells.Store, cell: Record) -> Record | None:
    """What `bespoke paper` says of the model with these counts."""
    return paper.get(cell | {"measured": "model", "method": EXACT, "nfe": 0, "budget": ""})


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder of `bespoke paper`")
    parser.add_argument("--store", type=Path, default=Path("bench/results/frontier"))
    parser.add_argument("--fid", type=Path, default=Path("bench/results/fid"), help="the store of bench.fid")
    parser.add_argument("--real", type=Path, help="the pictures of FID: what `bespoke paper` gets as --real")
    parser.add_argument("--weights", type=Path, help=f"{inception.FILE}; downloaded by default")
    return parser


def main() -> None:
    options = arguments().parse_args()
    frontier, paper = Store(options.store), cells.Store(options.out / "cells", plan.KEY, say=print)
    if not paper.records:
        raise SystemExit(f"{options.out} holds no cells of `bespoke paper`")
    both = {record["model"] for record in frontier.records.values()}
    taken = filter(None, [from_paper(paper, record) for record in paper.records.values() if record["model"] in both])
    given = [cell for record in frontier.records.values() for cell in to_paper(paper, record)]
    for store, found in ((frontier, taken), (paper, given)):
        for cell in found:
            if store.get(cell) is None:
                store.add(cell)
    if options.real:
        real = mark(options.real, inception.load(options.weights, "cpu"))
        for record in sorted(Store(options.fid).records.values(), key=lambda record: record["method"] != fid.EXACT):
            found = fid_to_paper(paper, frontier, record, real)
            if found and paper.get(found) is None:
                paper.add(found)


if __name__ == "__main__":
    main()
