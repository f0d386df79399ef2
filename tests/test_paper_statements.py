"""What `bespoke paper` says of the paper's statements, from given cells."""

import re
from dataclasses import replace
from html import escape

import pytest

from bespoke_solvers.paper import plan
from bespoke_solvers.paper.lab import EXACT
from bespoke_solvers.paper.page import gaps
from bespoke_solvers.paper.plan import DPM2, EDM, NS, RK1, RK1_BESPOKE, RK2, RK2_BESPOKE, RK4, SCALE, TIME
from bespoke_solvers.paper.relations import NATIVE, relations
from bespoke_solvers.paper.verdicts import checks, headline
from measured import COUNTS, GUIDED, OT, OTHER_OT, VP, given


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
        ("FID of RK2-Bespoke is within", (VP, RK2_BESPOKE, 20, "fid"), 2.16),
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
    ("changed", "spread", "held", "clear", "close"),
    [
        ({}, 0.06, True, True, ()),
        ({}, 0.08, True, False, (RK2,)),
        ({plan.transferred(OT): 0.2, RK2: 0.05}, 0.03, False, True, ()),
        ({plan.transferred(OT): 0.2, RK2: 0.05}, 0.06, False, False, (NATIVE, RK2)),
        ({plan.transferred(OT): 0.2}, 0.06, False, False, (NATIVE,)),
    ],
)
def test_between_two_both_bounds_are_to_be_clear_and_beyond_one(tmp_path, changed, spread, held, clear, close):
    """0.5625 is 0.3125 and 0.1875 from its bounds, 0.2 is 0.05 and 0.15 beyond both; the noise is 2 sqrt(2) spread."""
    results = given(tmp_path, (OT, VP), {(VP, method, 8): rmse for method, rmse in changed.items()}, spread)
    (case,) = (c for c in relation_of(results, "across paths").cases if (c.where, c.nfe) == (f"{OT} to {VP}", 8))
    assert (case.held, case.clear, case.close) == (held, clear, close)


def test_of_an_error_that_is_not_known_nothing_is_said(tmp_path):
    """A ratio has none; samples that went astray are beyond all noise."""
    results = given(tmp_path, changed={(OT, RK2, 8): None}, spread=0.001)
    assert {case.clear for case in relation_of(results, "similar RMSE").cases} == {None}
    assert {case.clear for case in relation_of(results, "lower RMSE than RK2 at").cases} == {True}


def test_an_fid_is_known_to_a_percent(tmp_path):
    results = given(tmp_path, models=(OT,))
    words = "lower FID than RK2 at"
    own = results.record(OT, "fid", RK2_BESPOKE, 8)
    for factor, clear in ((1.005, False), (1.02, True), (0.995, False), (0.98, True)):
        results.record(OT, "fid", RK2, 8)["fid"] = factor * own["fid"]
        case = relation_of(results, words).cases[0]
        assert (case.held, case.clear, case.close) == (factor > 1, clear, () if clear else (RK2,))
    own, exact = results.record(OT, "fid", RK2_BESPOKE, 20), results.record(OT, "fid", EXACT, 0)
    for percent, held, clear in (
        (100.2, True, True),
        (101.4, True, False),
        (101.6, False, False),
        (103.0, False, True),
    ):
        own["fid"] = percent / 100 * exact["fid"]
        (case,) = relation_of(results, "FID of RK2-Bespoke is within").cases
        assert (case.held, case.clear) == (held, clear)


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
    assert {name: [row[nfe].text for nfe in (8, 20)] for name, row in first.figures[OT].items()} == {
        RK2_BESPOKE: ["0.250", "0.100"],
        RK2: ["0.750", "\u22480.300"],
    }
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
    claims = [relation.claim for relation in found if not relation.cases]
    assert section.unchecked == claims
    assert claims[0].startswith("A solver transferred")
    assert re.findall("<li>(.*?)</li>", section.html()) == [escape(claim) for claim in claims]
    assert "3 held as far as measured" in headline(results, found).sentence


def test_the_headline_says_how_much_is_saved_and_what_held(tmp_path):
    """The paper's statements and ours apart, those not checked among them, and what rests on noise alone."""
    results = given(tmp_path, changed={(OT, RK2, 8): 0.5, (OT, RK2, 20): 0.01, (VP, EDM, 9): 0.01})
    told = headline(results, relations(results))
    assert told.figure == "11 times fewer evaluations at RMSE 0.250 (RK2-Bespoke)"
    assert told.sentence == (
        "RK2 with as many evaluations has 0.500 to 0.750 and comes as close with 20 (on 2 of 3 models not with up to "
        "20). The paper's experiments, measured again on 3 models. Of the paper's 15 statements, 13 held in every "
        "case, 2 did not hold. 1 of these verdicts rests on differences within the noise. Of our own 3 statements, 1 "
        "held in every case, 2 did not hold."
    )
    assert told.more[0] == f"{OT} (FM-OT), RMSE with 8 evaluations instead of 90: RK2-Bespoke 0.250, RK2 0.500."
    results = given(tmp_path / "noisy", models=(OT,), spread=0.1)
    told = headline(results, relations(results))
    assert "Of the paper's 15 statements, 11 held in every case, 4 could not be checked." in told.sentence
    assert (
        " 7 of these verdicts rest on differences within the noise. Of our own 3 statements, 3 could" in told.sentence
    )
    assert not any("iterations" in line for line in told.more)
    results.record(OT, "fit", RK2_BESPOKE, 8)["best_iteration"] = COUNTS.iterations
    assert headline(results, []).more[-1].startswith("In 1 of 8 fits with 300 iterations the last one was the best")
    results.about(OT)["reference_evaluations"] = 180.0
    assert headline(results, relations(results)).figure == "22 times fewer evaluations at RMSE 0.250 (RK2-Bespoke)"


def test_what_rk2_bespoke_cannot_have_is_not_missing(tmp_path):
    """Though other methods have it: an odd number of evaluations, here or by a solver of another model."""
    results = given(tmp_path, counts=COUNTS._replace(nfe=(7, 8, 20)))
    assert plan.evaluations(plan.transferred(VP), (7, 8, 20)) == [8, 20]
    assert gaps(results) == []
    error = plan.key(OT, "error", NS, 7, 0, results.counts)
    results.store.cell(error, lambda: {"rmse": 0.1})
    assert headline(results, []).figure == "11 times fewer evaluations at RMSE 0.250 (RK2-Bespoke)"
    some = given(tmp_path / "some", changed={(OT, RK2_BESPOKE, 20): "missing"})
    assert gaps(some) == [f"{OT} (FM-OT): 20 NFE."]


def test_nothing_is_saved_where_rk2_is_as_close(tmp_path):
    worse = {(VP, RK2_BESPOKE, 8): 30.0}
    told = headline(given(tmp_path / "one", models=(OT, VP), changed=worse), [])
    assert told.figure == "11 times fewer evaluations at RMSE 0.250 (RK2-Bespoke)"
    assert told.sentence.startswith(
        "RK2 with as many evaluations has 0.750 and does not come as close with up to 20. "
        f"On {VP} it is no closer than RK2. The paper"
    )
    told = headline(given(tmp_path / "both", models=(OT, VP), changed=worse | {(OT, RK2_BESPOKE, 8): 40.0}), [])
    assert told.figure == "RK2-Bespoke with 8 evaluations is no closer than RK2"
    assert told.sentence.startswith(f"That is on {OT}, {VP}. The paper's experiments")


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
    assert "takes at most 1.5 % of the time" in checked.claim


def test_large_pictures_are_judged_by_the_papers_of_their_size(tmp_path):
    """105 % of the exact samples' FID is what the paper has on ImageNet-64."""
    results = given(tmp_path, models=(OT, VP), changed={(OT, RK2_BESPOKE, 20, "fid"): 1.053 * 1.99})
    assert relation_of(results, "FID of RK2-Bespoke is within").verdict == "did not hold"
    results.about(OT)["model_is"]["shape"] = [3, 64, 64]
    small, large = (each for each in relations(results) if "FID of RK2-Bespoke is within" in each.claim)
    assert ([case.where for case in small.cases], small.label) == ([VP], "tab:cifar10_a")
    assert ([case.where for case in large.cases], large.label) == ([OT], "tab:imagenet_64_and_128")
    assert large.verdict == "held"
    assert "9 % (eps-VP, ImageNet-64), 2 % (FM/v-CS, ImageNet-64), 5 % (FM-OT, ImageNet-64)" in large.claim
    assert (
        relation_of(results, "takes at most 3.6 % of the time of the model's training, ImageNet-64").verdict == "held"
    )


def test_few_samples_are_told_in_the_headline(tmp_path):
    few, enough = (given(tmp_path / str(n), counts=COUNTS._replace(samples=n)) for n in (15, 16))
    assert any("RMSE is of 15 samples" in line for line in headline(few, []).more)
    assert not any("samples; one of so few" in line for line in headline(enough, []).more)


def test_a_long_fit_is_told(tmp_path):
    results = given(tmp_path, models=(OT, VP))
    results = replace(results, training={OT: 100.0, VP: 50.0})
    relation = relation_of(results, "of the time of the model's training")
    assert [(case.where, case.figures, case.held) for case in relation.cases if case.nfe == 8] == [
        (OT, {"% of the time": 1.0}, True),
        (VP, {"% of the time": 2.0}, False),
    ]


def test_similar_errors_are_compared_with_each_other_alone(tmp_path):
    """The paper says no more; those of RK2 are equal here."""
    relation = relation_of(given(tmp_path, changed={(VP, RK2_BESPOKE, 20): 0.15}), "similar RMSE")
    assert relation.verdict == "held"
    assert relation.cases[1].figures == {
        "smallest": 0.1,
        "largest": 0.15,
        "ratio": pytest.approx(1.5),
        "ratio of RK2": pytest.approx(1),
    }


def test_scale_is_not_expected_to_help_at_20(tmp_path):
    assert relation_of(given(tmp_path, changed={(OT, TIME, 20): 0.01}), "Scale helps where").verdict == "held"


def test_what_was_not_measured_is_not_claimed(tmp_path):
    found = relations(given(tmp_path, models=(OT,)))
    missing = [relation.claim for relation in found if relation.verdict == "not measured"]
    words = ("same path lies", "across paths", "similar", "lower RMSE than EDM", "same path improves")
    words += ("FID of EDM with 35", "lower FID than EDM")
    assert all(few in claim for few, claim in zip(words, missing, strict=True))


def test_a_solver_is_not_expected_to_serve_another_guidance(tmp_path):
    results = given(tmp_path, models=(OT, GUIDED))
    assert not relation_of(results, "on the same path lies").cases
    assert not relation_of(results, "on the same path improves").cases
    assert not relation_of(results, "across paths").cases
