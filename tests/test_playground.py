import dataclasses
import io

import pytest
import torch
from PIL import Image

from bespoke_solvers import Model, Solver, playground, schedules, toy
from bespoke_solvers.dedicated import baseline
from bespoke_solvers.description import describe
from bespoke_solvers.metrics import psnr, rmse
from bespoke_solvers.playground import Choice, Playground, StoppedError
from bespoke_solvers.reference import solve
from bespoke_solvers.table import sample
from bespoke_solvers.velocity import Counter, guided

POINTS, DIGITS = toy.checkerboard(), toy.digits(centres=20)


def solver(model, nfe, method="dpmpp-2m"):
    """A table in the place of a fitted one."""
    return Solver(baseline(method, nfe, model), "ns", model=describe(model))


def pushed(t, x, condition):
    """Towards the condition, a number from 0 to 2; 3 is that of none."""
    return POINTS.velocity(t, x) + 0.1 * (condition % 3)[:, None]


def conditional(guidance=None):
    return Model(
        velocity=pushed if guidance is None else guided(pushed, torch.tensor(3), guidance),
        shape=(2,),
        schedule=schedules.CondOT(),
        draw_condition=lambda generator: torch.randint(3, (), generator=generator),
        labels=("ant", "bee", "cat"),
        guidance=guidance,
    )


class Loader:
    """Models by name, and what was asked for."""

    def __init__(self, **models):
        self.models, self.asked = models, []

    def __call__(self, name, guidance):
        self.asked.append((name, guidance))
        made = self.models[name]
        if isinstance(made, Model):
            if guidance is not None:
                raise ValueError(f"{name} brings its own guidance")
            return made
        return made(guidance)


def drawn(found, choice):
    *_, last = found.draw(choice)
    return last


def image(panel):
    return Image.open(io.BytesIO(panel.picture))


def test_the_three_panels_are_of_the_same_noise():
    load = Loader(digits=DIGITS)
    found = Playground(load, ["digits"], {"s.json": [solver(DIGITS, n) for n in (4, 6)]}, tolerance=1e-4)
    choice = Choice("digits", "s.json", nfe=6, baseline="euler", seed=7, samples=5)
    first, second, last = found.draw(choice)
    assert (first.panels, first.waiting) == ([], ["euler", "ns-bespoke", "exact"])
    assert ([panel.name for panel in second.panels], second.waiting) == (["euler", "ns-bespoke"], ["exact"])
    assert [panel.quality for panel in second.panels] == [None, None]
    assert second.summary == ""
    noise = DIGITS.noise(range(7, 12))
    paths = solve(DIGITS, noise, rtol=1e-4, atol=1e-4)
    assert last.waiting == []
    assert last.remarks == []
    assert [panel.evaluations for panel in last.panels] == [6, 6, paths.evaluations]
    for panel, method in zip(last.panels, ("euler", "dpmpp-2m"), strict=False):
        x1 = sample(baseline(method, 6, DIGITS), DIGITS.bind(), noise.x0)
        assert panel.quality == pytest.approx((rmse(x1, paths.x1), psnr(x1, paths.x1)), rel=1e-3)
        assert panel.closeness.startswith("RMSE 0.")
        assert panel.cost.startswith("6 evaluations, ")
    assert last.panels[2].quality is None
    ratio = last.panels[0].quality.rmse / last.panels[1].quality.rmse
    assert f"{paths.evaluations / 6:.1f} times fewer evaluations" in last.summary
    assert ratio < 1
    assert f"{1 / ratio:.1f} times farther from it than euler with 6." in last.summary
    assert len({panel.picture for panel in last.panels}) == 3
    assert image(last.panels[0]).size == (3 * 7 * 9, 2 * 7 * 9)


def test_the_summary_says_how_much_closer_a_solver_is():
    found = Playground(Loader(points=POINTS), ["points"], {"s.json": [solver(POINTS, 8)]})
    last = drawn(found, Choice("points", "s.json", nfe=8, baseline="euler", samples=20))
    ratio = last.panels[0].quality.rmse / last.panels[1].quality.rmse
    assert ratio > 1.2
    assert last.summary.endswith(f"; {ratio:.1f} times closer to it than euler with 8.")


def test_exact_samples_are_solved_once(monkeypatch):
    counted = Counter(DIGITS.velocity)
    model = dataclasses.replace(DIGITS, velocity=counted)
    found = Playground(Loader(digits=model), ["digits"], {"s.json": [solver(DIGITS, n) for n in (4, 6)]})
    choice = Choice("digits", "s.json", nfe=6)
    exact = drawn(found, choice).panels[2]
    spent = counted.calls
    again = list(found.draw(dataclasses.replace(choice, nfe=4, baseline="euler")))
    assert len(again) == 2, "no waiting for what is there"
    assert again[-1].panels[2] == exact
    described = counted.calls - spent - 4 - 4 - 1
    assert described < exact.evaluations / 4
    drawn(found, choice)
    assert counted.calls == spent + 4 + 4 + 1 + described + 6 + 6 + 1, "and models are described once"
    monkeypatch.setattr(playground, "KEPT", 1)
    drawn(found, dataclasses.replace(choice, seed=1))
    assert len(list(found.draw(choice))) == 3, "a seed that was dropped is solved again"


def test_a_drawing_can_be_given_up_for_another():
    counted = Counter(POINTS.velocity)
    model = dataclasses.replace(POINTS, velocity=counted)
    found = Playground(Loader(points=model), ["points"], {})
    drawing = found.draw(Choice("points", None, 4, samples=3))
    assert next(drawing).panels == []
    assert len(next(drawing).panels) == 1
    spent = counted.calls
    found.stop()
    with pytest.raises(StoppedError):
        next(drawing)
    assert counted.calls == spent, "not one evaluation more"
    assert drawn(found, Choice("points", None, 6, samples=3)).panels[0].evaluations == 6


def test_giving_up_is_no_fault_of_the_model():
    """While a solver is compared with the model, too, where a model that fails is told what may be wrong with it."""

    def velocity(t, x):
        found.stop()
        return POINTS.velocity(t, x)

    model = dataclasses.replace(POINTS, velocity=velocity)
    found = Playground(Loader(points=model), ["points"], {"s": [solver(POINTS, 4)]})
    with pytest.raises(StoppedError):
        next(found.draw(found.start("points")))


def test_points_have_the_frame_of_the_exact_ones():
    found = Playground(Loader(points=POINTS), ["points"], {})
    start = found.start("points")
    assert (start.solver, start.nfe, start.samples) == (None, 4, 1000)
    _, second, last = found.draw(dataclasses.replace(start, samples=50, nfe=2))
    assert [panel.name for panel in last.panels] == ["midpoint", "exact"]
    assert last.summary == ""
    assert image(last.panels[0]).size == image(last.panels[1]).size
    assert second.panels[0].picture != last.panels[0].picture, "in its own frame at first"


def test_a_baseline_gets_the_next_evaluations_that_it_can_have():
    found = Playground(Loader(points=POINTS), ["points"], {"s.json": [solver(POINTS, 5)]})
    last = drawn(found, Choice("points", "s.json", nfe=5, baseline="rk4", samples=3))
    assert [panel.evaluations for panel in last.panels[:2]] == [8, 5]
    assert last.remarks == ["rk4 cannot have 5 evaluations; here it has 8"]
    assert "than rk4 with 8" in last.summary


def test_captions_say_on_which_grid_and_how_exact():
    found = Playground(Loader(points=POINTS), ["points"], {"s.json": [solver(POINTS, 6)]}, tolerance=1e-3)
    choice = Choice("points", "s.json", nfe=6, samples=3)
    assert [panel.note for panel in drawn(found, choice).panels] == ["", "", "to a tolerance of 0.001"]
    usual, other = (drawn(found, dataclasses.replace(choice, baseline=f"ipndm{grid}")) for grid in ("", "@karras:0.05"))
    assert [each.panels[0].note for each in (usual, other)] == ["on the grid uniform", "on the grid karras:0.05"]
    assert usual.panels[0].quality != other.panels[0].quality
    assert other.panels[0].name == "ipndm@karras:0.05"


def test_the_class_and_the_guidance_that_were_chosen():
    load = Loader(some=conditional)
    found = Playground(load, ["some"], {"s.json": [solver(conditional(2.0), 4)]})
    start = dataclasses.replace(found.start("some"), samples=6)
    assert start.guidance == 2.0, "what the solver was fitted for"
    by_seed, bee = drawn(found, start), drawn(found, dataclasses.replace(start, label=1))
    assert bee.remarks == by_seed.remarks == []
    noise = conditional().noise(range(6))
    x1 = solve(conditional(2.0), noise._replace(condition=torch.ones(6, dtype=torch.int64))).x1
    (exact,) = [run.x1 for choice, run in found._exact.items() if choice.label == 1]
    torch.testing.assert_close(exact, x1)
    assert by_seed.panels[2].picture != bee.panels[2].picture
    other = drawn(found, dataclasses.replace(start, guidance=3.0))
    assert other.remarks == ["the solver was made for a model with guidance 2.0 (here 3.0); it may serve worse here"], (
        "weights cannot be compared across guidance"
    )
    assert load.asked == [("some", None), ("some", 2.0), ("some", 3.0)], "loaded only when need be"


def test_a_model_that_brings_its_guidance_takes_that_of_its_solver():
    own = conditional(2.0)
    load = Loader(own=own, points=POINTS)
    found = Playground(load, ["own", "points"], {"s.json": [solver(own, 4)]})
    start = found.start("own")
    drawn(found, dataclasses.replace(start, samples=2))
    drawn(found, Choice("points", None, 4, samples=2))
    drawn(found, dataclasses.replace(start, samples=2))
    assert load.asked == [("own", None), ("points", None), ("own", None)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "other"}, r"no model 'other' here; expected one of digits, points"),
        ({"solver": "t.json"}, r"solver t\.json is not to be had here; expected one of s\.json"),
        ({"nfe": 5}, r"nfe 5 is not to be had here; expected one of 4"),
        ({"baseline": "rk5"}, r"unknown method 'rk5'; expected one of euler, midpoint"),
        ({"baseline": "ipndm@log"}, r"unknown grid 'log'; expected one of uniform, quadratic"),
        ({"seed": -1}, r"seed is -1; expected a whole number from 0"),
        ({"samples": 0}, r"samples is 0; expected a whole number from 1 to 4096"),
        ({"label": 1}, r"class 1 was asked for; the model has 0 classes"),
        ({"guidance": 2.0}, r"digits brings its own guidance"),
        ({"model": "points"}, r"made for a model with shape \[1, 8, 8\] \(here \[2\]\); fit one for this model"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_words(change, message):
    found = Playground(Loader(digits=DIGITS, points=POINTS), ["digits", "points"], {"s.json": [solver(DIGITS, 4)]})
    with pytest.raises(ValueError, match=message):
        drawn(found, dataclasses.replace(Choice("digits", "s.json", nfe=4, samples=2), **change))


def test_samples_of_other_shapes_have_figures_alone():
    line = Model(velocity=lambda t, x: -x, shape=(5,), schedule=schedules.CondOT())
    last = drawn(Playground(Loader(line=line), ["line"], {}), Choice("line", None, 4, samples=2))
    assert [panel.picture for panel in last.panels] == [None, None]
    assert last.panels[0].quality.rmse > 0


def test_a_solver_that_goes_astray_is_said_to():
    table = baseline("euler", 4, DIGITS)
    wild = Solver(dataclasses.replace(table, b=table.b * 1e30), "ns")
    last = drawn(Playground(Loader(digits=DIGITS), ["digits"], {"s": [wild]}), Choice("digits", "s", 4, samples=2))
    assert last.panels[1].closeness == "samples that are not finite"
    assert last.summary == ""
