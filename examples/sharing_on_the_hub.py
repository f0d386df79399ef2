"""Solvers in one file with a card, as a folder and, if you name a repository, on the Hugging Face Hub.

python sharing_on_the_hub.py             # writes the folder my-solver
python sharing_on_the_hub.py user/name   # puts it on the Hub, too; log in first: hf auth login
"""

import sys

import torch

import bespoke_solvers as bs
from bespoke_solvers.solver import push_to_hub, save_pretrained


def main() -> None:
    """Fit two tables, share them, and draw with one that was shared."""
    model = bs.toy.load("toy:checkerboard")  # put your own bs.Model here
    bank = bs.Bank(model, batch_size=256)  # both fits take the same exact paths
    solvers = [bs.fit(model, nfe=nfe, effort="low", bank=bank, progress=False) for nfe in (4, 6)]

    save_pretrained(solvers, "my-solver")  # solver.json, and README.md, a card made of what the file knows
    where = "my-solver"
    if len(sys.argv) > 1:
        where = sys.argv[1]
        print("committed:", push_to_hub(solvers, where))

    solver = bs.Solver.from_pretrained(where, nfe=6)
    x1 = solver.sample(model.bind(), torch.randn(1000, 2, generator=torch.Generator().manual_seed(0)))
    print(f"{len(x1)} samples with {solver.nfe} evaluations each, RMSE {solver.validation['rmse']:.4f}")
    # In a pipeline of diffusers: pipe.scheduler = bs.BespokeScheduler.from_solver(where, pipe.scheduler)


if __name__ == "__main__":
    main()
