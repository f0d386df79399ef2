"""The course of a fit: what is kept of its stages, and how it goes on after an interruption."""

import dataclasses
import math

import pytest
import torch

from bespoke_solvers import checkpoints, pictures
from bespoke_solvers.endpoint import EndPoint
from bespoke_solvers.evaluation import HeldOut, Quality
from bespoke_solvers.fitting import EFFORTS, STEPS, Effort
from bespoke_solvers.gauss_newton import GaussNewton
from bespoke_solvers.generic import baseline
from bespoke_solvers.stages import Adam, ClosedForm
from bespoke_solvers.table import sample
from bespoke_solvers.velocity import Counter
from chains import CHAINED, CLOSED, SMALL, entries, fit

pytestmark = pytest.mark.usefixtures("few_steps")


def interrupted(monkeypatch, when):
    """The first step for which `when(steps)` will be interrupted; returns the stages of all steps that are begun."""
    steps, done = [], []

    def stops(method):
        def counting(self):
            steps.append(type(getattr(self, "problem", self)).__name__)
            if when(steps) and not done:
                done.append(len(steps))
                raise KeyboardInterrupt
            return method(self)

        return counting

    for kind in (ClosedForm, GaussNewton):
        monkeypatch.setattr(kind, "step", stops(kind.step))
    return steps


@pytest.mark.parametrize(
    ("stage", "step"),
    [("ClosedForm", 4), ("Projection", 1), ("Projection", 2), ("EndPoint", 1)],
)
def test_an_interrupted_chain_ends_where_an_undisturbed_one_does(
    model, bank, whole, tmp_path, monkeypatch, stage, step
):
    checkpoint, steps = tmp_path / "fit.ckpt", interrupted(monkeypatch, lambda steps: steps.count(stage) == step)
    with pytest.raises(KeyboardInterrupt):
        fit(model, bank, checkpoint=checkpoint, **CHAINED)
    done = len(steps) - 1
    assert torch.load(checkpoint, weights_only=True)["iteration"] == (0 if stage == "ClosedForm" else done)
    resumed = fit(model, bank, checkpoint=checkpoint, **CHAINED)
    assert torch.equal(entries(resumed), entries(whole))
    for name in ("history", "evaluations", "iterations", "best_iteration"):
        assert resumed.fit[name] == whole.fit[name], name
    lost = len(steps) - whole.fit["iterations"]
    assert lost == (done + 1 if stage == "ClosedForm" else 1), "no more than the step it was in, or the closed form"


@pytest.mark.parametrize("stage", ["ClosedForm", "Projection", "EndPoint"])
def test_an_interrupted_high_effort_ends_where_an_undisturbed_one_does(model, bank, tmp_path, monkeypatch, stage):
    """In the second of its chains, which goes on from its own grid and not from the best solver so far."""
    monkeypatch.setitem(EFFORTS, "medium", Effort("endpoint", 16, 2))
    monkeypatch.setitem(EFFORTS, "high", Effort("endpoint", 16, 1))
    options = {**SMALL, "effort": "high"}
    undisturbed = fit(model, bank, **options)
    interrupted(monkeypatch, lambda steps: steps[-1] == stage and steps.count("ClosedForm") == 2 * CLOSED)
    with pytest.raises(KeyboardInterrupt):
        fit(model, bank, checkpoint=tmp_path / "c", **options)
    resumed = fit(model, bank, checkpoint=tmp_path / "c", **options)
    assert torch.equal(entries(resumed), entries(undisturbed))
    assert resumed.fit["history"] == undisturbed.fit["history"]


def test_interruptions_inside_a_step_do_no_harm(model, bank, whole, tmp_path):
    """The velocity itself stops the fit whenever it was called half as often as a whole fit calls it."""
    counter = Counter(model.velocity)
    fit(dataclasses.replace(model, velocity=counter), bank, **CHAINED)
    half, interruptions = counter.calls // 2, 0

    def velocity(t, x):
        seen.append(1)
        if len(seen) > half:
            raise KeyboardInterrupt
        return model.velocity(t, x)

    while interruptions < 10:
        seen: list = []
        try:
            resumed = fit(dataclasses.replace(model, velocity=velocity), bank, checkpoint=tmp_path / "c", **CHAINED)
            break
        except KeyboardInterrupt:
            interruptions += 1
    assert 1 <= interruptions < 10
    assert torch.equal(entries(resumed), entries(whole))
    assert resumed.fit["history"] == whole.fit["history"]
    assert resumed.fit["evaluations"] == whole.fit["evaluations"]


def test_more_steps_go_on_from_a_finished_chain(model, bank, tmp_path):
    fit(model, bank, checkpoint=tmp_path / "c", **CHAINED | {"iterations": 1})
    longer = fit(model, bank, checkpoint=tmp_path / "c", **CHAINED | {"iterations": 2})
    at_once = fit(model, bank, **CHAINED | {"iterations": 2})
    assert torch.equal(entries(longer), entries(at_once))
    assert longer.fit["history"] == at_once.fit["history"]


def test_what_a_killed_process_had_begun_to_write_is_removed(tmp_path):
    """A checkpoint is as large as a network."""
    left, other = tmp_path / ".c.1234.unfinished", tmp_path / ".d.1234.unfinished"
    for path in (left, other):
        path.touch()
    checkpoints.write(tmp_path / "c", {})
    assert sorted(tmp_path.iterdir()) == [other, tmp_path / "c"]


def test_a_checkpoint_of_another_chain_is_refused(model, bank, tmp_path):
    fit(model, bank, checkpoint=tmp_path / "c", **SMALL, objective="closed-form")
    with pytest.raises(ValueError, match=r"another fit: objective closed-form \(here projection\)"):
        fit(model, bank, checkpoint=tmp_path / "c", **SMALL, objective="projection")
    start = baseline("euler", 3).on(model)
    with pytest.raises(ValueError, match=r"another fit: .*start none"):
        fit(model, bank, checkpoint=tmp_path / "c", **SMALL, objective="endpoint", start=start)


def test_what_a_stage_spoils_is_not_kept(model, large, chain, monkeypatch):
    def spoil(stage):
        with torch.no_grad():
            stage.problem.family.theta_b += 0.5
        return -100.0

    monkeypatch.setattr(GaussNewton, "step", spoil)
    spoilt = fit(model, large, **CHAINED | {"nfe": 4, "paths": 48})
    assert len(spoilt.fit["history"]) == 2 + 3 + 3
    assert spoilt.fit["best_iteration"] == CLOSED
    assert torch.equal(entries(spoilt), entries(chain["closed-form"]))


def test_a_stage_begins_at_the_best_so_far(model, bank, monkeypatch):
    """Not at the last step of the stage before."""
    closed = fit(model, bank, **SMALL, objective="closed-form")
    expected = fit(model, bank, **CHAINED, start=closed.table)
    step = GaussNewton.step

    def spoil(stage):
        if isinstance(stage.problem, EndPoint):
            return step(stage)
        with torch.no_grad():
            stage.problem.family.theta_b += 0.5
        return -100.0

    monkeypatch.setattr(GaussNewton, "step", spoil)
    spoilt = fit(model, bank, **CHAINED)
    assert [row[1:] for row in spoilt.fit["history"][2 + 3 :]] == [row[1:] for row in expected.fit["history"][1:]]


def test_a_stage_may_not_lose_what_the_one_before_gained(model, bank, monkeypatch):
    """Qualities as given: at the start, then of closed form, projection and end point, then the reporting."""
    given = [(0.2, 20.0), (0.1, 30.0), (0.05, 40.0), (0.07, 42.0), (1.0, 1.0), (1.0, 1.0)]
    monkeypatch.setattr(HeldOut, "quality", lambda *_: Quality(*given.pop(0)))
    monkeypatch.setitem(STEPS, "projection", 1)
    assert fit(model, bank, **CHAINED | {"iterations": 1}).fit["best_iteration"] == CLOSED + 1
    assert not given


def test_psnr_and_rmse_count_the_same():
    def better(new, best):
        return GaussNewton.better(None, Quality(*new), Quality(*best))

    start = (0.1, 30.0)
    assert better((0.09, 31.0), start)
    assert better((0.1, 31.0), start)
    assert better((0.105, 31.0), start), "3 % are less than a decibel"
    assert not better((0.2, 31.0), start), "a few samples far astray"
    assert not better((0.1, 29.0), start)
    assert not better((float("nan"), float("nan")), start)
    assert Quality(0.0, 400.0).score > Quality(1e-9, 200.0).score


def test_a_start_that_goes_astray_is_left(model, bank, monkeypatch, tmp_path):
    """Where Euler's method gives no finite samples, what is found afterwards is better, and the file can be written."""
    quality = HeldOut.quality

    def astray(self, table, model):
        euler = torch.equal(table.b, baseline("euler", 3).on(model).b)
        return Quality(float("nan"), float("nan")) if euler else quality(self, table, model)

    monkeypatch.setattr(HeldOut, "quality", astray)
    solver = fit(model, bank, **SMALL, objective="closed-form")
    assert solver.fit["best_iteration"] == CLOSED
    assert solver.validation["baseline_rmse"] is None
    assert solver.validation["rmse"] < 0.1
    solver.save(tmp_path / "s.json")
    pictures.save(pictures.errors_against_iterations({"rk2": solver.fit}), tmp_path / "fit.png")


def test_adam_leaves_a_start_that_went_astray_too():
    astray, fine = Quality(float("nan"), float("nan")), Quality(0.1, 30.0)
    assert Adam.better(None, fine, astray)
    assert not Adam.better(None, astray, fine)
    assert not Adam.better(None, Quality(0.2, 40.0), fine), "the paper chooses by RMSE"


def test_a_rating_of_ones_own_decides(model, bank):
    """The lowest wins, wherever it comes, and what the rating evaluates is counted."""
    tables, spent = [], {}

    def rating_by(samples):
        given = iter([5.0, 4.0, 1.0, 3.0, 1.0, 2.0, 2.0, 2.0])

        def rate(table, model):
            tables.append(table)
            if samples:
                sample(table, model.bind(), torch.zeros(samples, 2))
            return next(given)

        return rate

    for samples in (0, 7):
        tables.clear()
        rated = fit(model, bank, rate=rating_by(samples), **CHAINED)
        spent[samples] = rated.fit["evaluations"]["forward"]
        iterations, ratings = zip(*rated.fit["ratings"], strict=True)
        assert list(iterations) == [row[0] for row in rated.fit["history"]]
        assert rated.fit["best_iteration"] == iterations[2], "the first of two equals"
        torch.testing.assert_close(rated.table.b, tables[2].b)
    assert spent[7] - spent[0] == 7 * 3 * len(ratings)


def test_ratings_that_are_no_numbers_never_win(model, bank, tmp_path):
    given = iter([math.nan, math.inf, 2.0, math.nan, 1.0, *[math.inf] * 9])
    rated = fit(model, bank, rate=lambda table, model: next(given), **CHAINED)
    iterations, ratings = zip(*rated.fit["ratings"], strict=True)
    assert list(ratings[:5]) == [None, None, 2.0, None, 1.0]
    assert rated.fit["best_iteration"] == iterations[4]
    rated.save(tmp_path / "solver.json")  # JSON knows neither


def test_a_rated_fit_goes_on_with_its_ratings(model, bank, tmp_path):
    def rate(table, model):
        return float(table.t[-1])

    whole = fit(model, bank, rate=rate, **CHAINED)
    fit(model, bank, rate=rate, checkpoint=tmp_path / "c", **CHAINED | {"iterations": 1})
    resumed = fit(model, bank, rate=rate, checkpoint=tmp_path / "c", **CHAINED)
    assert resumed.fit["ratings"] == whole.fit["ratings"]
    assert torch.equal(entries(resumed), entries(whole))
    with pytest.raises(ValueError, match=r"another fit: rated True \(here False\)"):
        fit(model, bank, checkpoint=tmp_path / "c", **CHAINED)


def test_a_rated_fit_keeps_what_it_was_rated_by(model, bank, tmp_path):
    """The mark of a function, or of the object whose method it is."""

    class Rating:
        def __init__(self, mark):
            self.mark = mark

        def __call__(self, table, model):
            return float(table.t[-1])

        rate = __call__

    found = fit(model, bank, rate=Rating("on 8").rate, checkpoint=tmp_path / "c", **CHAINED)
    assert found.fit["rated"] == "on 8"
    assert fit(model, bank, rate=Rating("on 8"), checkpoint=tmp_path / "c", **CHAINED).fit["rated"] == "on 8"
    with pytest.raises(ValueError, match=r"another fit: rated on 8 \(here on 16\)"):
        fit(model, bank, rate=Rating("on 16").rate, checkpoint=tmp_path / "c", **CHAINED)
    assert fit(model, bank, rate=lambda table, model: 1.0, **CHAINED).fit["rated"] is True
    assert fit(model, bank, **CHAINED).fit["rated"] is False
