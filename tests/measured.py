"""Cells of `bespoke paper` that are given, not measured."""

from bespoke_solvers.cells import Store
from bespoke_solvers.paper import plan
from bespoke_solvers.paper.plan import DPM2, EDM, QUICK, RK1, RK1_BESPOKE, RK2, RK2_BESPOKE, RK4, SCALE, TIME
from bespoke_solvers.paper.results import Results

COUNTS = QUICK._replace(nfe=(8, 20), fid_samples=50_000)
OT, VP, OTHER_OT, GUIDED = "own:ot", "own:vp", "own:other-ot", "own:guided"
PATHS = {OT: "CondOT", VP: "VP", OTHER_OT: "CondOT", GUIDED: "CondOT"}
ORDER = {RK1: 9, RK2: 6, RK4: 8, DPM2: 5, RK1_BESPOKE: 7, SCALE: 4, TIME: 3, RK2_BESPOKE: 2, EDM: 2.5}  # by the paper


def given(folder, models=(OT, VP, OTHER_OT), changed=None, spread=None, counts=COUNTS):
    """Results in which all that the paper says holds, but for the figures that are changed.

    None: the samples went astray, and have no FID. "missing": not measured.
    """
    store = Store(folder, plan.KEY)
    changed = changed or {}

    def put(model, measured, method, nfe, **values):
        store.cell(plan.key(model, measured, method, nfe, 0, counts), lambda: values)

    for model in models:
        described = {
            "schedule": {"name": PATHS[model]},
            "prediction": "epsilon" if model == VP else "flow",
            "shape": [1, 16, 16] if model == OTHER_OT else [1, 8, 8],
            "guidance": 2.0 if model == GUIDED else None,
        }
        facts = {"can_be_shown": True, "reference_evaluations": 90.0, "reference_error": 1e-5}
        put(model, "model", "exact", 0, model_is=described, **facts)
        put(model, "fid", "exact", 0, fid=1.99)
        own = ORDER | {plan.transferred(other): 4.5 for other in models if other != model}
        for method, figure in own.items():
            for nfe in plan.evaluations(method, counts.nfe):
                value = changed.get((model, method, nfe), figure / nfe)
                if value == "missing":
                    continue
                put(model, "error", method, nfe, rmse=value, rmse_se=spread, psnr=30.0)
                put(model, "fit", method, nfe, seconds=1.0, iterations=counts.iterations, best_iteration=0)
                if value is not None:
                    put(model, "fid", method, nfe, fid=changed.get((model, method, nfe, "fid"), figure))
    return Results(store, models, plan.EXPERIMENTS, counts, 0, training=dict.fromkeys(models, 100.0))
