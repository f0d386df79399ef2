import dataclasses
import inspect

import numpy as np
import pytest
import torch

import bespoke_solvers
from bespoke_solvers import Model, families, fitting, reference, toy
from bespoke_solvers.bank import Bank, Batches
from bespoke_solvers.generic import HEUN, baseline
from bespoke_solvers.objectives import bespoke_loss, endpoint_loss
from bespoke_solvers.schedules import CondOT
from bespoke_solvers.velocity import Counter
from problems import F64

QUICK = {
    "nfe": 6,
    "family": "rk2",
    "iterations": 30,
    "paths": 16,
    "validation_paths": 16,
    "validate_every": 10,
    "progress": False,
}


@pytest.fixture(scope="module")
def model():
    return toy.checkerboard()


def fit(model, **options):
    """A fit in batches of eight."""
    options.setdefault("bank", Bank(model, batch_size=8))
    return bespoke_solvers.fit(model, **options)


def entries(solver):
    return torch.cat([solver.table.t, solver.table.a, solver.table.b.flatten()])


def test_a_fit_is_deterministic_for_a_seed(model):
    one, two, other = (fit(model, seed=seed, **QUICK) for seed in (0, 0, 1))
    assert torch.equal(entries(one), entries(two))
    assert not torch.equal(entries(one), entries(other))


@pytest.mark.parametrize("paths", [16, "fresh"])
def test_an_interrupted_fit_ends_where_an_undisturbed_one_does(model, tmp_path, monkeypatch, paths):
    options = QUICK | {"paths": paths}
    whole = fit(model, **options)
    checkpoint = tmp_path / "fit.ckpt"
    steps = []

    def stops(family, batch):
        steps.append(1)
        if len(steps) == 17:
            raise KeyboardInterrupt
        return bespoke_loss(family, batch)

    monkeypatch.setattr(fitting, "bespoke_loss", stops)
    with pytest.raises(KeyboardInterrupt):
        fit(model, checkpoint=checkpoint, **options)
    resumed = fit(model, checkpoint=checkpoint, **options)
    assert len(steps) == 17 + 20, "the work since iteration 10 was lost, not more"
    assert torch.equal(entries(resumed), entries(whole))
    assert resumed.fit["history"] == whole.fit["history"]
    assert [file.name for file in tmp_path.iterdir()] == ["fit.ckpt"]


def test_a_checkpoint_of_another_fit_is_refused(model, tmp_path):
    fit(model, checkpoint=tmp_path / "c", **QUICK)
    with pytest.raises(ValueError, match=r"another fit: nfe 6 \(here 8\)"):
        fit(model, checkpoint=tmp_path / "c", **QUICK | {"nfe": 8})


def test_a_checkpoint_of_a_family_that_began_elsewhere_is_refused(model, tmp_path):
    euler, midpoint = (families.NonStationary(baseline(name, 6)) for name in ("euler", "midpoint"))
    options = QUICK | {"objective": endpoint_loss, "iterations": 2, "checkpoint": tmp_path / "c"}
    first = fit(model, **options | {"family": euler})
    with pytest.raises(ValueError, match="another fit: began"):
        fit(model, **options | {"family": midpoint})
    assert torch.equal(entries(fit(model, **options | {"family": euler})), entries(first))


def test_more_iterations_go_on_from_a_finished_fit(model, tmp_path):
    fit(model, checkpoint=tmp_path / "c", **QUICK)
    longer = fit(model, checkpoint=tmp_path / "c", **QUICK | {"iterations": 50})
    assert torch.equal(entries(longer), entries(fit(model, **QUICK | {"iterations": 50})))


def test_the_best_iteration_is_kept(model):
    """With a learning rate that destroys the solver, an earlier one is what comes back."""
    solver = fit(model, learning_rate=1.0, **QUICK)
    errors = [rmse for _, _, rmse, _ in solver.fit["history"]]
    assert solver.fit["best_iteration"] == 10 * errors.index(min(errors))
    assert min(errors) < errors[-1]
    assert solver.fit["best_iteration"] < 30
    found = families.make("rk2", 6)
    found.load_state_dict({name: torch.tensor(value, dtype=F64) for name, value in solver.theta.items()})
    assert torch.equal(found().b, solver.table.b)


def test_the_three_noise_sets_are_used_for_their_purposes(model, monkeypatch):
    used = []

    def spy(model, noise, **options):
        used.append(noise.x0[0])
        return reference.solve(model, noise, **options)

    monkeypatch.setattr("bespoke_solvers.bank.solve", spy)
    fit(model, **QUICK)
    bank = Bank(model, batch_size=8)
    expected = [bank.noise(noise_set, 0, i).x0[0] for noise_set in ("choose", "report", "fit") for i in (0, 1)]
    assert torch.equal(torch.stack(used), torch.stack(expected)), "and no batch is solved twice"


def test_kept_paths_are_solved_once(model):
    counter = Counter(model.velocity)
    bank = Bank(dataclasses.replace(model, velocity=counter), batch_size=8)
    bank.fill(0, 20)
    calls = counter.calls
    kept, fresh = Batches(bank, bank.model, 0, 3), Batches(bank, bank.model, 0, None)
    batches = [kept.turn(i) for i in range(6)]
    assert counter.calls == calls
    assert all(torch.equal(batches[i].x1, batches[i + 3].x1) for i in range(3))
    assert torch.equal(fresh.turn(1).x1, batches[1].x1)
    assert not torch.equal(fresh.turn(4).x1, batches[4].x1)
    assert fresh.evaluations == counter.evaluations - kept.evaluations


def test_the_first_batches_are_read_when_it_is_their_turn(model, tmp_path, monkeypatch):
    bank = Bank(model, tmp_path, batch_size=8)
    bank.fill(0, 24)
    monkeypatch.setattr("bespoke_solvers.bank.IN_MEMORY", 0)
    batches, read = Batches(bank, model, 0, 3), []
    paths = bank.paths
    monkeypatch.setattr(bank, "paths", lambda seed, index: read.append(index) or paths(seed, index))
    first = batches[:2]
    assert len(first) == 2
    assert len(read) < 2, "the shape checks of the tests look at one"
    assert all(torch.equal(batch.x1, paths(0, index).x1) for index, batch in enumerate(first))
    with pytest.raises(IndexError):
        first[2]
    with pytest.raises(IndexError, match="batches 1 to 3; expected the first of them"):
        batches[1:]


def test_evaluations_are_accounted_for(model):
    counter = Counter(model.velocity)
    counted = dataclasses.replace(model, velocity=counter)
    bank = Bank(counted, batch_size=8)
    spent = fit(counted, bank=bank, **QUICK).fit["evaluations"]
    assert spent["backward"] == 30 * 6 * 8
    assert spent["forward"] == spent["backward"] + 4 * 6 * 16
    exact = [bank.paths(0, i).evaluations for i in (0, 1)] + [bank.samples("choose", 0, i)[2] for i in (0, 1)]
    assert spent["reference"] == 8 * sum(exact)
    assert spent["reference"] + spent["forward"] < counter.evaluations, "reporting is no part of the fit"
    again = fit(counted, bank=bank, **QUICK).fit["evaluations"]
    assert again == spent, "what was in the bank already counts the same"


@pytest.mark.parametrize(("learn", "fixed"), [("time", ("theta_s", "theta_ds")), ("scale", ("theta_t", "theta_dt"))])
def test_only_time_or_only_scale_is_learned(model, learn, fixed):
    solver = fit(model, **QUICK | {"family": families.make("rk2", 6, learn)})
    start = families.make("rk2", 6).state_dict()
    for name, value in solver.theta.items():
        assert (value == start[name].tolist()) == (name in fixed), name


def test_another_base_method_can_be_fitted(model):
    solver = fit(model, learning_rate=0.02, **QUICK | {"family": families.Bespoke(3, HEUN)})
    assert solver.family == "heun-bespoke"
    assert solver.validation["rmse"] < solver.validation["baseline_rmse"]


@pytest.mark.parametrize("objective", ["bound", "endpoint"])
def test_a_fit_is_the_same_in_whatever_mode_it_is_called(model, objective):
    """Both objectives differentiate; without derivatives the end point would keep its start, and say nothing."""
    given = QUICK | {"objective": objective, "iterations": 2}
    found = fit(model, **given, bank=Bank(model))
    assert found.validation["rmse"] < found.validation["baseline_rmse"]
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            bank = Bank(model)
            bank.paths(0, 0)  # kept for the fit
            assert torch.equal(fit(model, **given, bank=bank).table.b, found.table.b)


def test_an_objective_of_ones_own(model):
    def end_point(family, paths):
        from bespoke_solvers.metrics import norm
        from bespoke_solvers.table import sample

        return norm(sample(family().on(paths.model), paths.model.bind(), paths.noise.x0) - paths.x1)

    solver = fit(model, objective=end_point, **QUICK)
    assert solver.fit["objective"] == "end_point"
    assert solver.validation["rmse"] < solver.validation["baseline_rmse"]


def test_conditional_models_are_fitted():
    centres = torch.tensor([[1.0, 0.0], [-1.0, 0.5], [0.0, -1.0]], dtype=F64)
    fields = [toy.mixture_velocity(centre[None], 0.2, CondOT()) for centre in centres]

    def velocity(t, x, label):
        rows = [fields[k](s, y[None]) for k, s, y in zip(label.tolist(), t.expand(len(x)), x, strict=True)]
        return torch.cat(rows)

    model = Model(
        velocity=velocity,
        shape=(2,),
        schedule=CondOT(),
        draw_condition=lambda generator: torch.randint(3, (), generator=generator),
    )
    solver = fit(model, **QUICK | {"iterations": 10})
    assert solver.validation["rmse"] < solver.validation["baseline_rmse"]


def test_a_batch_whose_graph_is_too_large_is_differentiated_in_parts(model):
    """The fit is the same but for rounding; where not even one path fits, it says so."""

    def small(most):
        def velocity(t, x):
            if torch.is_grad_enabled() and len(x) > most:
                raise torch.cuda.OutOfMemoryError(f"no room for {len(x)}")
            return model.velocity(t, x)

        return dataclasses.replace(model, velocity=velocity)

    given = QUICK | {"nfe": 4, "iterations": 6}
    whole, parts = fit(model, **given), fit(small(12), **given)  # the two steps of eight paths are one call
    torch.testing.assert_close(parts.table.b, whole.table.b, rtol=1e-4, atol=1e-6)
    assert parts.fit["evaluations"]["backward"] == whole.fit["evaluations"]["backward"] + 16, "what failed was spent"
    with pytest.raises(torch.cuda.OutOfMemoryError, match="no room for 2"):
        fit(small(1), **given)


def test_a_loss_that_is_not_finite_stops_the_fit(model):
    with pytest.raises(ValueError, match="loss is nan at iteration 0"):
        fit(model, objective=lambda family, paths: family.theta_t.sum()[None] * torch.nan, **QUICK)


def test_a_checkpoint_of_another_model_is_refused(model, tmp_path):
    fit(model, checkpoint=tmp_path / "c", **QUICK)
    with pytest.raises(ValueError, match="another fit: schedule"):
        fit(toy.load("toy:checkerboard-vp"), checkpoint=tmp_path / "c", **QUICK)
    whole = (tmp_path / "c").read_bytes()
    for damaged in (b"not a checkpoint", whole[:-100], whole[:5_000], whole[:500], b""):
        (tmp_path / "c").write_bytes(damaged)
        with pytest.raises(ValueError, match="no checkpoint of a fit"):
            fit(model, checkpoint=tmp_path / "c", **QUICK)


def test_the_network_is_left_alone(model):
    net = torch.nn.Linear(2, 2)
    own = Model(velocity=lambda t, x: net(x) * t.reshape(-1, 1), shape=(2,), schedule=CondOT())
    fit(own, **QUICK | {"iterations": 5})
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_given_family_is_not_changed(model):
    family = families.make("rk2", 6)
    fit(model, **QUICK | {"family": family})
    assert all(
        torch.equal(a, b) for a, b in zip(family.parameters(), families.make("rk2", 6).parameters(), strict=True)
    )


def test_a_full_bank_does_not_lose_a_fit(model):
    """The budget is spent on the paths to fit to last, so that choosing and reporting have theirs."""
    bank = Bank(model, batch_size=8, budget=20_000)
    with pytest.warns(UserWarning, match="goes on with"):
        solver = fit(model, bank=bank, **QUICK | {"paths": 1000})
    assert solver.validation["samples"] == 16


def test_a_velocity_that_cannot_take_times_for_each_sample_is_refused():
    model = Model(velocity=lambda t, x: -x * t, shape=(1, 4, 4), schedule=CondOT())
    with pytest.raises(ValueError, match="one value per sample"):
        fit(model, **QUICK)


def test_what_changes_from_call_to_call_is_refused():
    net = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 2))
    with pytest.raises(ValueError, match=r"net.eval\(\)"):
        fit(Model(velocity=lambda t, x: net(x), shape=(2,), schedule=CondOT()), **QUICK)
    careless = {"shape": (2,), "schedule": CondOT(), "draw_condition": lambda generator: torch.randint(1000, ())}
    with pytest.raises(ValueError, match="must draw from its generator"):
        fit(Model(velocity=lambda t, x, c: -x, **careless), **QUICK)
    with pytest.raises(ValueError, match=r"failed on a t of \(\) and an x of \(4, 3\).*Check shape"):
        fit(Model(velocity=lambda t, x: net(x), shape=(3,), schedule=CondOT()), **QUICK)


def test_exact_results_can_be_saved(tmp_path):
    """Where the field is 0 every solver is exact: the error is 0 and the PSNR must stay a number."""
    still = Model(velocity=lambda t, x: 0 * x, shape=(2,), schedule=CondOT())
    solver = fit(still, **QUICK | {"iterations": 1})
    solver.save(tmp_path / "s.json")
    assert solver.validation["rmse"] == 0


def test_wrong_requests_are_named(model):
    with pytest.raises(ValueError, match="bank was made for another model"):
        fit(model, nfe=6, bank=Bank(toy.load("toy:checkerboard-vp")))
    with pytest.raises(ValueError, match="unknown objective 'mse' for ns; expected one of closed-form"):
        fit(model, nfe=6, objective="mse")
    with pytest.raises(ValueError, match="multiple of 2, got 7"):
        fit(model, nfe=7, family="rk2")
    with pytest.raises(ValueError, match="family has 6 evaluations, but nfe = 8"):
        fit(model, nfe=8, family=families.make("rk2", 6))


def test_a_reference_too_rough_for_the_solver_is_reported(model, monkeypatch):
    monkeypatch.setattr("bespoke_solvers.bank.own_error", lambda *arguments, **options: 1.0)
    with pytest.warns(UserWarning, match="reference's own RMSE, 1.0e\\+00, is over a third of the solver's"):
        fit(model, **QUICK)


@pytest.mark.parametrize(
    ("paths", "iterations", "words"),
    [(None, 2.5, "iterations must be a whole number of at least 0, got 2.5"), (True, None, "paths must .* got True")],
)
def test_amounts_are_whole_numbers(paths, iterations, words):
    amounts, rest = inspect.unwrap(fitting.amounts), (None, None, ["endpoint"])
    with pytest.raises(ValueError, match=words):
        amounts(toy.checkerboard(), families.make("ns", 4), *rest, paths, iterations)
    assert amounts(toy.checkerboard(), families.make("ns", 4), *rest, np.int64(7), np.int64(3))[0] == 7


def test_a_fit_that_goes_astray_keeps_its_best_solver(model):
    with pytest.warns(UserWarning, match=r"went astray in iteration \d+ .*; take a lower learning rate"):
        solver = fit(model, **QUICK | {"learning_rate": 1e30, "iterations": 10, "validate_every": 1})
    assert solver.fit["iterations"] < 10
    assert solver.validation["rmse"] <= solver.validation["baseline_rmse"]
    assert solver.table.b.isfinite().all()


def test_the_progress_bar_shows_the_error_and_the_baselines(model, capsys):
    fit(model, **QUICK | {"progress": True})
    shown = capsys.readouterr().err
    assert "rk2, 6 NFE" in shown
    assert "exact paths" in shown
    assert "rmse=0." in shown
    assert "start=0." in shown


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model": torch.nn.Linear(2, 2)}, "got a Linear to fit to; expected a bespoke_solvers.Model"),
        ({"nfe": "8"}, "nfe must be a whole number of at least 1, got '8'"),
        ({"nfe": [4, 8]}, r"got \[4, 8\]; for several, fit one after another"),
        ({"nfe": 8.0}, "got 8.0"),
        ({"nfe": 0}, "got 0"),
        ({"bank": "folder"}, "got a str as bank; expected a Bank"),
        ({"start": "s.json"}, r"got a str to start from; expected a table .*, solver\.table say"),
        ({"validation_paths": 32.0}, "validation_paths must be a whole number of at least 1, got 32.0"),
        ({"family": "rk2", "learning_rate": 0.0}, "the learning rate must be positive and finite, got 0"),
        ({"validate_every": 0}, "validate_every must be a whole number of at least 1, got 0"),
    ],
    ids=str,
)
def test_what_cannot_be_fitted_is_named(changed, words):
    """Without the tests' own checks of types, which would speak first."""
    arguments = {"model": toy.checkerboard(), "nfe": 4} | changed
    with pytest.raises(ValueError, match=words):
        inspect.unwrap(fitting.fit)(arguments.pop("model"), **arguments)
