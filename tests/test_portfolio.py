import math

import pytest
import torch
from bench import frontier

from bespoke_solvers import dedicated, portfolio, toy
from bespoke_solvers.bank import Bank
from bespoke_solvers.evaluation import HeldOut, Quality, held_out
from bespoke_solvers.portfolio import GRIDS, best, variants
from bespoke_solvers.schedules import CondOT, DiscreteVP
from bespoke_solvers.velocity import Model
from commands import run
from problems import F64, mixture, stable_diffusion_alphas


@pytest.fixture(scope="module")
def model():
    return toy.checkerboard()


@pytest.fixture(scope="module")
def choose(model):
    return held_out(Bank(model, batch_size=16), "choose", 0, 16)


@pytest.fixture(scope="module")
def discrete():
    schedule = DiscreteVP(stable_diffusion_alphas())
    return Model(velocity=mixture(schedule), shape=(3,), schedule=schedule, prediction="epsilon", dtype=F64)


def test_the_best_has_the_least_error_of_all_methods_on_all_grids(model, choose):
    methods = ["midpoint", "ddim", "dpmpp-2m", "deis@karras:0.03"]
    names = ["midpoint", "deis@karras:0.03", *(f"{m}@{g}" for m in ("ddim", "dpmpp-2m") for g in GRIDS)]
    errors = {name: choose.quality(dedicated.baseline(name, 6, model), model).rmse for name in names}
    assert len(set(errors.values())) == len(errors), "all different, so that the winner says something"
    found = best(methods, 6, model, choose)
    assert found.name == min(errors, key=errors.get)
    assert found.quality == choose.quality(found.table, model)
    assert found.quality.rmse == min(errors.values())
    assert torch.equal(found.table.b, dedicated.baseline(found.name, 6, model).b)


def test_the_order_of_the_methods_does_not_matter(model, choose):
    methods = ["ddim", "dpmpp-2m", "euler"]
    assert best(methods, 5, model, choose).name == best(methods[::-1], 5, model, choose).name
    assert best(["euler"], 5, model, choose).name == "euler"


def test_a_method_is_left_out_where_it_cannot_have_so_many_evaluations(model, choose):
    assert best(["midpoint", "rk4", "dpm-2"], 7, model, choose) is None
    assert best([], 6, model, choose) is None
    assert best(["midpoint", "euler"], 7, model, choose).name == "euler"
    assert best(["edm-heun"], 6, model, choose) is None
    assert best(["edm-heun"], 7, model, choose).name.startswith("edm-heun@")


def test_a_grid_in_the_name_is_the_only_one(model):
    assert set(variants("dpmpp-2m@karras:0.03", 6, model)) == {"dpmpp-2m@karras:0.03"}
    assert set(variants("rk4", 8, model)) == {"rk4"}
    assert variants("rk4", 6, model) == {}
    assert set(variants("ddim", 6, model)) == {f"ddim@{grid}" for grid in GRIDS}


def test_trailing_is_for_discrete_schedules(model, discrete):
    assert "ddim@trailing" not in variants("ddim", 6, model)
    found = variants("ddim", 6, discrete)
    assert set(found) == {f"ddim@{grid}" for grid in (*GRIDS, "trailing")}
    assert torch.equal(found["ddim@trailing"].t, dedicated.baseline("ddim@trailing", 6, discrete).t)
    choose = held_out(Bank(discrete, batch_size=4), "choose", 0, 4)
    assert best(["dpmpp-2m"], 6, discrete, choose).quality.rmse < 0.1


def test_a_grid_without_such_times_is_left_out():
    """There is no cut-off at sigma / alpha = 0.05 on a domain that begins below it."""
    late = Model(velocity=mixture(CondOT()), shape=(3,), schedule=CondOT(), domain=(0.96, 1.0), dtype=F64)
    found = variants("ddim", 4, late)
    assert "ddim@log-snr:0.05" not in found
    assert "ddim@karras:0.05" not in found
    assert {"ddim@uniform", "ddim@log-snr:0.01", "ddim@karras"} <= set(found)


def test_unknown_methods_are_named(model, choose):
    with pytest.raises(ValueError, match="unknown method 'dpm'; expected one of euler, "):
        best(["dpm"], 6, model, choose)


class Uneven(HeldOut):
    """Euler's method is best in RMSE, the midpoint method in PSNR."""

    def quality(self, table, model):
        euler = torch.equal(table.b, dedicated.baseline("euler", 6, model).b)
        return Quality(0.1, 20.0) if euler else Quality(0.2, 30.0)


@pytest.mark.parametrize("methods", [["midpoint", "euler"], ["euler", "midpoint"]])
def test_rmse_and_psnr_decide_together(model, choose, methods):
    uneven = Uneven(choose.noise, choose.x1, choose.evaluations, choose.own_error)
    assert best(methods, 6, model, uneven).name == "midpoint", "6 dB worse in the one, 10 better in the other"


class Failing(HeldOut):
    """Euler's method goes astray."""

    def quality(self, table, model):
        euler = torch.equal(table.b, dedicated.baseline("euler", 6, model).b)
        return Quality(math.nan, math.nan) if euler else super().quality(table, model)


@pytest.mark.parametrize("methods", [["midpoint", "euler"], ["euler", "midpoint"]])
def test_a_method_that_goes_astray_is_not_the_best(model, choose, methods):
    failing = Failing(choose.noise, choose.x1, choose.evaluations, choose.own_error)
    assert best(methods, 6, model, failing).name == "midpoint"


def test_grids_are_chosen_on_noise_that_no_figure_is_of(model, tmp_path, monkeypatch):
    """By `fit --start best`, `eval` and the benchmarks; of the three sets one is to fit to, one to report on."""
    seen = []

    def spied(methods, nfe, model, choose):
        seen.append(torch.cat([noise.x0 for noise in choose.noise]))
        return best(methods, nfe, model, choose)

    monkeypatch.setattr(portfolio, "best", spied)
    monkeypatch.chdir(tmp_path)
    same = ("toy:checkerboard", "--nfe", 4, "--batch-size", 8, "--tolerance", 1e-3)
    begun = ("--start", "best", "--objective", "endpoint", "--iterations", 1)
    compared = ("--samples", 8, "--baselines", "ddim", "--out", "out", "--quiet")
    run("fit", *same, *begun, "--paths", 8, "--validation-paths", 8, "--out", "s.json", "--quiet")
    run("eval", *same, *compared, "--solver", "s.json")
    measured = ("frontier", *same, "--samples", 8, "--method", "ddim", "--store", "store")
    monkeypatch.setattr("sys.argv", [str(argument) for argument in measured])
    frontier.main()
    assert len(seen) == 3
    for noise in seen:
        assert torch.equal(noise, Bank(model, batch_size=8).noise("choose", 0, 0).x0)
