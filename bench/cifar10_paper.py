"""The paper's solvers on real CIFAR-10 networks, a GPU's work: python -m bench.cifar10_paper MODELS --help.

MODELS is a folder with `cifar10-fm-ot` and `cifar10-eps-vp`, class-conditional `diffusers.UNet2DModel`s whose timestep
is 1000 (1 - t): the first predicts noise - data on the straight path, the second the noise on the VP path.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from diffusers import UNet2DModel
from torch import Tensor

from bespoke_solvers import Model, fit, schedules
from bespoke_solvers.bank import Bank
from bespoke_solvers.comparison import compare, methods

NAMES = ("cifar10-fm-ot", "cifar10-eps-vp")


def load(folder: Path, device: str) -> Model:
    network = UNet2DModel.from_pretrained(folder, torch_dtype=torch.float32).to(device).eval().requires_grad_(False)

    def output(time: Tensor, x: Tensor, label: Tensor) -> Tensor:
        return network(x, time, class_labels=label).sample

    common: dict[str, Any] = {
        "shape": (3, 32, 32),
        "network_time": lambda t: 1000 * (1 - t),
        "draw_condition": lambda generator: torch.randint(10, (), generator=generator),
        "device": device,
    }
    if folder.name == "cifar10-eps-vp":
        return Model.from_network(output, prediction="epsilon", schedule=schedules.VP(), **common)
    return Model.from_network(
        lambda time, x, label: -output(time, x, label), prediction="flow", schedule=schedules.CondOT(), **common
    )


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
        bank = Bank(load(options.models / name, options.device), batch_size=options.batch_size)
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
        print(print(f"\n{name}: exact to {result.reference_error:.0e} with {result.reference_evaluations:.0f} NFE\n"))
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
