"""What it costs that a closed form tries the most promising time grids alone: python -m bench.screening toy:digits.

All grids are fitted (two passes, on the paths by which they are compared). Of each model and NFE: the rank correlation
of what was promised with what was reached, and by how many decibels a solver on the best of all grids is ahead of one
on the best of those that are tried, on these paths and on as many others.
"""

import argparse
import math
from pathlib import Path

import torch

from bench.models import load
from bespoke_solvers.bank import Bank
from bespoke_solvers.grids import WARPS, warp
from bespoke_solvers.metrics import mse
from bespoke_solvers.regression import closed_form, errors, log_mean
from bespoke_solvers.screening import screen
from bespoke_solvers.stages import TRIED
from bespoke_solvers.table import sample


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", help="of toys, of networks of the zoo, or of --models")
    parser.add_argument("--models", type=Path, help="the folder of the other networks")
    parser.add_argument("--nfe", nargs="+", type=int, default=[4, 5, 6, 8, 10, 16, 20])
    parser.add_argument("--paths", type=int, default=16, help="by which grids are compared and judged")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    print("| model | NFE | rank correlation | dB lost | on other paths |\n|---|---|---|---|---|")
    tolerance = {"rtol": options.tolerance, "atol": options.tolerance}
    for name in options.names:
        bank = Bank(load(name, options.models, options.device), batch_size=options.paths, **tolerance)
        paths, (noise, x1, _) = [bank.paths(0, 0)], bank.samples("report", 0, 0)
        u = bank.model.bind(noise.condition)
        for nfe in options.nfe:
            grids = [warp(bank.model, nfe, *each) for each in WARPS]
            scores = screen(grids, paths)
            order = sorted(range(len(grids)), key=scores.__getitem__)
            rows = [closed_form(t, paths, 2) for t in grids]
            reached = [log_mean(errors(found.samples, paths)) for found in rows]
            rank = torch.corrcoef(torch.tensor([scores, reached]).argsort().argsort().double())[0, 1].item()
            chosen, best = (min(among, key=reached.__getitem__) for among in (order[:TRIED], order))
            others = [log_mean([mse(sample(rows[i].table, u, noise.x0), x1).double()]) for i in (chosen, best)]
            lost = [10 / math.log(10) * (a - b) for a, b in ((reached[chosen], reached[best]), others)]
            print(f"| {name} | {nfe} | {rank:.2f} | {lost[0]:.2f} | {lost[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
