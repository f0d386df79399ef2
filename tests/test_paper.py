"""`bespoke paper`: its cells and its report."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from bespoke_solvers import fid, fitting
from bespoke_solvers.cells import Store
from bespoke_solvers.cli import main
from bespoke_solvers.judge import Judge
from bespoke_solvers.paper import figures, plan
from bespoke_solvers.paper.plan import (
    EDM,
    NS,
    RK2_BESPOKE,
)
from bespoke_solvers.report import significant
from chains import CLOSED
from pipelines import unet

FEWER = ["--paths", "4", "--iterations", "2", "--choose", "4", "--samples", "4", "--batch-size", "4"]
POINTED = """document.querySelectorAll(".curves svg[role=img]").forEach((chart) => {
  const { left, top, width, height } = chart.getBoundingClientRect();
  chart.dispatchEvent(new PointerEvent("pointermove", { clientX: left + %f * width, clientY: top + height / 2 }));
})"""
TINY = ["--nfe", "4", "--paths", "8", "--iterations", "4", "--choose", "8", "--samples", "16", "--batch-size", "8"]


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
    names |= {"toy-checkerboard-samples.png", "toy-checkerboard-vp-samples.png"}
    assert names <= {file.name for file in files}
    assert sum(file.stat().st_size for file in files) < 700_000
    content = json.loads((out / "results.json").read_text())
    assert content["models"] == {"toy:checkerboard": "FM-OT", "toy:checkerboard-vp": "VP, flow"}
    assert content["counts"]["nfe"] == [4]
    assert str(out) not in json.dumps(content) + (out / "report.html").read_text()
    assert sum(len(each["cases"]) for each in content["statements"]) > 10
    absent = [each["claim"] for each in content["statements"] if "FID" not in each["claim"] and not each["cases"]]
    assert len(absent) == 2
    assert "on the same path" in absent[0]
    assert "the model's training" in absent[1], "toys have none"


@pytest.mark.parametrize("width", [390, 1200])
def test_the_report_opens_and_nothing_is_cut_off(opened, reported, width):
    page = opened(reported[0] / "report.html", width=width)
    titles = page.js("[...document.querySelectorAll('h2')].map(each => each.textContent)")
    assert {experiment.name for experiment in plan.EXPERIMENTS} <= set(titles)
    page.js("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.js("document.documentElement.scrollWidth") == width
    assert page.cut_off() == []
    for place in (0.02, 0.5, 0.98):
        page.js(POINTED % place)
        assert page.js("document.querySelectorAll('.tag').length") > 3
        assert page.cut_off() == [], "nor is the name of the curve that the pointer is at"
    contrasts = page.contrasts()
    assert len(contrasts) > 100
    assert [found for found in contrasts if found[0] < found[1]] == []


def test_another_model_can_be_chosen(opened, reported):
    page = opened(reported[0] / "report.html")
    section = "[...document.querySelectorAll('section.choice')].find(s => s.textContent.includes('scale alone'))"
    seen = f"[...{section}.querySelectorAll('.part')].map(part => part.checkVisibility())"
    assert page.js(seen) == [True, False]
    page.js(f"{section}.querySelector('select').focus()")
    page.press("ArrowDown")
    page.until(f"{seen}[1]")
    assert page.js(seen) == [False, True]
    page.until(f"{section}.querySelectorAll('.part')[1].querySelectorAll('.curve').length === 8")


def test_all_figures_of_a_model_can_be_sorted(opened, reported):
    page = opened(reported[0] / "report.html")
    table = "[...document.querySelectorAll('section.choice .part.table')].find(part => part.checkVisibility())"
    column = f"[...{table}.querySelectorAll('tbody tr')].map(row => row.cells[2].dataset.value)"
    before = page.js(column)
    page.js(f"{table}.querySelectorAll('thead button')[2].click()")
    after = page.js(column)
    measured = [float(value) for value in after if value]
    assert len(measured) > 5
    assert measured == sorted(measured)
    assert sorted(after) == sorted(before)


def test_paper_shows_every_model_and_every_case(opened, reported):
    page = opened(reported[0] / "report.html")
    names = ["toy:checkerboard (FM-OT)", "toy:checkerboard-vp (VP, flow)"]
    heads = (
        "[...document.querySelectorAll('section.choice > .part > h3.name, section.learned > .part > h3.name')]"
        ".filter(each => each.checkVisibility() && each.nextElementSibling.checkVisibility())"
        ".map(each => [each.closest('section').querySelector('h2').textContent, each.textContent])"
    )
    assert [title for title, _ in page.js(heads)] == [plan.AGAINST_EDM.name], "of one model only, without a switch"
    figures = "[...document.querySelectorAll('.check td')].filter(each => each.checkVisibility() && each.textContent)"
    statements = json.loads((reported[0] / "results.json").read_text())["statements"]
    printed, count = page.printed(f"[{heads}, {figures}.length]")
    of_cases = {
        (each["claim"], case["where"], case["nfe"], name)
        for each in statements
        for case in each["cases"]
        for name in case["figures"]
    }
    assert count == len(of_cases), "each once"
    for experiment in (plan.SAMPLES, plan.PATHS, plan.ABLATION, plan.ITERATIONS):
        assert [name for title, name in printed if title == experiment.name] == names
    assert len([title for title, _ in printed if title == plan.THETA.name]) == len(names)
    failed = sum(not all(case["held"] for case in each["cases"]) for each in statements)
    page.until(f"document.querySelectorAll('.check details[open]').length === {failed}")


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
        many = f"{failed} of {len(each['cases'])} cases" if failed else f"all {len(each['cases'])} cases"
        assert text.startswith(f"{each['verdict']} in {many if len(each['cases']) > 1 else 'the one case'}")
        noisy = sum(case["held"] == (failed == 0) and case["clear"] is False for case in each["cases"])
        assert ("within the noise" in text) == (noisy > 0)
    of_failed = {
        (each["claim"], case["where"], case["nfe"], name)
        for each in statements
        for case in each["cases"]
        for name in case["figures"]
        if not case["held"]
    }
    failed = "[...document.querySelectorAll('.check td.failed')].filter(each => each.checkVisibility()).length"
    assert page.js(failed) == len(of_failed), "to be seen without unfolding"
    exact = [json.loads(several[0])["reference_evaluations"] / 4 for several in lines(out).values()]
    errors = [significant(figure) for figure in sorted(rmse(out, RK2_BESPOKE).values())]
    saved = f"{min(exact):.0f} to {max(exact):.0f} times fewer evaluations at RMSE {' to '.join(errors)} (RK2-Bespoke)"
    assert page.js("document.querySelector('.figure').textContent") == saved


def rmse(folder, method):
    """Of each model, as its cells have it."""
    records = [json.loads(line) for several in lines(folder).values() for line in several]
    return {r["model"]: r["rmse"] for r in records if r["measured"] == "error" and r["method"] == method}


def test_results_json_has_five_digits(reported):
    """Of the cells' figures and of the cases'."""
    content = json.loads((reported[0] / "results.json").read_text())
    for model, exact in rmse(reported[0], RK2_BESPOKE).items():
        where = {"measured": "error", "method": RK2_BESPOKE, "model": model}
        (cell,) = (each for each in content["cells"] if where.items() <= each.items())
        (case,) = (each for each in content["statements"][0]["cases"] if each["where"] == model)
        assert cell["rmse"] == case["figures"][RK2_BESPOKE] == float(f"{exact:.5g}")


def test_sampling_paths_say_their_nfe(reported):
    assert "The steps of RK2 and RK2-Bespoke with 4 NFE" in (reported[0] / "report.html").read_text()


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
    monkeypatch.setattr("bespoke_solvers.cli.paper.judge", lambda *_, progress: Judge(real, features, 4, 0, 4))
    monkeypatch.setattr("bespoke_solvers.judge.FEW", 4)
    real.save(tmp_path / "real.npz")
    options = ["--guidance", "2", "--real", tmp_path / "real.npz", "--fid-samples", "4", "--tolerance", "1e-2"]
    options += ["--device", "cpu", "--only", "tab:cifar10_a"]
    run(folder, *TINY, *options, *FEWER, "--out", tmp_path / "out")
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
    assert "SECONDS, over 0" in refused(capsys, board, "--training", f"{board}=0", "--out", tmp_path)
    told = refused(capsys, board, "--draw", "--out", tmp_path / "none")
    assert "none has no cells of toy:checkerboard; measure them first, without --draw" in told
    assert not (tmp_path / "none").exists()


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
