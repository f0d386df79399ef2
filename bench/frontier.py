"""Every solver side by side on the same noise: python -m bench.frontier toy:digits --nfe 8 10 --store FOLDER.

Computes the cells that the store does not have yet; `python -m bench.tables` draws them.
"""

import argparse
import itertools
import time
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench.models import full_precision, load
from bench.store import KEY, Store, table_of
from bespoke_solvers import dedicated, gauss_newton, portfolio
from bespoke_solvers.bank import Bank
from bespoke_solvers.cells import numbers_of
from bespoke_solvers.evaluation import HeldOut, held_out
from bespoke_solvers.families import NonStationary, make
from bespoke_solvers.fitting import EFFORTS, STEPS, enough, fit
from bespoke_solvers.generic import baseline
from bespoke_solvers.objectives import endpoint_loss
from bespoke_solvers.paper import plan
from bespoke_solvers.solver import Solver
from bespoke_solvers.stages import Loss
from bespoke_solvers.table import Table
from bespoke_solvers.velocity import Model

DEFAULT = "ns, default"
CHAIN = {"ns, closed form": "closed-form", "ns, projection": "projection", DEFAULT: "endpoint"}  # each from the last
BNS = "bns from euler"
PRINTED = "rk2-bespoke, as printed"  # by the paper's Algorithm 2: new paths in every step
ADAM: dict[str, tuple[str, str | Loss]] = {  # family and objective
    "rk1-bespoke, bound": ("rk1", "bound"),
    "rk2-bespoke, bound": ("rk2", "bound"),
    PRINTED: ("rk2", "bound"),
    BNS: ("ns", endpoint_loss),
}
GAUSS_NEWTON: dict[str, dict[str, Any]] = {
    "rk1-bespoke, end point": {"family": "rk1", "objective": "endpoint"},
    "rk2-bespoke, end point": {"family": "rk2", "objective": "endpoint"},
}
HIGH = "ns, high effort"
TRANSFERRED = "ns, fitted in float32"  # the default's table of the network in float32, used in half precision
REFINED = "ns, fitted in float32, then here"
LEARNED = (*ADAM, *GAUSS_NEWTON, *CHAIN, HIGH)


class Fitted(NamedTuple):
    """What came out of a fit, and of the fits that it began from."""

    table: Table
    theta: dict[str, Any]
    record: dict[str, Any]


def adam_budget(paths: int | str, steps: int, learning_rate: float) -> str:
    """What a fit by Adam may spend, in words."""
    return f"{paths} paths, {steps} steps" + ("" if learning_rate == 2e-3 else f" at {learning_rate:g}")


def cost(spent: dict[str, int]) -> int:
    """What a fit took in evaluations; a backward pass counts as two more."""
    return spent["reference"] + spent["forward"] + 2 * spent["backward"]


class Frontier:
    """One model, its exact samples, and the solvers on it."""

    def __init__(self, name: str, options: argparse.Namespace, store: Store) -> None:
        self.name, self.options, self.store = name, options, store
        self.chain: dict[tuple[str, int], Fitted] = {}

    @cached_property
    def model(self) -> Model:
        """The network that the solvers call."""
        return load(self.name, self.options.models, self.options.device)

    @cached_property
    def paths(self) -> int:
        """How many are fitted to."""
        found: int = self.options.paths or enough(self.model, EFFORTS["medium"].paths)
        if found % self.options.batch_size:
            raise SystemExit(f"{found} paths are no multiple of the batch size, {self.options.batch_size}")
        return found

    @cached_property
    def bank(self) -> Bank:
        """The exact paths: those of the network in full precision, as it is."""
        options, full = self.options, full_precision(self.name)
        exact = self.model if full == self.name else load(full, options.models, options.device)
        kept = plan.file_name(f"{full} {options.tolerance:g} {options.batch_size}")  # as `bespoke paper` calls it
        folder = options.banks and options.banks / kept
        tolerance = {"rtol": options.tolerance, "atol": options.tolerance}
        return Bank(exact, folder, batch_size=options.batch_size, budget=2**36, **tolerance)

    @cached_property
    def report(self) -> HeldOut:
        """The samples that all figures are of."""
        found = held_out(self.bank, "report", self.options.seed, self.options.samples)
        print(f"{self.name}: exact with {found.evaluations:.0f} NFE to {found.own_error:.0e}", flush=True)
        return found

    @cached_property
    def choose(self) -> HeldOut:
        """The samples that grids are chosen by."""
        options = self.options
        return held_out(self.bank, "choose", options.seed, min(options.samples, options.grid_samples))

    def key(self, method: str, nfe: int) -> dict[str, Any]:
        """The store's key of a cell."""
        options = self.options
        values = (self.name, method, nfe, options.seed, self.budget(method), options.samples, options.tolerance)
        key = dict(zip(KEY, values, strict=True))
        chosen = (self.store.get(key) or {}).get("choose", options.choose)
        if options.choose not in (None, chosen):
            raise SystemExit(f"{key} is in the store, chosen on {chosen} samples; take these, or another --store")
        return key

    def budget(self, method: str) -> str:
        """What a fit may spend, in words; a method that is not fitted has none."""
        paths, steps = self.paths, 0
        if method in ADAM:
            return adam_budget("new" if method == PRINTED else paths, self.options.adam, self.options.learning_rate)
        if method in GAUSS_NEWTON:
            rest = "" if self.options.pays is None else f", the last gaining under {self.options.pays:g}"
            return f"{paths} paths, {self.options.gauss_newton} steps{rest}"
        if method in CHAIN:
            steps = EFFORTS["medium"].steps if method == DEFAULT else STEPS[CHAIN[method]]
        elif method in (TRANSFERRED, REFINED):
            return self.budget(DEFAULT)
        elif method == HIGH:
            paths, steps = enough(self.model, EFFORTS["high"].paths), EFFORTS["high"].steps
        else:
            return "grid chosen" if method in dedicated.METHODS else ""
        return f"{paths} paths, {steps} steps"

    def measure(self, method: str, nfe: int) -> dict[str, Any] | None:
        """The record of a cell; None where the method cannot have so few evaluations."""
        if method == TRANSFERRED:
            return self.quality(self.transferred(nfe))
        if method == REFINED:
            refined = {"objective": "endpoint", "iterations": EFFORTS["medium"].steps, "paths": self.paths}
            return self.fit(nfe, refined | {"start": self.transferred(nfe)}).record
        if method in CHAIN:
            return self.chained(method, nfe).record
        if method not in LEARNED:
            return self.best_grid(method, nfe)
        if "rk2" in method and nfe % 2:
            return None
        if method in ADAM:
            return self.by_adam(method, nfe)
        if method == HIGH:
            return self.fit(nfe, {"effort": "high"}).record
        return self.by_gauss_newton(method, nfe)

    def by_adam(self, method: str, nfe: int) -> dict[str, Any]:
        """A fit by gradient, from the longest one with fewer steps on, if there is one, with new moments of Adam."""
        options, (name, objective) = self.options, ADAM[method]
        family = NonStationary(baseline("euler", nfe), learn_start=False) if name == "ns" else make(name, nfe)
        began, steps = None if method == PRINTED else self.shorter(method, nfe), options.adam
        if began:
            family.load_state_dict(
                {part: torch.tensor(value, dtype=torch.float64) for part, value in began["theta"].items()}
            )
            steps -= began["history"][-1][0]
        paths = "fresh" if method == PRINTED else self.paths
        chosen = {"family": family, "objective": objective, "iterations": steps, "paths": paths}
        fitted = self.fit(nfe, chosen | {"learning_rate": options.learning_rate}, began)
        return fitted.record | {"theta": fitted.theta}

    def by_gauss_newton(self, method: str, nfe: int) -> dict[str, Any]:
        """A fit of the paper's family by the end point, until steps gain less than usual where that was asked for."""
        options, usual = self.options, gauss_newton.PAYS
        counts = {"iterations": options.gauss_newton, "paths": self.paths}
        gauss_newton.PAYS = usual if options.pays is None else options.pays
        try:
            return self.fit(nfe, GAUSS_NEWTON[method] | counts).record
        finally:
            gauss_newton.PAYS = usual

    def shorter(self, method: str, nfe: int) -> dict[str, Any] | None:
        """The record of the longest fit with fewer steps that kept its theta."""
        key, rates = self.key(method, nfe), filter(None, (self.options.learning_rate, self.options.begin))
        fewer = itertools.product(reversed(range(1, self.options.adam)), rates)
        budgets = (adam_budget(self.paths, steps, rate) for steps, rate in fewer)
        found = (self.store.get(key | {"budget": budget}) for budget in budgets)
        return next((record for record in found if record and "theta" in record), None)

    def best_grid(self, method: str, nfe: int) -> dict[str, Any] | None:
        """A solver that is not fitted, on the time grid that is best on the choosing set."""
        used = next((used for used in range(nfe, 0, -1) if dedicated.possible(method, used)), nfe)
        found = portfolio.best([method], used, self.model, self.choose)
        return found and {"name": found.name, "used": used, **self.quality(found.table)}

    def quality(self, table: Table) -> dict[str, Any]:
        """RMSE, its standard error, and PSNR on the reporting set."""
        return {
            **self.report.figures(self.report.sample(table, self.model)),
            "reference_evaluations": self.report.evaluations,
            "reference_error": self.report.own_error,
        }

    def transferred(self, nfe: int) -> Table:
        """The table that was fitted to the network in full precision, from the store."""
        wanted = self.key(DEFAULT, nfe) | {"model": full_precision(self.name)}
        record = self.store.records.get(tuple(wanted[name] for name in KEY))
        if record is None:
            raise SystemExit(f"{TRANSFERRED} needs the cell {wanted} with its table in the store; compute it first")
        return table_of(record)

    def chained(self, method: str, nfe: int) -> Fitted:
        """A stage of the default, begun where the one before it ended, which is measured, too."""
        if (method, nfe) not in self.chain:
            before = list(CHAIN)[: list(CHAIN).index(method)]
            chosen: dict[str, Any] = {"objective": CHAIN[method], "paths": self.paths}
            if method == DEFAULT:
                chosen["iterations"] = EFFORTS["medium"].steps
            began = self.chained(before[-1], nfe) if before else None
            start = {"start": began.table} if began else {}
            self.chain[method, nfe] = self.fit(nfe, chosen | start, began and began.record)
        return self.chain[method, nfe]

    def fit(self, nfe: int, chosen: dict[str, Any], before: dict[str, Any] | None = None) -> Fitted:
        """A fit, with what it and the fits before it cost."""
        options = self.options
        counts = {"seed": options.seed, "validation_paths": options.choose, "validate_every": options.validate_every}
        solver = fit(self.model, nfe=nfe, bank=self.bank, progress=False, **counts, **chosen)
        spent, seconds, history = solver.fit["evaluations"], solver.fit["seconds"], solver.fit["history"]
        rows = [[i, *(None if v is None else float(f"{v:.5g}") for v in row)] for i, *row in history]
        best, more = solver.fit["best_iteration"], {}
        if before:
            spent = {name: spent[name] + (name != "reference") * before["evaluations"][name] for name in spent}
            seconds += before["seconds"] - self.solving(solver)
            first = before["history"][-1][0]
            rows = before["history"] + [[first + i, *row] for i, *row in rows[1:]]
            best = first + best if best else before["best_iteration"]
            more = {"began": before["budget"]} if "budget" in before else {}
        record = {
            **self.quality(solver.table),
            "choose": solver.fit["validation_paths"],
            "evaluations": spent,
            "cost": cost(spent),
            "seconds": round(seconds, 1),
            "best_iteration": best,
            **more,
            "history": rows,
            "table": numbers_of(solver.table),
        }
        return Fitted(solver.table, solver.theta, record)

    def solving(self, solver: Solver) -> float:
        """The seconds of exact paths, which are part of a fit's; fits that go on from others use the same."""
        batches = {"fit": solver.fit["batches"], "choose": -(-solver.fit["validation_paths"] // self.bank.batch_size)}
        return sum(self.bank.seconds(noise_set, solver.fit["seed"], count) for noise_set, count in batches.items())


def warm_up(model: Model, batch_size: int) -> None:
    """A small fit, after which the process has loaded and chosen all that a fit runs on a GPU."""
    bank = Bank(model, batch_size=batch_size)
    fit(model, nfe=5, bank=bank, paths=batch_size, validation_paths=batch_size, iterations=1, progress=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="+", help="toy:digits, cifar10-fm-ot, cifar10-eps-vp@w2, ...")
    parser.add_argument("--models", type=Path, help="the folder of the networks")
    parser.add_argument("--method", nargs="+", default=[*dedicated.NAMES, *LEARNED], help="which ones")
    parser.add_argument("--nfe", nargs="+", type=int, default=[5, 6, 8, 10, 16, 20])
    parser.add_argument("--paths", type=int, help="to fit to; by default as many as `fit` takes")
    parser.add_argument("--choose", type=int, help="samples to choose a fit's best step by; by default likewise")
    parser.add_argument("--samples", type=int, default=256, help="to report on")
    parser.add_argument("--grid-samples", type=int, default=1024, help="at most, to choose a baseline's grid by")
    parser.add_argument("--adam", type=int, default=700, help="steps of the fits by gradient")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="of those")
    parser.add_argument(
        "--begin", type=float, help="rate of the shorter fit that those go on from; the same by default"
    )
    parser.add_argument(
        "--gauss-newton", type=int, default=30, help="steps at most of RK1/RK2-Bespoke by the end point"
    )
    parser.add_argument("--pays", type=float, help="nats of MSE that each of those must gain, if not as many as usual")
    parser.add_argument("--validate-every", type=int, default=25, help="of those")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--tolerance", type=float, default=1e-6, help="of the exact paths")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after that time")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--banks", type=Path, help="keep exact paths in this folder")
    parser.add_argument("--warm-up", action="store_true", help="fit once before, for the seconds of a GPU at work")
    parser.add_argument("--store", type=Path, default=Path("bench/results/frontier"))
    options = parser.parse_args()
    torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 4
    store, started = Store(options.store), time.monotonic()
    for name in options.model:
        if options.warm_up and time.monotonic() - started < 60 * options.minutes:
            warm_up(load(name, options.models, options.device), options.batch_size)
        frontier = Frontier(name, options, store)
        for nfe in options.nfe:
            for method in options.method:
                if time.monotonic() - started < 60 * options.minutes:
                    store.cell(frontier.key(method, nfe), lambda: frontier.measure(method, nfe))  # noqa: B023


if __name__ == "__main__":
    main()
