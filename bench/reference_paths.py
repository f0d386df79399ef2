"""Where to solve the exact paths of a noise-predicting network: python -m bench.reference_paths MODELS --help.

On the path that `bespoke_solvers.reference` chooses, where the network's output enters with a constant weight, and on
the model's own VP path: evaluations, and the RMSE to a solution at a hundredth of the smallest tolerance.
"""

import argparse
import dataclasses
from pathlib import Path

import torch

from bench.models import load
from bespoke_solvers import reference
from bespoke_solvers.bank import Bank
from bespoke_solvers.metrics import rmse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, help="the folder of the models")
    parser.add_argument("--name", default="cifar10-eps-vp", help="which of them")
    parser.add_argument("--tolerance", nargs="+", type=float, default=[1e-4, 1e-5, 1e-6])
    parser.add_argument("--finest", type=float, default=1e-7, help="the tolerance of the solution to compare with")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    regular = load(options.name, options.models, options.device)
    fields = {"regular": regular, "native": dataclasses.replace(regular, prediction="flow", domain=regular.domain)}
    noise = Bank(regular, batch_size=options.samples).noise("report", 0, 0)

    def solve(model: str, tolerance: float) -> reference.Paths:
        return reference.solve(fields[model], noise, rtol=tolerance, atol=tolerance, max_evaluations=10**5)

    finest = {model: solve(model, options.finest) for model in fields}
    difference = rmse(finest["regular"].x1, finest["native"].x1)
    print(f"at {options.finest:.0e} the two differ by {difference:.1e}\n")
    print("| tolerance | path | NFE | RMSE |\n|---|---|---|---|")
    for tolerance in options.tolerance:
        for model in fields:
            paths = solve(model, tolerance)
            print(f"| {tolerance:.0e} | {model} | {paths.evaluations} | {rmse(paths.x1, finest['regular'].x1):.1e} |")


if __name__ == "__main__":
    main()
