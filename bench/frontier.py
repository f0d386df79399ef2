"""Every solver side by side on the same noise: python -m bench.frontier toy:digits --nfe 8 10 --store FOLDER.

Computes the cells that the store does not have yet; `python -m bench.tables` draws them.
"""

import argparse
import functools
import time
from pathlib import Path
from typing import Any

import torch

from bench.models import load
from bench.store import KEY, Store
from bespoke_solvers import dedicated, portfolio
from bespoke_solvers.bank import Bank
from bespoke_solvers.evaluation import HeldOut, held_out
from bespoke_solvers.families import NonStationary
from bespoke_solvers.fitting import EFFORTS, STEPS, fit
from bespoke_solvers.generic import baseline
from bespoke_solvers.objectives import endpoint_loss
from bespoke_solvers.solver import Solver

LEARNED: dict[str, dict[str, Any]] = {
    "rk1-bespoke, bound": {"family": "rk1", "objective": "bound"},
    "rk2-bespoke, bound": {"family": "rk2", "objective": "bound"},
    "rk1-bespoke, end point": {"family": "rk1", "objective": "endpoint", "iterations": 30},
    "rk2-bespoke, end point": {"family": "rk2", "objective": "endpoint", "iterations": 30},
    "bns from euler": {"objective": endpoint_loss, "learning_rate": 1e-3},
    "ns, closed form": {"objective": "closed-form"},
    "ns, projection": {"objective": "projection"},
    "ns, default": {},
    "ns, high effort": {"effort": "high"},
}


def learned(method: str, nfe: int, options: argparse.Namespace) -> dict[str, Any] | None:
    """The options of a fit; None where the method cannot have that NFE."""
    chosen = dict(LEARNED[method])
    if chosen.get("family") == "rk2" and nfe % 2:
        return None
    if chosen.get("objective") == "bound" or callable(chosen.get("objective")):
        chosen["iterations"] = options.adam
    if method == "bns from euler":
        chosen["family"] = NonStationary(baseline("euler", nfe), learn_start=False)
    if method != "ns, high effort":
        chosen["paths"] = options.paths
    return chosen


def budget(method: str, options: argparse.Namespace) -> str:
    """What a fit may spend, in words; a method that is not fitted has none."""
    if method not in LEARNED:
        return "grid chosen" if method in dedicated.METHODS else ""
    if method == "ns, high effort":
        return f"{EFFORTS['high'].paths} paths, {EFFORTS['high'].steps} steps"
    objective = LEARNED[method].get("objective", "endpoint")
    steps = options.adam if objective == "bound" or callable(objective) else LEARNED[method].get("iterations")
    if steps is None:
        steps = EFFORTS["medium"].steps if method == "ns, default" else STEPS[objective]
    return f"{options.paths} paths, {steps} steps"


def record(solver: Solver) -> dict[str, Any]:
    """What the store keeps of a fit."""
    spent = solver.fit["evaluations"]
    return {
        "rmse": solver.validation["rmse"],
        "psnr": solver.validation["psnr"],
        "reference_evaluations": solver.validation["reference_evaluations"],
        "reference_error": solver.validation["reference_error"],
        "evaluations": spent,
        "cost": spent["reference"] + spent["forward"] + 2 * spent["backward"],
        "seconds": solver.fit["seconds"],
        "best_iteration": solver.fit["best_iteration"],
        "history": [[i, *(None if v is None else float(f"{v:.5g}") for v in row)] for i, *row in solver.fit["history"]],
        "table": {name: getattr(solver.table, name).tolist() for name in "tab"} if solver.nfe <= 10 else None,
    }


def measure(method: str, nfe: int, bank: Bank, sets: dict[str, HeldOut], options: argparse.Namespace) -> Any:
    if method in LEARNED:
        chosen = learned(method, nfe, options)
        if chosen is None:
            return None
        counts = {"seed": options.seed, "validation_paths": options.samples, "validate_every": options.validate_every}
        return record(fit(bank.model, nfe=nfe, bank=bank, progress=False, **counts, **chosen))
    found = portfolio.best([method], nfe, bank.model, sets["choose"])
    if found is None:
        return None
    report = sets["report"]
    return {
        **report.quality(found.table, bank.model)._asdict(),
        "name": found.name,
        "reference_evaluations": report.evaluations,
        "reference_error": report.own_error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="+", help="toy:digits, cifar10-fm-ot, cifar10-eps-vp@w2, ...")
    parser.add_argument("--models", type=Path, help="the folder of the networks")
    parser.add_argument("--method", nargs="+", default=[*dedicated.NAMES, *LEARNED], help="which ones")
    parser.add_argument("--nfe", nargs="+", type=int, default=[5, 6, 8, 10, 16, 20])
    parser.add_argument("--paths", type=int, default=EFFORTS["medium"].paths, help="to fit to")
    parser.add_argument("--samples", type=int, default=256, help="to choose by, and as many to report on")
    parser.add_argument("--adam", type=int, default=700, help="steps of the fits by gradient")
    parser.add_argument("--validate-every", type=int, default=25, help="of those")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--tolerance", type=float, default=1e-6, help="of the exact paths")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after that time")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--store", type=Path, default=Path("bench/results/frontier"))
    options = parser.parse_args()
    store, started = Store(options.store), time.monotonic()
    for name in options.model:
        tolerance = {"rtol": options.tolerance, "atol": options.tolerance}
        model = load(name, options.models, options.device)
        bank = Bank(model, batch_size=options.batch_size, budget=2**36, **tolerance)
        sets = {noise: held_out(bank, noise, options.seed, options.samples) for noise in ("choose", "report")}
        print(f"{name}: exact with {sets['report'].evaluations:.0f} NFE to {sets['report'].own_error:.0e}", flush=True)
        for method in options.method:
            for nfe in options.nfe:
                if time.monotonic() - started < 60 * options.minutes:
                    values = (
                        name,
                        method,
                        nfe,
                        options.seed,
                        budget(method, options),
                        options.samples,
                        options.tolerance,
                    )
                    store.cell(
                        dict(zip(KEY, values, strict=True)),
                        functools.partial(measure, method, nfe, bank, sets, options),
                    )


if __name__ == "__main__":
    main()
