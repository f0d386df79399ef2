"""The paper's solvers on real CIFAR-10 networks, a GPU's work: python -m bench.cifar10_paper MODELS --help.

MODELS is the folder of the networks in bench/models.py.
"""

import argparse
import json
from pathlib import Path

import torch

from bench.models import load
from bespoke_solvers import fit
from bespoke_solvers.bank import Bank
from bespoke_solvers.comparison import compare, methods

NAMES = ("cifar10-fm-ot", "cifar10-eps-vp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, help="the folder of the models")
    parser.add_argument("--name", nargs="+", default=NAMES, help="which of them")
    parser.add_argument("--nfe", nargs="+", type=int, default=[8, 10], help="evaluations of a sample")
    parser.add_argument("--family", nargs="+", default=["rk1", "rk2"])
    parser.add_argument("--iterations", type=int, default=700, help="of each fit")
    parser.add_argument("--paths", type=int, default=256, help="to fit, as many to choose and to report")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    options = parser.parse_args()

    figures = {}
    for name in options.name:
        bank = Bank(load(name, options.models, options.device), batch_size=options.batch_size)
        shared = {"iterations": options.iterations, "paths": options.paths, "validation_paths": options.paths}
        solvers = [
            fit(bank.model, nfe=nfe, family=family, bank=bank, progress=False, **shared)
            for nfe in options.nfe
            for family in options.family
        ]
        result = compare(
            bank, methods(solvers, ["euler", "midpoint", "rk4"], options.nfe, bank.model), 0, options.paths
        )
        figures[name] = {
            "reference_evaluations": result.reference_evaluations,
            "reference_error": result.reference_error,
            "rows": result.rows,
            "fits": [
                {"family": solver.family, "nfe": solver.nfe} | {key: solver.fit[key] for key in KEPT}
                for solver in solvers
            ],
        }
        print(f"\n{name}: exact to {result.reference_error:.0e} with {result.reference_evaluations:.0f} NFE\n")
        print("| method | NFE | RMSE | PSNR | seconds of the fit | best iteration |\n|---|---|---|---|---|---|")
        fits = {(f"{solver.family}-bespoke", solver.nfe): solver.fit for solver in solvers}
        for row in sorted(result.rows, key=lambda row: row["nfe"]):
            own = fits.get((row["method"], row["nfe"]), {})
            cost = f"{own.get('seconds', '')} | {own.get('best_iteration', '')}"
            print(f"| {row['method']} | {row['nfe']} | {row['rmse']:.4f} | {row['psnr']:.1f} | {cost} |")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


KEPT = ("iterations", "best_iteration", "paths", "batch_size", "evaluations", "seconds", "history")

if __name__ == "__main__":
    main()
