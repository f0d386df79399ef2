"""RK1, RK2 and their Bespoke solvers, fitted with the paper's loss, on the digits: python -m bench.toy_paper --help."""

import argparse
import json
from pathlib import Path

from bespoke_solvers import fit, toy
from bespoke_solvers.bank import Bank
from bespoke_solvers.evaluation import held_out
from bespoke_solvers.generic import baseline

MODELS = ("toy:digits", "toy:digits-fm-v-cs", "toy:digits-vp")


def row(bank: Bank, nfe: int, iterations: int, samples: int) -> dict[str, float]:
    """RMSE on the reporting set of the four methods at one number of evaluations."""
    report = held_out(bank, "report", 0, samples)
    found = {}
    for name, family in (("euler", "rk1"), ("midpoint", "rk2")):
        found[name] = report.quality(baseline(name, nfe).on(bank.model), bank.model).rmse
        solver = fit(bank.model, nfe=nfe, family=family, iterations=iterations, validation_paths=samples, bank=bank)
        found[f"{family}-bespoke"] = solver.validation["rmse"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", default=MODELS, help="toy models")
    parser.add_argument("--nfe", nargs="+", type=int, default=[8, 10], help="evaluations of a sample")
    parser.add_argument("--iterations", type=int, default=700, help="of each fit")
    parser.add_argument("--samples", type=int, default=1024, help="to choose and to report")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    options = parser.parse_args()

    figures: dict[str, dict[int, dict[str, float]]] = {}
    for name in options.model:
        bank = Bank(toy.load(name))
        figures[name] = {nfe: row(bank, nfe, options.iterations, options.samples) for nfe in options.nfe}
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))

    print("\nRMSE to the exact samples, on noise that neither fit nor choice has seen:\n")
    print("| model | NFE | RK1 | RK2 | RK1-Bespoke | RK2-Bespoke | RK2-Bespoke / RK2 |")
    print("|---|---|---|---|---|---|---|")
    for name, rows in figures.items():
        for nfe, found in rows.items():
            cells = " | ".join(f"{found[key]:.4f}" for key in ("euler", "midpoint", "rk1-bespoke", "rk2-bespoke"))
            print(f"| {name} | {nfe} | {cells} | {found['rk2-bespoke'] / found['midpoint']:.2f} |")


if __name__ == "__main__":
    main()
