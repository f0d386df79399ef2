"""What `bespoke paper` says of the paper's statements, from given cells."""

import itertools
from dataclasses import replace

import pytest

from bespoke_solvers import pictures
from bespoke_solvers.cells import Store
from bespoke_solvers.paper import figures, plan
from bespoke_solvers.paper.page import curves, provenance, sections
from bespoke_solvers.paper.plan import (
    DPM2,
    EDM,
    NS,
    QUICK,
    RK1,
    RK1_BESPOKE,
    RK2,
    RK2_BESPOKE,
    RK4,
    SCALE,
    TIME,
)
from bespoke_solvers.paper.relations import relations
from bespoke_solvers.paper.results import Results
from bespoke_solvers.paper.tables import printed_tables
from bespoke_solvers.paper.verdicts import checks, headline

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
                put(model, "fit", method, nfe, seconds=2.0)
                if value is not None:
                    put(model, "fid", method, nfe, fid=changed.get((model, method, nfe, "fid"), figure))
    return Results(store, models, plan.EXPERIMENTS, counts, 0, training=dict.fromkeys(models, 100.0))


def relation_of(results, words):
    (found,) = (relation for relation in relations(results) if words in relation.claim)
    return found


def test_what_the_paper_says_holds_where_the_figures_say_so(tmp_path):
    found = relations(given(tmp_path))
    assert {relation.verdict for relation in found} == {"held"}
    assert [len(relation.cases) for relation in found] == [6, 6, 6, 18, 6, 3, 4, 8, 2, 2, 6, 18, 6, 2, 1, 2, 3, 6]
    ours = [relation.claim for relation in found if relation.label.startswith("ours")]
    assert len(ours) == 3
    assert "across paths" in ours[0]
    assert all("one evaluation more" in claim for claim in ours[1:])


@pytest.mark.parametrize(
    ("words", "where", "value"),
    [
        ("lower RMSE than RK2 at", (OT, RK2, 8), 0.01),
        ("lower RMSE than RK1-Bespoke", (VP, RK1_BESPOKE, 20), 0.01),
        ("RK2 has a lower RMSE than RK1", (VP, RK1, 20), 0.01),
        ("lower RMSE than RK1, RK4 and DPM-2", (OT, DPM2, 8), 0.01),
        ("lower RMSE than RK1, RK4 and DPM-2", (VP, RK4, 20), 0.01),
        ("Time matters more", (OT, SCALE, 20), 0.01),
        ("Scale helps where", (OT, TIME, 8), 0.01),
        ("transferred across paths", (OT, f"RK2-Bespoke of {VP}", 8), 1.0),
        ("transferred across paths", (OT, f"RK2-Bespoke of {VP}", 8), 0.01),
        ("on the same path lies", (OT, f"RK2-Bespoke of {OTHER_OT}", 8), 1.0),
        ("on the same path lies", (OT, f"RK2-Bespoke of {OTHER_OT}", 8), 0.01),
        ("similar RMSE", (VP, RK2_BESPOKE, 20), 0.21),
        ("lower RMSE than EDM", (VP, EDM, 9), 0.01),
        ("lower FID than RK2", (OT, RK2, 8, "fid"), 0.5),
        ("lower FID than RK1, RK4 and DPM-2", (OT, RK4, 8, "fid"), 0.5),
        ("Scale helps FID", (OT, TIME, 20, "fid"), 0.5),
        ("From 16 NFE on, a solver transferred", (OT, f"RK2-Bespoke of {OTHER_OT}", 20, "fid"), 6.5),
        ("FID of RK2-Bespoke is within", (OT, RK2_BESPOKE, 20, "fid"), 2.02),
        ("lower FID than EDM", (VP, EDM, 21, "fid"), 0.5),
        ("20 NFE has at most the FID of EDM with 35", (VP, EDM, 35, "fid"), 1.9),
        ("FID of RK2-Bespoke is within", (VP, RK2_BESPOKE, 20, "fid"), 2.2),
        ("lower RMSE than RK2 at", (OT, RK2_BESPOKE, 8), None),
        ("lower FID than RK2", (OT, RK2_BESPOKE, 8), None),
        ("lower FID than EDM", (VP, RK2_BESPOKE, 8), None),
        ("20 NFE has at most the FID of EDM with 35", (VP, RK2_BESPOKE, 20), None),
        ("FID of RK2-Bespoke is within", (VP, RK2_BESPOKE, 20), None),
        ("similar RMSE", (VP, RK2_BESPOKE, 20), None),
    ],
)
def test_a_statement_that_fails_is_said_to_fail(tmp_path, words, where, value):
    """One figure on the wrong side is enough; the case is named. None: the samples went astray."""
    relation = relation_of(given(tmp_path, changed={where: value}), words)
    assert relation.verdict == "did not hold"
    (case,) = (case for case in relation.cases if not case.held)
    assert where[0] in case.where
    assert case.nfe == {9: 8, 21: 20, 35: 20}.get(where[2], where[2])


@pytest.mark.parametrize(("spread", "clear"), [(0.0176, True), (0.0178, False), (None, None)])
@pytest.mark.parametrize(
    ("words", "where"),
    [
        ("lower RMSE than RK2 at", (OT, RK2, 8)),
        ("lower RMSE than EDM", (VP, EDM, 9)),
        ("transferred across paths", (VP, f"RK2-Bespoke of {OT}", 8)),
    ],
)
def test_a_difference_within_the_noise_is_told(tmp_path, words, where, spread, clear):
    """RK2-Bespoke 0.25, the other 0.2: the difference against twice its standard error, sqrt(2) spread."""
    relation = relation_of(given(tmp_path, changed={where: 0.2}, spread=spread), words)
    (case,) = (case for case in relation.cases if not case.held)
    assert case.clear is clear


@pytest.mark.parametrize(
    ("changed", "spread", "held", "clear"),
    [
        ({}, 0.06, True, True),
        ({}, 0.08, True, False),
        ({plan.transferred(OT): 0.2, RK2: 0.05}, 0.03, False, True),
        ({plan.transferred(OT): 0.2, RK2: 0.05}, 0.06, False, False),
    ],
)
def test_between_two_both_bounds_are_to_be_clear_and_beyond_one(tmp_path, changed, spread, held, clear):
    """0.5625 is 0.3125 and 0.1875 from its bounds, 0.2 is 0.05 and 0.15 beyond both; the noise is 2 sqrt(2) spread."""
    results = given(tmp_path, (OT, VP), {(VP, method, 8): rmse for method, rmse in changed.items()}, spread)
    (case,) = (c for c in relation_of(results, "across paths").cases if (c.where, c.nfe) == (f"{OT} to {VP}", 8))
    assert (case.held, case.clear) == (held, clear)


def test_of_an_error_that_is_not_known_nothing_is_said(tmp_path):
    """FID has none, nor has a ratio; samples that went astray are beyond all noise."""
    results = given(tmp_path, changed={(OT, RK2, 8): None}, spread=0.001)
    for words in ("lower FID than RK2", "FID of EDM with 35", "FID of RK2-Bespoke is within", "similar RMSE"):
        assert {case.clear for case in relation_of(results, words).cases} == {None}
    assert {case.clear for case in relation_of(results, "lower RMSE than RK2 at").cases} == {True}


def test_where_fid_is_not_measured_samples_that_went_astray_have_none(tmp_path):
    results = given(tmp_path, changed={(OT, RK2, 8): None, (OT, RK2_BESPOKE, 8): None})
    measured = {key: record for key, record in results.store.records.items() if record["measured"] != "fid"}
    results.store.records = measured
    assert relation_of(results, "lower FID than RK2").verdict == "not measured"
    assert relation_of(results, "lower RMSE than RK2").verdict == "did not hold"


def test_wins_within_the_noise_are_told_too(tmp_path):
    """RK2-Bespoke 0.25 and 0.1, RK2 0.75 and 0.3: twice the standard error of the difference is 0.28."""
    results = given(tmp_path, models=(OT,), spread=0.1)
    first, *_ = checks(relations(results)).checks
    assert first.verdict == "held in all 2 cases, 1 within the noise"
    assert [row[0] for row in first.rows] == [OT, f"{OT} (within the noise)"]
    assert "as independent" in checks(relations(results)).more[0]


def test_a_difference_below_the_error_of_the_exact_samples_is_noise(tmp_path):
    """0.255 of RK2 against 0.25, each known to 0.001, and samples that are exact to 0.01 alone."""
    results = given(tmp_path, models=(OT,), changed={(OT, RK2, 8): 0.255}, spread=1e-3)
    assert relation_of(results, "lower RMSE than RK2 at").cases[0].clear
    results.about(OT)["reference_error"] = 0.01
    assert not relation_of(results, "lower RMSE than RK2 at").cases[0].clear
    assert not any(line.startswith("Careful") for line in headline(results, []).more)
    results.about(OT)["reference_error"] = 0.09
    assert headline(results, []).more[-1].startswith(f"Careful, {OT}: the reference's own RMSE, 9.0e-02, is over a")


def test_cases_that_are_missing_are_told(tmp_path):
    """Of 2 cases 1 is measured; statements of which nothing is are named."""
    results = given(tmp_path, models=(OT,), changed={(OT, RK2, 20): "missing"})
    found = relations(results)
    assert (found[0].verdict, len(found[0].cases), found[0].missing) == ("held as far as measured", 1, 1)
    section = checks(found)
    assert section.checks[0].verdict == "held in the one case measured (of 2)"
    assert "for want of measurements or of samples: A solver transferred" in section.more[1]
    assert "3 held as far as measured" in headline(results, found).sentence


def test_the_headline_says_how_much_is_saved_and_what_held(tmp_path):
    """The paper's statements and ours apart, those not checked among them, and what rests on noise alone."""
    results = given(tmp_path, changed={(OT, RK2, 8): 0.01, (VP, EDM, 9): 0.01})
    told = headline(results, relations(results))
    assert told.figure == "11 times fewer evaluations at RMSE 0.250 (RK2-Bespoke)"
    assert told.sentence == (
        "The paper's experiments, measured again on 3 models. Of the paper's 15 statements, 13 held in every case, "
        "2 did not hold. Of our own 3 statements, 1 held in every case, 2 did not hold."
    )
    assert told.more[0] == f"{OT} (FM-OT), RMSE with 8 evaluations instead of 90: RK2-Bespoke 0.250, RK2 0.0100."
    results = given(tmp_path / "noisy", models=(OT,), spread=0.1)
    told = headline(results, relations(results))
    assert "Of the paper's 15 statements, 11 held in every case, 4 could not be checked." in told.sentence
    assert (
        " 6 of these verdicts rest on differences within the noise. Of our own 3 statements, 3 could" in told.sentence
    )
    results.about(OT)["reference_evaluations"] = 180.0
    assert headline(results, relations(results)).figure == "22 times fewer evaluations at RMSE 0.250 (RK2-Bespoke)"


def test_the_headline_is_of_what_was_measured(tmp_path):
    """With 20 evaluations where none was with 8, and of the models that were; of NS where there is no other, and of
    samples that did not go astray. Of nothing, nothing is saved."""
    results = given(tmp_path, changed={(model, RK2_BESPOKE, 8): "missing" for model in (OT, VP, OTHER_OT)})
    results.about(VP)["reference_evaluations"] = 180.0
    assert headline(results, []).figure == "4 to 9 times fewer evaluations at RMSE 0.100 (RK2-Bespoke)"
    for model, rmse in ((OT, 0.015), (VP, 0.0125), (OTHER_OT, 0.01)):
        error = plan.key(model, "error", NS, 8, 0, COUNTS)
        results.store.cell(error, lambda rmse=rmse: {"rmse": rmse})
    assert headline(results, []).figure == "11 to 22 times fewer evaluations at RMSE 0.0100 to 0.0150 (NS (ours))"
    results = given(tmp_path / "less", changed={(VP, RK2_BESPOKE, nfe): "missing" for nfe in (8, 20)})
    results.about(VP)["reference_evaluations"] = 180.0
    assert headline(results, []).figure == "11 times fewer evaluations at RMSE 0.250 (RK2-Bespoke)"
    results = given(tmp_path / "astray", changed={(VP, RK2_BESPOKE, 8): None, (OT, RK2_BESPOKE, 8): 0.5})
    told = headline(results, [])
    assert told.figure == "11 times fewer evaluations at RMSE 0.250 to 0.500 (RK2-Bespoke)"
    assert told.more[1] == f"{VP} (eps-VP), RMSE with 8 evaluations instead of 90: RK2-Bespoke astray, RK2 0.750."
    results = given(tmp_path / "lost", models=(OT,), changed={(OT, RK2_BESPOKE, 8): None})
    assert headline(results, []).figure == "The samples of all Bespoke solvers went astray"
    results = given(tmp_path / "none", models=(OT,), changed={(OT, RK2_BESPOKE, nfe): "missing" for nfe in (8, 20)})
    assert headline(results, []).figure == "No Bespoke solver was measured"


def test_few_samples_decide_nothing(tmp_path):
    found = relations(given(tmp_path, counts=COUNTS._replace(samples=15, fid_samples=9_999)))
    (checked,) = (relation for relation in found if relation.cases)
    assert "takes at most 3.6 % of the time" in checked.claim


def test_a_long_fit_is_told(tmp_path):
    results = given(tmp_path, models=(OT, VP))
    results = replace(results, training={OT: 100.0, VP: 50.0})
    relation = relation_of(results, "of the time of the model's training")
    assert [(case.where, case.figures, case.held) for case in relation.cases if case.nfe == 8] == [
        (OT, {"% of the time": 2.0}, True),
        (VP, {"% of the time": 4.0}, False),
    ]


def test_similar_errors_are_compared_with_each_other_alone(tmp_path):
    """The paper says no more; those of RK2 are equal here."""
    relation = relation_of(given(tmp_path, changed={(VP, RK2_BESPOKE, 20): 0.15}), "similar RMSE")
    assert relation.verdict == "held"
    assert relation.cases[1].figures == {"smallest": 0.1, "largest": 0.15, "ratio": pytest.approx(1.5)}


def test_scale_is_not_expected_to_help_at_20(tmp_path):
    assert relation_of(given(tmp_path, changed={(OT, TIME, 20): 0.01}), "Scale helps where").verdict == "held"


def test_what_was_not_measured_is_not_claimed(tmp_path):
    found = relations(given(tmp_path, models=(OT,)))
    missing = [relation.claim for relation in found if relation.verdict == "not measured"]
    words = ("same path lies", "across paths", "similar", "lower RMSE than EDM", "same path improves")
    words += ("FID of EDM with 35", "lower FID than EDM")
    assert all(few in claim for few, claim in zip(words, missing, strict=True))


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
    return set(titled), names, note.text if note else ""


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
    assert experiment.name not in text


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


def test_a_solver_is_not_expected_to_serve_another_guidance(tmp_path):
    results = given(tmp_path, models=(OT, GUIDED))
    assert not relation_of(results, "on the same path lies").cases
    assert not relation_of(results, "on the same path improves").cases
    assert not relation_of(results, "across paths").cases


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
    assert told["on"] == f"a GPU; a CPU (5 of {len(cells)} cells: RK4, EDM)"
    assert told["dates"] == "2026-11-16; 2026-11-17; 2026-11-18"


def test_our_fid_stands_beside_the_papers(tmp_path):
    solvers, cifar10 = printed_tables(given(tmp_path))
    assert [f"{OT} (FM-OT), RK2-Bespoke", 20, 2, 1.99, 100 * 2 / 1.99, 2.0] in cifar10.rows
    assert ["paper: CIFAR10, FM-OT", 20, 2.59, 2.57, 101, 0.6] in cifar10.rows
    assert ["paper: DEIS", 10, 4.17] in solvers.rows
    assert f"{OT} (FM-OT), RK2-Bespoke" in cifar10.highlight
    assert "of 50,000 samples" in cifar10.text
    assert "under 64 pixels a side, whatever their data" in cifar10.text
    assert "by the clock, its exact paths included" in cifar10.text
    assert "not measured" in printed_tables(given(tmp_path / "none", models=()))[0].text


def test_samples_that_went_astray_are_told_in_the_tables(tmp_path):
    _, cifar10 = printed_tables(given(tmp_path, changed={(OT, RK2_BESPOKE, 20): None}))
    assert [f"{OT} (FM-OT), RK2-Bespoke", 20, None, 1.99, None, 2.0] in cifar10.rows
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
