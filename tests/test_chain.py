"""Fits of the non-stationary family: closed form, projection, end point."""

import dataclasses
from itertools import combinations, pairwise

import pytest
import torch

import bespoke_solvers
from bespoke_solvers import dedicated, families, fitting, stages, toy
from bespoke_solvers.bank import Bank, Batches
from bespoke_solvers.description import apart, describe
from bespoke_solvers.doubts import doubt
from bespoke_solvers.evaluation import Quality, held_out
from bespoke_solvers.families import NonStationary
from bespoke_solvers.fitting import CHAIN, EFFORTS, Effort
from bespoke_solvers.gauss_newton import GaussNewton
from bespoke_solvers.generic import baseline
from bespoke_solvers.grids import WARPS
from bespoke_solvers.objectives import endpoint_loss
from bespoke_solvers.schedules import VP, CondOT, Cosine
from bespoke_solvers.stages import TRIED
from bespoke_solvers.table import Table
from bespoke_solvers.velocity import Counter, Model
from chains import CHAINED, CLOSED, GRIDS, SMALL, entries, fit, on_choosing_set
from problems import CENTRES, mixture

pytestmark = pytest.mark.usefixtures("few_steps")


def test_the_chain_gets_better_and_better(chain):
    closed, projected, end = (chain[name] for name in CHAIN)
    assert closed.validation["psnr"] + 2 < projected.validation["psnr"]
    assert projected.validation["psnr"] + 1 < end.validation["psnr"]
    assert closed.validation["rmse"] > projected.validation["rmse"] > end.validation["rmse"]
    assert closed.validation["rmse"] < closed.validation["baseline_rmse"] / 2


def test_no_stage_is_worse_than_its_start_on_the_choosing_set(chain, large, model):
    qualities = [on_choosing_set(chain[name], large, model) for name in CHAIN]
    for before, after in pairwise(qualities):
        assert after.score >= before.score


def test_the_table_is_that_of_the_best_iteration(chain, large, model):
    for solver in chain.values():
        rows = {row[0]: row[2:] for row in solver.fit["history"]}
        assert on_choosing_set(solver, large, model) == pytest.approx(rows[solver.fit["best_iteration"]])


def test_each_stage_begins_as_the_one_before_ends(chain):
    closed, projected, end = (chain[name].fit["history"] for name in CHAIN)
    assert [row[0] for row in closed] == [0, CLOSED]
    assert projected[:2] == closed
    assert end[: len(projected)] == projected
    assert len(closed) < len(projected) < len(end)
    assert [chain[name].fit["stages"] for name in CHAIN] == [list(CHAIN[: i + 1]) for i in range(3)]


def test_a_chain_is_deterministic_for_a_seed(model, bank, whole):
    again = fit(model, Bank(model, batch_size=16), **CHAINED)
    assert torch.equal(entries(again), entries(whole))
    assert again.fit["history"] == whole.fit["history"]
    other = fit(model, bank, seed=1, **SMALL, objective="closed-form")
    assert other.fit["history"][1][1] != whole.fit["history"][1][1]


@pytest.mark.parametrize("objective", ["projection", "endpoint"])
@pytest.mark.parametrize("method", ["midpoint", "ddim@quadratic"])
def test_a_baseline_is_the_start(model, bank, objective, method):
    start = dedicated.baseline(method, 4, model)
    options = SMALL | {"nfe": 4, "iterations": 3, "objective": objective, "paths": 96, "validation_paths": 96}
    solver = fit(model, bank, start=start, **options)
    before = held_out(bank, "choose", 0, 96).quality(start, model)
    assert solver.fit["stages"] == [objective]
    assert solver.fit["history"][0] == [0, None, *before]
    after = on_choosing_set(solver, bank, model)
    assert after.psnr > before.psnr
    assert after.score >= before.score
    none = fit(model, bank, start=start, **options | {"iterations": 0})
    torch.testing.assert_close(none.table.b, start.b)


def test_a_start_takes_the_place_of_the_closed_form(model, bank):
    """The end point alone leads less far from a baseline."""
    start, options = dedicated.baseline("dpm-2", 4, model), SMALL | {"nfe": 4, "paths": 64, "validation_paths": 64}
    solver = fit(model, bank, start=start, **options)
    assert solver.fit["stages"] == ["projection", "endpoint"]
    alone = fit(model, bank, start=start, **options, objective="endpoint")
    assert alone.fit["stages"] == ["endpoint"]
    assert on_choosing_set(solver, bank, model).rmse < 0.5 * on_choosing_set(alone, bank, model).rmse


@pytest.mark.parametrize(
    ("family", "nfe", "start", "most"), [("rk1", 6, None, 0.02), ("rk2", 10, None, 0.006), ("ns", 4, "dpm-2", 0.06)]
)
def test_numbers_that_hardly_move_the_samples_do_not_stop_the_end_point(model, bank, family, nfe, start, most):
    """Its steps were so long in them that none led downhill, and it ended after one or two."""
    options = SMALL | {"nfe": nfe, "paths": 64, "validation_paths": 64, "objective": "endpoint", "iterations": 8}
    begin = {} if start is None else {"start": dedicated.baseline(start, nfe, model)}
    assert fit(model, bank, family=family, **options, **begin).validation["rmse"] < most


@pytest.mark.parametrize("method", ["dpmpp-2m", "heun"])
def test_projection_begins_at_any_baseline(model, bank, method):
    """The last time of one on a log-snr grid is close to 1, that of Heun's method is 1."""
    start = dedicated.baseline(method, 4, model)
    solver = fit(model, bank, **SMALL | {"nfe": 4}, objective="projection", start=start)
    assert on_choosing_set(solver, bank, model).rmse < 0.7 * held_out(bank, "choose", 0, 16).quality(start, model).rmse


@pytest.mark.parametrize("objective", CHAIN)
def test_a_start_that_is_not_learned_stays(model, bank, objective):
    euler = baseline("euler", 3)
    family = NonStationary(Table(0.1 + 0.85 * euler.t, euler.a, euler.b), learn_start=False)
    solver = fit(model, bank, **SMALL | {"family": family, "objective": objective})
    assert solver.fit["best_iteration"] > 0
    assert solver.table.t[0].item() == pytest.approx(0.1, abs=1e-12)
    assert solver.table.a[0] == 1


@pytest.mark.parametrize("objective", CHAIN)
def test_times_at_which_the_velocity_is_not_finite_are_left_out(model, bank, objective):
    """A network in half precision, say, that overflows on the way of some grids only."""

    def velocity(t, x):
        hole = ((t > 0.7) & (t < 0.8)).reshape(-1, *[1] * (t.ndim and x.ndim - 1))
        return model.velocity(t, x).masked_fill(hole, torch.inf)

    def told(stage, step=stages.ClosedForm.step):
        seen.append(step(stage))
        return seen[-1]

    broken, seen = dataclasses.replace(model, velocity=velocity), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages.ClosedForm, "step", told)
        solver = fit(broken, bank, **SMALL | {"objective": objective})
    assert 0 < seen.count(torch.inf) < GRIDS
    assert not ((solver.table.t > 0.7) & (solver.table.t < 0.8)).any()
    assert solver.validation["rmse"] < solver.validation["baseline_rmse"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_grid_that_overflows_on_paths_that_were_not_tried_gives_way_to_the_next(model, bank, rank):
    """Grids are tried on half of the batches."""
    plain = Batches(bank, model, 0, 2)
    stage = stages.ClosedForm(NonStationary(baseline("euler", 3)), plain, rank)
    losses = [stage.step() for _ in range(TRIED)]
    chosen = sorted(stage.losses, key=stage.losses.__getitem__)[rank]
    t = stage.grids[chosen][1]
    tried, untried = (paths.at(t[None]).x[0] for paths in plain)
    apart = torch.cdist(untried, tried).amin(1)
    far, radius = untried[apart.argmax()], apart.max() / 2

    def velocity(t_k, x):
        overflows = ((x - far).norm(dim=1) < radius) & ((t_k - t).abs() < 1e-6)
        return model.velocity(t_k, x).masked_fill(overflows[:, None], torch.inf)

    broken = Batches(bank, dataclasses.replace(model, velocity=velocity), 0, 2)
    stage = stages.ClosedForm(NonStationary(baseline("euler", 3)), broken, rank)
    assert [stage.step() for _ in range(TRIED)] == losses
    stage.step()
    assert stage.losses[chosen] == torch.inf
    assert len(stage.losses) == TRIED + 1, "one more was tried in its place"
    while not stage.finished:
        stage.step()
    following = sorted(stage.losses, key=stage.losses.__getitem__)[rank]
    found = stage.family().detach().on(model).t
    torch.testing.assert_close(found, stage.grids[following], rtol=0, atol=1e-9)


def test_a_velocity_that_is_finite_at_no_times_is_named(model, bank):
    broken = dataclasses.replace(model, velocity=lambda t, x: torch.full_like(x, torch.inf))
    stage = stages.ClosedForm(NonStationary(baseline("euler", 3)), Batches(bank, broken, 0, 1))
    assert [stage.step() for _ in stage.grids] == [torch.inf] * len(stage.grids)
    with pytest.raises(ValueError, match="the velocity is not finite near the exact paths, at whatever times"):
        stage.step()


def test_a_start_on_a_model_whose_domain_begins_late():
    model = Model(velocity=mixture(Cosine()), shape=(3,), schedule=Cosine(), prediction="epsilon", domain=(0.1, 0.9))
    bank = Bank(model, batch_size=8)
    start = dedicated.baseline("ddim", 3, model)
    solver = fit(model, bank, start=start, **CHAINED | {"iterations": 1})
    before = held_out(bank, "choose", 0, 16).quality(start, model)
    assert solver.fit["history"][0][2:] == pytest.approx(list(before), rel=1e-4)
    assert on_choosing_set(solver, bank, model).psnr > before.psnr


def test_a_start_from_outside_the_domain_is_named(bank, model):
    late = dataclasses.replace(model, domain=(0.1, 0.9))
    with pytest.raises(
        ValueError, match=r"evaluations from t = 0 to 0\.666667, outside the model's domain \(0\.1, 0\.9\)"
    ):
        fit(late, Bank(late, batch_size=16), start=baseline("euler", 3), **SMALL)


def test_an_effort_names_objective_paths_and_steps(model, bank, monkeypatch):
    monkeypatch.setitem(EFFORTS, "high", Effort("projection", 8, 1))
    monkeypatch.setitem(EFFORTS, "medium", Effort("projection", 8, 1))  # 64 paths where samples are small
    options = {name: value for name, value in SMALL.items() if name != "paths"}
    solver = fit(model, bank, effort="high", **options)
    assert solver.fit["objective"] == "projection"
    assert solver.fit["paths"] == 64
    assert solver.fit["iterations"] == CLOSED + 1
    own = fit(model, bank, effort="high", **SMALL, objective="endpoint", start=solver.table, iterations=0)
    assert own.fit["objective"] == "endpoint"
    assert own.fit["paths"] == 16
    assert own.fit["iterations"] == 0


def test_the_high_effort_goes_on_from_the_default_and_two_other_grids(model, bank, monkeypatch):
    """The default's chain from each of the three best grids, then all paths from the best solver so far."""
    grids, starts, best = [], [], []
    closing, beginning = stages.ClosedForm.step, GaussNewton.__init__

    def step(stage):
        loss = closing(stage)
        if stage.finished:
            grids.append(stage.family().t.detach())
        return loss

    def begin(stage, problem):
        starts.append(problem.family().t.detach())
        best[:] = [held_out(bank, "choose", 0, 16).quality(problem.family().detach().on(model), model)]
        beginning(stage, problem)

    monkeypatch.setattr(fitting, "enough", lambda model, count: count)
    monkeypatch.setitem(EFFORTS, "medium", Effort("endpoint", 16, 2))
    monkeypatch.setitem(EFFORTS, "high", Effort("endpoint", 48, 4))
    options = {"nfe": 3, "validation_paths": 16, "progress": False}
    medium = fit(model, bank, effort="medium", **options)
    monkeypatch.setattr(stages.ClosedForm, "step", step)
    monkeypatch.setattr(GaussNewton, "__init__", begin)
    high = fit(model, bank, effort="high", **options)
    assert high.fit["stages"] == [*medium.fit["stages"] * 3, "endpoint"]
    assert len(grids) == 3
    assert all(not torch.equal(one, other) for one, other in combinations(grids, 2))
    assert [torch.equal(start, grid) for start, grid in zip(starts[::2], grids, strict=False)] == [True] * 3
    before = [Quality(*row[2:]).score for row in high.fit["history"][:-4]]
    assert best[0].score >= max(before) - 1e-6
    assert (medium.fit["paths"], high.fit["paths"]) == (16, 48)
    known = len(medium.fit["history"])
    assert high.fit["history"][:known] == medium.fit["history"]
    assert len(high.fit["history"]) > known
    assert on_choosing_set(high, bank, model).score > on_choosing_set(medium, bank, model).score


def test_more_effort_is_more_work():
    low, medium, high = (EFFORTS[name] for name in ("low", "medium", "high"))
    assert low.paths < medium.paths < high.paths
    assert CHAIN.index(low.objective) < CHAIN.index(medium.objective) == CHAIN.index(high.objective)
    assert medium.steps < high.steps
    assert low.steps == len(WARPS) + 1, "all grids, and the best of them to the end"


@pytest.mark.parametrize(("shape", "count"), [((2,), 512), ((8, 8), 512), ((16, 16), 128), ((3, 32, 32), 64)])
def test_small_samples_are_taken_in_larger_numbers(model, shape, count):
    shaped = dataclasses.replace(model, shape=shape)
    assert fitting.enough(shaped, 64) == count
    ns = families.make("ns", 4)
    assert [fitting.paths_of(shaped, ns, effort) for effort in ("medium", "high")] == [count, 4 * count]
    assert fitting.paths_of(shaped, ns, "low") == max(32, count if shape != (3, 32, 32) else 0)
    assert fitting.paths_of(shaped, families.make("rk2", 4), None) == 256


def test_evaluations_are_accounted_for(model):
    """The bank's model does not count, so what is counted is what stages and validations spend, and the reporting."""
    counter, bank = Counter(model.velocity), Bank(model, batch_size=8)
    counting = dataclasses.replace(model, velocity=counter)
    describe(counting)
    apart(counting, model)
    doubt(counting)
    describing, counter.evaluations = counter.evaluations, 0
    spent = fit(counting, bank, **CHAINED | {"iterations": 1}).fit["evaluations"]
    assert spent["forward"] == counter.evaluations - describing - 2 * 3 * 16
    assert spent["backward"] == 0, "no gradient of the network was taken"
    exact = [bank.paths(0, i).evaluations for i in (0, 1)] + [bank.samples("choose", 0, i)[2] for i in (0, 1)]
    assert spent["reference"] == 8 * sum(exact)


def test_the_closed_form_costs_what_it_must(chain):
    """One evaluation for grids that begin together, and n for each grid that is tried, the first twice and the best
    thrice more, on each path; and two validations."""
    assert chain["closed-form"].fit["evaluations"]["forward"] == (1 + (TRIED + 1 + 3) * 4) * 48 + 2 * 4 * 16


def test_no_gradient_of_the_network_is_needed(model, bank, whole):
    opaque = dataclasses.replace(model, velocity=lambda t, x: torch.from_numpy(model.velocity(t, x).detach().numpy()))
    assert torch.equal(entries(fit(opaque, bank, **CHAINED)), entries(whole))


def test_no_gradient_of_the_network_is_recorded(model, bank):
    seen = []

    def velocity(t, x):
        seen.append(torch.is_grad_enabled())
        return model.velocity(t, x)

    fit(dataclasses.replace(model, velocity=velocity), bank, **CHAINED | {"iterations": 1})
    assert not any(seen)


def test_the_velocity_is_never_called_outside_the_domain():
    u, seen = mixture(VP()), []

    def velocity(t, x):
        seen.extend(t.flatten().tolist())
        return u(t, x)

    model = Model(velocity=velocity, shape=(3,), schedule=VP(), prediction="epsilon", domain=(0.0, 0.95))
    start = dedicated.baseline("ddim@log-snr", 3, model)
    fit(model, Bank(model, batch_size=16), **CHAINED | {"iterations": 1}, start=start)
    assert min(seen) >= model.t_lo
    assert max(seen) <= model.t_hi


def rounded(model):
    """The same model in a network of half precision."""
    return dataclasses.replace(model, velocity=lambda t, x: model.velocity(t, x.bfloat16().float()).bfloat16().float())


def test_a_half_precision_network_is_fitted_to_exact_paths_of_the_full_one(model, bank):
    low = rounded(model)
    solver = fit(low, bank, **CHAINED)
    assert solver.validation["rmse"] < solver.validation["baseline_rmse"] / 2
    assert solver.validation["rmse"] == pytest.approx(
        held_out(bank, "report", 0, 16).quality(solver.table, low).rmse
    ), "on samples of the rounded network against the exact ones"


def test_rk2_at_the_end_point_beats_its_base_method(model, large):
    end = fit(model, large, **SMALL | {"nfe": 4, "family": "rk2", "paths": 48}, objective="endpoint", iterations=4)
    assert end.family == "rk2"
    assert end.fit["stages"] == ["endpoint"]
    assert end.fit["evaluations"]["backward"] == 0
    assert end.validation["rmse"] < 0.7 * end.validation["baseline_rmse"]
    assert end.validation["psnr"] > end.validation["baseline_psnr"]
    assert end.table.nfe == 4


def test_rk2_at_the_end_point_finds_a_step(model, bank):
    options = SMALL | {"nfe": 8, "family": "rk2", "paths": 32}
    assert fit(model, bank, **options, objective="endpoint", iterations=2).fit["best_iteration"] > 0


def test_an_own_loss_begins_at_the_given_family(model, bank):
    family = NonStationary(baseline("midpoint", 4))
    options = SMALL | {"nfe": 4, "family": family, "iterations": 4}
    solver = fit(model, bank, **options, objective=endpoint_loss, learning_rate=1e-5, validate_every=2)
    start = held_out(bank, "choose", 0, 16).quality(baseline("midpoint", 4), model)
    assert solver.fit["objective"] == "endpoint_loss"
    assert [row[0] for row in solver.fit["history"]] == [0, 2, 4]
    assert solver.fit["history"][0][2:] == pytest.approx(list(start))
    assert solver.fit["history"][2][1] < solver.fit["history"][1][1]
    assert solver.fit["evaluations"]["backward"] == 4 * 4 * 16


def test_conditional_models_are_fitted():
    at_zero = toy.mixture_velocity(torch.zeros(1, 3), 0.3, CondOT())

    def velocity(t, x, label):
        mean = CENTRES[label].float()
        return at_zero(t, x - (t.reshape(-1, 1) if t.ndim else t) * mean) + mean + 0.3 * torch.sin(4 * x)

    model = Model(
        velocity=velocity,
        shape=(3,),
        schedule=CondOT(),
        draw_condition=lambda generator: torch.randint(4, (), generator=generator),
    )
    solver = fit(model, Bank(model, batch_size=16), **SMALL, objective="projection", iterations=1)
    assert solver.validation["rmse"] < solver.validation["baseline_rmse"] / 2


def test_a_solver_of_the_chain_survives_its_file(whole, model, tmp_path):
    whole.save(tmp_path / "s.json")
    again = bespoke_solvers.solver.load(tmp_path / "s.json")
    assert torch.equal(entries(again), entries(whole))
    family = NonStationary(baseline("euler", 3))
    family.load_state_dict({name: torch.tensor(value, dtype=torch.float64) for name, value in again.theta.items()})
    assert torch.equal(family().on(model).b, whole.table.b)
    assert fitting.fit is bespoke_solvers.fit


def test_a_loss_of_ones_own_is_minimised_whatever_it_is_called(model, bank):
    calls = []

    def endpoint(family, paths):
        calls.append(1)
        return endpoint_loss(family, paths)

    fit(model, bank, **SMALL, objective=endpoint, iterations=2)
    assert len(calls) == 2
