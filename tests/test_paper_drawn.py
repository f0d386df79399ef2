"""What `bespoke paper` draws, and puts into tables, of given cells."""

import itertools
from dataclasses import replace

import pytest

from bespoke_solvers import pictures
from bespoke_solvers.paper import figures, plan
from bespoke_solvers.paper.page import curves, provenance, sections
from bespoke_solvers.paper.plan import DPM2, EDM, RK1_BESPOKE, RK2, RK2_BESPOKE, RK4, TIME
from bespoke_solvers.paper.relations import relations
from bespoke_solvers.paper.tables import comparison, printed_tables
from measured import COUNTS, ORDER, OT, VP, given


@pytest.fixture
def unsaved(monkeypatch):
    """Figures take long to write, and here their names are enough."""
    monkeypatch.setattr("bespoke_solvers.pictures.save", lambda *_, **__: None)


def drawn(folder, results):
    """The titles of the sections, the figures, and what is said to be left out, of the experiments with curves."""
    results = replace(results, experiments=list(figures.FILES))
    titled = {section.title: section for section in sections(results, relations(results), "bespoke paper")}
    names = {file.name for file in figures.write(results, folder, "bespoke paper")}
    note = titled.get("Not measured")
    return set(titled), names, note.html() if note else ""


@pytest.mark.parametrize(
    ("experiment", "method", "told"),
    [
        (plan.ABLATION, TIME, "Time and scale: RK2-Bespoke, time only."),
        (plan.RK1_VS_RK2, RK1_BESPOKE, "RK1 against RK2: RK1-Bespoke."),
        (plan.AGAINST_EDM, EDM, "Against EDM: EDM."),
        (plan.TRANSFER, plan.transferred(OT), "Transfer: RK2-Bespoke of another model."),
    ],
)
def test_an_experiment_is_drawn_if_each_method_was_measured_for_some_model(tmp_path, unsaved, experiment, method, told):
    models = (OT, VP)
    cells = {(model, method, nfe): "missing" for model in models for nfe in plan.evaluations(method, COUNTS.nfe)}
    if experiment is plan.TRANSFER:
        cells |= {(OT, plan.transferred(VP), nfe): "missing" for nfe in COUNTS.nfe}
    file = f"{figures.FILES[experiment]}.png"
    titles, names, text = drawn(tmp_path, given(tmp_path / "none", models, cells))
    assert experiment.name not in titles
    assert file not in names
    assert told in text
    (_, once, _), *_ = (each for each in cells if each[0] == VP)
    kept = {each: value for each, value in cells.items() if each[:2] != (VP, once)}
    titles, names, text = drawn(tmp_path, given(tmp_path / "one", models, kept))
    assert experiment.name in titles
    assert file in names
    assert told not in text


def test_all_figures_are_those_of_the_run_and_say_what_was_not_measured(tmp_path):
    """A solver that went astray has no FID, nor has one whose FID was not measured, but that is not astray."""
    results = given(tmp_path, (OT, VP), {(OT, RK2, 8): None, (OT, RK2_BESPOKE, 20): "missing"})
    for cell in [cell for cell in results.cells(VP) if cell["measured"] == "fid"]:
        del results.store.records[results.store._values(cell)]
    del results.store.records[tuple(plan.key(OT, "fid", RK4, 8, 0, COUNTS).values())]
    ot, vp = comparison(replace(results, counts=COUNTS._replace(nfe=(8,)))).parts.values()
    names = ["Method", "NFE", "RMSE", "PSNR"]
    assert [[column.name for column in part.columns] for part in (ot, vp)] == [[*names, "FID"], names]
    assert {row[1] for part in (ot, vp) for row in part.rows} == {8, 9, 35}, "of EDM the last two"
    errors = [row[2] for row in vp.rows if row[1] == 8]
    assert errors == sorted(errors)
    assert [RK2, 8, None, 30.0, None] in ot.rows
    assert next(row for row in ot.rows if row[:2] == [RK4, 8])[-1] == ""
    assert "FID" not in vp.text
    assert ot.title == f"All figures of {OT}"
    (few,) = comparison(given(tmp_path / "few", (OT,), counts=COUNTS._replace(fid_samples=50))).parts.values()
    assert "Of fewer than 10,000, it is off by more than solvers differ." in few.text


def test_models_that_have_nothing_of_an_experiment_are_named(tmp_path):
    results = given(tmp_path, (OT, VP))
    assert results.without(plan.ABLATION) == results.without(plan.ITERATIONS) == []
    for cell in [cell for cell in results.cells(VP) if cell["measured"] == "fit"]:
        del results.store.records[results.store._values(cell)]
    assert results.without(plan.ITERATIONS) == results.without(plan.THETA) == [VP]
    assert results.without(plan.SAMPLES) == [OT, VP]
    results = replace(results, experiments=[plan.ITERATIONS])
    for record in results.cells(OT):
        record["history"] = [[0, None, 1.0], [1, None, 0.5]]
    *_, note, _ = sections(results, [], "bespoke paper")
    assert note.lists == {"Models of which an experiment has nothing:": ["Error against iterations: own:vp (eps-VP)."]}


def test_what_the_curves_lack_is_told(tmp_path):
    """NS for all, here; DPM-2 for one of the models."""
    results = given(tmp_path, (OT, VP), {(OT, DPM2, nfe): "missing" for nfe in COUNTS.nfe})
    assert results.missing(plan.AGAINST_NFE) == ["NS (ours)"]
    parts = curves(results, plan.AGAINST_NFE).parts
    assert "Not measured for this model: DPM-2; NS (ours)." in parts[f"{OT} (FM-OT)"].text
    assert "Not measured for this model: NS (ours)." in parts[f"{VP} (eps-VP)"].text
    figure = figures.curves_of(results, plan.AGAINST_NFE)
    assert figure.get_supxlabel() == "not measured: NS (ours)"
    assert figures.curves_of(results, plan.ABLATION).get_supxlabel() == ""


def test_an_experiment_is_drawn_for_the_models_that_it_measured(tmp_path):
    """A model with RK2 and RK2-Bespoke alone has no panel, and one without FID none in that row."""
    shared = (RK2, RK2_BESPOKE, plan.transferred(OT))
    missing = {(VP, method, nfe): "missing" for method in ORDER if method not in shared for nfe in (8, 9, 20, 21, 35)}
    results = given(tmp_path, (OT, VP), missing)
    assert results.shown(plan.ABLATION) == [OT]
    assert results.shown(plan.TRANSFER) == results.shown(plan.THETA) == [OT, VP]
    assert list(curves(results, plan.ABLATION).parts) == [f"{OT} (FM-OT)"]
    assert {axes.get_title() for axes in figures.curves_of(results, plan.ABLATION).axes} == {f"{OT} (FM-OT)"}


def test_an_fid_of_what_all_experiments_share_is_left_out(tmp_path):
    """Where another model has the FID of an experiment's own methods."""
    results = given(tmp_path, (OT, VP))
    for cell in [cell for cell in results.cells(VP) if cell["measured"] == "fid"]:
        if cell["method"] not in (RK2, RK2_BESPOKE):
            del results.store.records[results.store._values(cell)]
    assert results.judged(plan.ABLATION) == [OT]
    parts = curves(results, plan.ABLATION).parts.values()
    assert [part.charts[-1].title for part in parts] == ["FID", "PSNR, dB"]
    drawn = [axes for axes in figures.curves_of(results, plan.ABLATION).axes if axes.get_ylabel() == "FID"]
    assert [axes.get_title() for axes in drawn] == [f"{OT} (FM-OT)"]


def test_a_legend_is_as_wide_as_its_figure_at_most():
    names = [f"RK2-Bespoke of a model with a long name, number {i}" for i in range(6)]
    points = {name: [[6, 1.0], [8, 2.0]] for name in names}
    figure = pictures.curves([[(f"model {i}", "RMSE", points) for i in range(3)]], pictures.NFE, RK2)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
    assert [text.get_text() for text in legend.get_texts()] == names
    lowest = min(axes.get_tightbbox().y0 for axes in figure.axes)
    assert box.y0 >= 0
    assert box.y1 <= lowest


def test_panels_mark_their_nfe_and_are_empty_without_any():
    points = {"EDM": [[nfe, 1.0] for nfe in (7, 9, 11, 17, 21, 35)], RK2: [[nfe, 2.0] for nfe in (6, 8, 10, 16, 20)]}
    figure = pictures.curves([[("one", "RMSE", points), ("two", "RMSE", {})]], pictures.NFE, RK2)
    drawn, empty = figure.axes
    assert list(drawn.get_xticks()) == [6, 8, 10, 16, 20, 35]
    assert set(drawn.get_xticks(minor=True)) >= {7, 9, 11, 17, 21}
    assert not empty.axison
    figure.canvas.draw()
    boxes = [label.get_window_extent() for label in drawn.get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_experiments_for_other_paths_are_told(tmp_path, unsaved):
    _, names, text = drawn(tmp_path, given(tmp_path, models=(OT,)))
    assert "Against EDM: a model on the path VP or DiscreteVP." in text
    assert "bespoke-vs-edm.png" not in names


def test_models_are_named_by_path_and_prediction(tmp_path):
    results = given(tmp_path)
    assert [results.parameterisation(model) for model in results.models] == ["FM-OT", "eps-VP", "FM-OT"]
    results.about(VP)["model_is"]["prediction"] = "flow"
    assert results.parameterisation(VP) == "VP, flow"


def test_fid_of_few_samples_is_compared_with_nothing(tmp_path):
    results = given(tmp_path, counts=COUNTS._replace(fid_samples=9_999))
    assert {bool(relation.cases) for relation in relations(results) if "FID" in relation.claim} == {False}
    (note,) = printed_tables(results)
    assert "9,999 samples" in note.text
    assert "FID is of 9,999 samples" in curves(results, plan.AGAINST_NFE).parts[f"{OT} (FM-OT)"].text


def test_provenance_says_what_which_device_measured_and_when(tmp_path):
    results = given(tmp_path, models=(OT,))
    cells = results.cells()
    for cell, date in zip(cells, itertools.cycle(["2026-11-17", "2026-11-16", "2026-11-18"])):
        own = cell["method"] in (EDM, RK4) and cell["measured"] == "error"
        cell.update(date=date, device="a CPU" if own else "a GPU")
    told = provenance(results, "").groups["Measured"]
    assert told["on"] == f"a GPU; a CPU (5 of {len(cells)} cells: error of RK4, error of EDM)"
    assert told["dates"] == "2026-11-16; 2026-11-17; 2026-11-18"


def test_all_figures_of_a_model_are_one_table(tmp_path):
    """By NFE, then by RMSE; what went astray comes last."""
    results = given(tmp_path, (OT, VP), {(OT, RK2, 8): None, (OT, DPM2, 8): "missing"})
    parts = comparison(results).parts
    table = parts[f"{OT} (FM-OT)"]
    assert [column.name for column in table.columns] == ["Method", "NFE", "RMSE", "PSNR", "FID"]
    order = sorted((each for each in ORDER if each not in (RK2, DPM2, EDM)), key=ORDER.__getitem__)
    order.insert(3, plan.transferred(VP))
    assert [row[:2] for row in table.rows if row[1] == 8] == [[method, 8] for method in (*order, RK2)]
    assert [RK2_BESPOKE, 20, 0.1, 30.0, 2] in table.rows
    assert table.rows[len(order)] == [RK2, 8, None, 30.0, None]
    assert "50,000 samples; that of exact ones is 1.99" in table.text
    assert len(parts) == 2


def test_our_fid_stands_beside_the_papers(tmp_path):
    solvers, cifar10 = printed_tables(given(tmp_path))
    assert [f"{OT} (FM-OT), RK2-Bespoke", 20, 2, 1.99, 100 * 2 / 1.99, 1.0] in cifar10.rows
    assert ["paper: CIFAR10, FM-OT", 20, 2.59, 2.57, 101, 0.6] in cifar10.rows
    assert [f"{OT} (FM-OT), RK2-Bespoke", 20, 2, 1.99, 100 * 2 / 1.99] in solvers.rows
    assert ["paper: DEIS", 10, 4.17, None, None] in solvers.rows
    assert f"{OT} (FM-OT), RK2-Bespoke" in cifar10.highlight
    assert "of 50,000 samples" in cifar10.text
    assert "under 64 pixels a side, whatever their data" in cifar10.text
    assert "by the clock, its exact paths included" in cifar10.text
    assert "not measured" in printed_tables(given(tmp_path / "none", models=()))[0].text


def test_samples_that_went_astray_are_told_in_the_tables(tmp_path):
    _, cifar10 = printed_tables(given(tmp_path, changed={(OT, RK2_BESPOKE, 20): None}))
    assert [f"{OT} (FM-OT), RK2-Bespoke", 20, None, 1.99, None, 1.0] in cifar10.rows
    assert ">astray<" in cifar10.html()


def test_figures_of_an_earlier_run_do_not_stay(tmp_path, unsaved):
    """Those that its results.json names; other files are not touched."""
    results = replace(given(tmp_path / "cells", models=(VP,)), experiments=[*figures.FILES])
    for name in ("mine.png", "bespoke-vs-edm.png"):
        (tmp_path / name).touch()
    figures.write(results, tmp_path, "")
    figures.write(replace(results, experiments=[plan.ABLATION]), tmp_path, "")
    assert (tmp_path / "mine.png").exists()
    assert not (tmp_path / "bespoke-vs-edm.png").exists()
