"""`bespoke paper`: its cells, what it says of the paper's statements, its report."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from bespoke_solvers import fid, fitting, toy
from bespoke_solvers.bank import Bank
from bespoke_solvers.cells import Store
from bespoke_solvers.cli import main
from bespoke_solvers.evaluation import held_out
from bespoke_solvers.generic import baseline
from bespoke_solvers.judge import Judge
from bespoke_solvers.paper import figures, plan, printed
from bespoke_solvers.paper.page import checks, curves, headline
from bespoke_solvers.paper.plan import (
    DPM2,
    EDM,
    NS,
    QUICK,
    RK1,
    RK1_BESPOKE,
    RK2,
    RK2_BESPOKE,
    SCALE,
    TIME,
)
from bespoke_solvers.paper.relations import relations
from bespoke_solvers.paper.results import Results
from bespoke_solvers.paper.tables import printed_tables
from bespoke_solvers.transfer import transferred
from chains import CLOSED
from pipelines import unet

COUNTS = QUICK._replace(nfe=(8, 20), fid_samples=50_000)
OT, VP, OTHER_OT, GUIDED = "own:ot", "own:vp", "own:other-ot", "own:guided"
PATHS = {OT: "CondOT", VP: "VP", OTHER_OT: "CondOT", GUIDED: "CondOT"}
ORDER = {RK1: 9, RK2: 6, DPM2: 5, RK1_BESPOKE: 7, SCALE: 4, TIME: 3, RK2_BESPOKE: 2, EDM: 2.5}  # as the paper says


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
        put(model, "fid", "exact", 0, fid=1.9)
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
    assert [len(relation.cases) for relation in found] == [6, 6, 6, 6, 6, 3, 4, 8, 2, 2, 6, 1, 2, 3]
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
        ("lower RMSE than DPM-2", (OT, DPM2, 8), 0.01),
        ("Time matters more", (OT, SCALE, 20), 0.01),
        ("Scale helps", (OT, TIME, 8), 0.01),
        ("transferred across paths", (OT, f"RK2-Bespoke of {VP}", 8), 1.0),
        ("transferred across paths", (OT, f"RK2-Bespoke of {VP}", 8), 0.01),
        ("on the same path", (OT, f"RK2-Bespoke of {OTHER_OT}", 8), 1.0),
        ("on the same path", (OT, f"RK2-Bespoke of {OTHER_OT}", 8), 0.01),
        ("similar RMSE", (VP, RK2_BESPOKE, 20), 0.21),
        ("lower RMSE than EDM", (VP, EDM, 9), 0.01),
        ("lower FID than RK2", (OT, RK2, 8, "fid"), 0.5),
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


@pytest.mark.parametrize(("spread", "clear"), [(0.01, True), (0.1, False), (None, None)])
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
    assert "as independent" in checks(relations(results)).text


def test_cases_that_are_missing_are_told(tmp_path):
    """Of 2 cases 1 is measured; statements of which nothing is are named."""
    results = given(tmp_path, models=(OT,), changed={(OT, RK2, 20): "missing"})
    found = relations(results)
    assert (found[0].verdict, len(found[0].cases), found[0].missing) == ("held as far as measured", 1, 1)
    section = checks(found)
    assert section.checks[0].verdict == "held in all 1 cases measured (of 2)"
    assert "for want of measurements or of samples: A solver transferred" in section.text
    assert "3 held as far as measured" in headline(results, found).sentence


def test_scale_is_not_expected_to_help_at_20(tmp_path):
    assert relation_of(given(tmp_path, changed={(OT, TIME, 20): 0.01}), "Scale helps").verdict == "held"


def test_what_was_not_measured_is_not_claimed(tmp_path):
    found = relations(given(tmp_path, models=(OT,)))
    missing = [relation.claim for relation in found if relation.verdict == "not measured"]
    words = ("same path", "across paths", "similar", "lower RMSE than EDM", "FID of EDM with 35", "lower FID than EDM")
    assert all(few in claim for few, claim in zip(words, missing, strict=True))


def test_a_solver_is_not_expected_to_serve_another_guidance(tmp_path):
    results = given(tmp_path, models=(OT, GUIDED))
    assert not relation_of(results, "on the same path").cases
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


def test_our_fid_stands_beside_the_papers(tmp_path):
    solvers, cifar10 = printed_tables(given(tmp_path))
    assert [f"{OT} (FM-OT), RK2-Bespoke", 20, 2, 1.9, 100 * 2 / 1.9, 2.0] in cifar10.rows
    assert ["paper: CIFAR10, FM-OT", 20, 2.59, 2.57, 101, 0.6] in cifar10.rows
    assert ["paper: DEIS", 10, 4.17] in solvers.rows
    assert f"{OT} (FM-OT), RK2-Bespoke" in cifar10.highlight
    assert "of 50,000 samples" in cifar10.text
    assert "under 64 pixels a side, whatever their data" in cifar10.text
    assert "not the choice of the best iteration" in cifar10.text
    assert "not measured" in printed_tables(given(tmp_path / "none", models=()))[0].text


def test_samples_that_went_astray_are_told_in_the_tables(tmp_path):
    _, cifar10 = printed_tables(given(tmp_path, changed={(OT, RK2_BESPOKE, 20): None}))
    assert [f"{OT} (FM-OT), RK2-Bespoke", 20, None, 1.9, None, 2.0] in cifar10.rows
    assert ">astray<" in cifar10.html()


def test_the_papers_figures_agree_with_each_other():
    """FID in percent of the exact one's; the paper's own lines for eps-VP on ImageNet-64 do not."""
    lines = [*printed.bespoke("cifar10"), *printed.bespoke("imagenet")]
    assert len(lines) == 12 + 20
    off = {(line.data, line.model) for line in lines if abs(100 * line.fid / line.exact_fid - line.percent) > 0.6}
    assert off == {("ImageNet-64", "eps-VP")}
    compared = {(f"RK2-Bespoke, {line.model}", line.nfe, line.fid) for line in printed.bespoke("cifar10")}
    assert {row for row in printed.comparison() if "Bespoke" in row[0]} <= compared
    (runner_up,) = sorted(fid for method, nfe, fid in printed.comparison() if nfe == 10 and "Bespoke" not in method)[:1]
    assert 1 - 2.73 / runner_up == pytest.approx(0.34, abs=0.01)
    assert 1 - printed.edm()["RK2-Bespoke"][0] / printed.edm()["EDM"][0] == pytest.approx(0.42, abs=0.01)


@pytest.mark.parametrize(
    ("source", "target"), [("fm-ot", "vp"), ("vp", "fm-ot"), ("fm-ot", "fm-v-cs"), ("fm-v-cs", "edm"), ("vp", "vp")]
)
def test_a_solver_transferred_across_paths_does_what_it_does_at_home(source, target):
    """Theorem 2.3; VP and EDM have no snr of 0, so there the steps are a little shorter."""
    here, there = (toy.digits(centres=20, schedule=toy.SCHEDULES[name]) for name in (source, target))
    table = baseline("midpoint", 24).on(here)
    moved = transferred(table, here, there)
    own, found = (
        held_out(Bank(model, batch_size=8), "report", 0, 8).quality(one, model).rmse
        for one, model in ((table, here), (moved, there))
    )
    assert moved.nfe == 24
    assert abs(found - own) < (1e-4 if {source, target} <= {"fm-ot", "fm-v-cs"} else 5e-4)
    if source == target:
        torch.testing.assert_close(moved.b, table.b)


FEWER = ["--paths", "4", "--iterations", "2", "--choose", "4", "--samples", "4", "--batch-size", "4"]
TINY = ["--nfe", "4", "--paths", "8", "--iterations", "4", "--choose", "8", "--samples", "12", "--batch-size", "8"]


@pytest.fixture(scope="module")
def short_fits(few_steps):
    """The default of `fit` ends with its closed form."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fitting.EFFORTS, "medium", fitting.Effort("closed-form", 8, CLOSED))
        yield


def run(*arguments, code=0):
    with pytest.raises(SystemExit) as end:
        main(["paper", *map(str, arguments), "--quiet"])
    assert end.value.code == code


def lines(folder):
    return {file.name: file.read_text().splitlines() for file in sorted((folder / "cells").glob("*.jsonl"))}


@pytest.fixture(scope="module")
def reported(tmp_path_factory, short_fits):
    """A run on two toys that was interrupted on its way, and gone on with."""
    out = tmp_path_factory.mktemp("paper")
    command = ["toy:checkerboard", "toy:checkerboard-vp", *TINY, "--out", out]
    fit, done = fitting.fit, []

    def interrupted(*arguments, **options):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(1)
        return fit(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bespoke_solvers.fitting.fit", interrupted)
        run(*command, code=130)
    before = lines(out)
    run(*command)
    return out, command, before


def test_an_interrupted_run_goes_on_where_it_stopped(reported):
    out, _, before = reported
    after = lines(out)
    assert sum(map(len, before.values())) > 5
    for name, kept in before.items():
        assert after[name][: len(kept)] == kept
    records = [json.loads(line) for several in after.values() for line in several]
    keys = [tuple(record[name] for name in plan.KEY) for record in records]
    assert len(set(keys)) == len(keys), "no cell twice"
    fitted = {(record["model"], record["method"]) for record in records if record.get("table")}
    assert len(fitted) == 2 * 5
    moved = [record for record in records if record["method"] == "RK2-Bespoke of toy:checkerboard-vp"]
    assert [record["model"] for record in moved] == ["toy:checkerboard"]
    assert {record["nfe"] for record in records if record["method"] == EDM} == {5, 35}
    assert not list(out.rglob("*.checkpoint"))


def test_what_is_there_is_not_computed_again(reported, monkeypatch, tmp_path):
    """No path is solved; one experiment is drawn from the cells alone, without the models."""
    out, command, _ = reported
    before = lines(out)
    with monkeypatch.context() as patch:
        patch.setattr(figures, "write", lambda *_: [])
        patch.setattr("bespoke_solvers.paper.lab.Bank", lambda *_, **__: pytest.fail("a path was asked for"))
        run(*command)
    assert lines(out) == before
    monkeypatch.setattr("bespoke_solvers.cli.paper.resolve", lambda *_, **__: pytest.fail("a model was loaded"))
    shutil.copytree(out / "cells", tmp_path / "cells")
    run(*command[:-1], tmp_path, "--draw", "--only", "fig_a:scale_*")
    drawn = sorted(file.name for file in tmp_path.iterdir() if file.is_file())
    assert drawn == ["ablation.png", "report.html", "results.json"]


def test_the_files_are_small_and_hold_the_figures(reported):
    out, _, _ = reported
    files = [file for file in out.iterdir() if file.is_file()]
    names = {"report.html", "results.json", "ablation.png", "transfer.png", "error-vs-nfe.png", "bespoke-vs-edm.png"}
    assert names <= {file.name for file in files}
    assert sum(file.stat().st_size for file in files) < 700_000
    content = json.loads((out / "results.json").read_text())
    assert content["models"] == {"toy:checkerboard": "FM-OT", "toy:checkerboard-vp": "VP, flow"}
    assert content["counts"]["nfe"] == [4]
    assert str(out) not in json.dumps(content) + (out / "report.html").read_text()
    assert all(case["held"] in (True, False) for each in content["statements"] for case in each["cases"])
    absent = [each["claim"] for each in content["statements"] if "FID" not in each["claim"] and not each["cases"]]
    assert len(absent) == 1
    assert "on the same path" in absent[0]


@pytest.mark.parametrize("width", [390, 1200])
def test_the_report_opens_and_nothing_is_cut_off(opened, reported, width):
    page = opened(reported[0] / "report.html", width=width)
    titles = page.js("[...document.querySelectorAll('h2')].map(each => each.textContent)")
    assert {experiment.name for experiment in plan.EXPERIMENTS} <= set(titles)
    page.js("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.js("document.documentElement.scrollWidth <= innerWidth")
    assert page.cut_off() == []
    contrasts = page.contrasts()
    assert len(contrasts) > 100
    assert [found for found in contrasts if found[0] < found[1]] == []


def test_another_model_can_be_chosen(opened, reported):
    page = opened(reported[0] / "report.html")
    section = "[...document.querySelectorAll('section.choice')].find(s => s.textContent.includes('scale alone'))"
    seen = f"[...{section}.querySelectorAll('.part')].map(part => part.checkVisibility())"
    assert page.js(seen) == [True, False]
    assert page.js(f"{section}.querySelectorAll('.part')[1].querySelectorAll('.curve').length") == 0
    page.js(f"{section}.querySelector('select').focus()")
    page.press("ArrowDown")
    page.until(f"{seen}[1]")
    assert page.js(seen) == [False, True]
    page.until(f"{section}.querySelectorAll('.part')[1].querySelectorAll('.curve').length === 8")


def test_the_report_says_what_held(opened, reported):
    out, _, _ = reported
    statements = [each for each in json.loads((out / "results.json").read_text())["statements"] if each["cases"]]
    page = opened(out / "report.html")
    shown = page.js(
        "[...document.querySelectorAll('.check')].map(each => ['h3', 'b'].map(part => each.querySelector(part)))"
        ".map(pair => pair.map(each => each.textContent))"
    )
    assert [claim for claim, _ in shown] == [each["claim"] for each in statements]
    for (_, text), each in zip(shown, statements, strict=True):
        failed = sum(not case["held"] for case in each["cases"])
        many = f"{failed} of {len(each['cases'])}" if failed else f"all {len(each['cases'])}"
        assert text.startswith(f"{each['verdict']} in {many} cases")
        noisy = sum(case["held"] == (failed == 0) and case["clear"] is False for case in each["cases"])
        assert ("within the noise" in text) == (noisy > 0)
    failed = sum(not case["held"] for each in statements for case in each["cases"])
    assert page.js("document.querySelectorAll('.check > table tr.own').length") == failed
    whole = sum(each["verdict"] == "held" for each in statements)
    assert page.js("document.querySelector('.figure').textContent") == f"{whole} of {len(statements)} statements held"


@pytest.mark.filterwarnings("ignore:the reference's own RMSE")
def test_a_network_with_and_without_guidance(tmp_path, monkeypatch, short_fits):
    """Of a folder, with FID to its own samples, by features that are cheap."""
    folder = tmp_path / "tiny"
    unet(num_class_embeds=3).save_pretrained(folder)
    record = {"schedule": {"name": "CondOT"}, "prediction": "flow", "data": {"classes": ["a", "b"]}, "seconds": 50.0}
    (folder / "training.json").write_text(json.dumps(record))

    def features(pictures):
        return torch.nn.functional.adaptive_avg_pool2d(pictures.float(), 1).flatten(1) / 64

    real = fid.statistics([torch.randint(256, (64, 3, 8, 8), dtype=torch.uint8)], features, keep=64)
    monkeypatch.setattr("bespoke_solvers.cli.paper.judge", lambda *_: Judge(real, features, 4, 0, 4))
    options = ["--guidance", "2", "--real", tmp_path, "--fid-samples", "4", "--tolerance", "1e-2", "--device", "cpu"]
    run(folder, *TINY, *options, *FEWER, "--only", "tab:cifar10_a", "--out", tmp_path / "out")
    records = [json.loads(line) for several in lines(tmp_path / "out").values() for line in several]
    assert {record["model"] for record in records} == {"tiny", "tiny, guidance 2"}
    judged = {(r["model"], r["method"]) for r in records if r["measured"] == "fid"}
    assert judged == {(name, method) for name in ("tiny", "tiny, guidance 2") for method in ("exact", RK2_BESPOKE, NS)}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "tiny, guidance 2 (FM-OT)" in page
    assert "which here is of 4 samples" in page


def refused(capsys, *arguments):
    capsys.readouterr()
    run(*arguments, code=1)
    return capsys.readouterr().err


def test_what_cannot_be_done_is_refused(tmp_path, capsys):
    board = "toy:checkerboard"
    assert "no experiment 'fig:9'; expected one of fig:" in refused(capsys, board, "--only", "fig:9", "--out", tmp_path)
    assert "two models are called toy:checkerboard" in refused(capsys, board, board, "--out", tmp_path)
    assert "guidance 2 is for models in diffusers" in refused(capsys, board, "--guidance", "2", "--out", tmp_path)
    assert "expected MODEL=SECONDS" in refused(capsys, board, "--training", "other=3", "--out", tmp_path)
    assert "there are no cells of toy:checkerboard" in refused(capsys, board, "--draw", "--out", tmp_path)


def test_what_would_be_done_is_told(tmp_path, capsys):
    run("toy:digits", "--dry-run", "--only", "fig_a:*ablation", "--out", tmp_path / "new")
    told = capsys.readouterr().out
    assert "12 of 12 fits are still to do, for toy:digits" in told
    assert "Transfer" in told
    assert "Against EDM" not in told
    assert not (tmp_path / "new").exists()


def test_the_commands_of_the_page(tmp_path, monkeypatch, capsys):
    """The first one with --dry-run; its counts are those of the table."""
    page = (Path(__file__).parent.parent / "docs" / "paper.md").read_text()
    command, *_ = re.findall(r"^    bespoke paper (.*)$", page, re.M)
    monkeypatch.chdir(tmp_path)
    run(*command.split(), "--dry-run")
    assert "45 of 45 fits are still to do" in capsys.readouterr().out
    for counts, column in ((plan.FULL, 2), (plan.QUICK, 3)):
        told = [line.split("|")[column].strip() for line in page.splitlines() if re.match(r"\|.*\| `--.*` \|$", line)]
        rate = f"{counts.iterations} at {counts.learning_rate:g}"
        samples = [f"{n:,}" if n > 9999 else str(n) for n in (counts.choose, counts.samples, counts.fid_samples)]
        assert told == [", ".join(map(str, counts.nfe)), str(counts.paths), rate, *samples]
    for experiment in plan.EXPERIMENTS:
        assert f"| {experiment.name} |" in page


def test_a_cut_line_is_measured_again(tmp_path):
    store = Store(tmp_path, ("model", "method", "nfe"))
    for nfe in (1, 2):
        store.cell({"model": "m", "method": "x", "nfe": nfe}, lambda: {"rmse": 0.5})
    file = tmp_path / "m.jsonl"
    file.write_text(file.read_text()[:-9])
    again = Store(tmp_path, ("model", "method", "nfe"))
    assert len(again.records) == 1
    again.cell({"model": "m", "method": "x", "nfe": 2}, lambda: {"rmse": 0.25})
    assert {record["rmse"] for record in Store(tmp_path, ("model", "method", "nfe")).of("m")} == {0.5, 0.25}
