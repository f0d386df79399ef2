"""FID of the solvers that bench.frontier measured: python -m bench.fid cifar10-fm-ot --models FOLDER --real FOLDER ...

Fitted tables are those of its store, the others are made anew on the grid that was best there. `dopri5` is the exact
solution. `cifar10-fm-ot@bfloat16` takes the tables of float32.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from bench.models import full_precision, load
from bench.store import Store, table_of
from bespoke_solvers import dedicated, inception
from bespoke_solvers.fid import Draw
from bespoke_solvers.judge import Judge, exactly, real_pictures
from bespoke_solvers.paper import plan
from bespoke_solvers.table import Table
from bespoke_solvers.velocity import Model

EXACT = "dopri5"


def record_of(frontier: Store, model: str, method: str, nfe: int, seed: int) -> dict[str, Any]:
    """The record of a method, which has its table, or the name of its grid; of several budgets the one that was best on
    the samples to choose by."""
    found = [r for r in frontier.of(model) if (r["method"], r["nfe"], r["seed"]) == (method, nfe, seed)]
    found = [r for r in found if r["rmse"] is not None]
    if not found:
        raise SystemExit(f"{frontier.folder} has no {method} at {nfe} NFE for {model}; measure it with bench.frontier")
    return min(found, key=_chosen_by)


def _chosen_by(record: dict[str, Any]) -> float:
    """RMSE on the samples that the best step of a fit was chosen by."""
    return min((row[2] for row in record.get("history", []) if row[2] is not None), default=0.0)


def solver(record: dict[str, Any], model: Model) -> Table | Draw:
    """What draws the samples of a record: its table, the baseline that it names, or the exact solution."""
    if "table" in record:
        return table_of(record)
    if "name" in record:
        return dedicated.baseline(record["name"], record["used"], model)
    return exactly(record["tolerance"], record["tolerance"])


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="cifar10-fm-ot, cifar10-eps-vp@bfloat16, ...")
    parser.add_argument("--models", type=Path, help="the folder of the networks")
    parser.add_argument("--real", type=Path, required=True, help="a folder of `bespoke data`, or its statistics")
    parser.add_argument("--weights", type=Path, help=f"{inception.FILE}; downloaded by default")
    parser.add_argument("--method", nargs="+", required=True)
    parser.add_argument("--nfe", nargs="+", type=int, default=[4, 5, 6, 8, 10])
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=500)
    parser.add_argument("--tolerance", type=float, default=1e-5, help=f"of {EXACT}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="compile the network; samples must fill their batches")
    parser.add_argument("--frontier", type=Path, default=Path("bench/results/frontier"))
    parser.add_argument("--store", type=Path, default=Path("bench/results/fid"))
    parser.add_argument("--statistics", type=Path, help="a folder that keeps those of the samples, as .npz")
    return parser


def main() -> None:
    options = arguments().parse_args()
    if options.statistics:
        options.statistics.mkdir(parents=True, exist_ok=True)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 4
    model = load(options.model, options.models, options.device, compiled=options.compile)
    features = inception.load(options.weights, options.device)
    judge = Judge(
        real_pictures(options.real, features), features, options.samples, options.seed, batch_size=options.batch_size
    )
    frontier, store = Store(options.frontier), Store(options.store)
    for method in options.method:
        for nfe in options.nfe if method != EXACT else [0]:
            record: dict[str, Any] = {"budget": "", "tolerance": options.tolerance}
            if method != EXACT:
                record = record_of(frontier, full_precision(options.model), method, nfe, options.seed)
            own = {"model": options.model, "method": method, "nfe": nfe, "seed": options.seed}
            key = own | {"samples": options.samples} | {name: record[name] for name in ("budget", "tolerance")}

            def measure(record: dict[str, Any] = record, key: dict[str, Any] = key) -> dict[str, Any]:
                drawn = judge.drawn(solver(record, model), model)
                if options.statistics:
                    drawn.save(options.statistics / (plan.file_name(" ".join(map(str, key.values()))) + ".npz"))
                known = {name: record[name] for name in ("rmse", "name", "used") if name in record}
                return known | judge.figures(drawn)

            store.cell(key, measure)


if __name__ == "__main__":
    main()
