"""`bespoke paper`: what its cells belong to, and what it does when something is wrong."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from bespoke_solvers import dedicated, fid, gallery, toy
from bespoke_solvers.bank import GIB, Bank, BankFullError
from bespoke_solvers.cells import Store
from bespoke_solvers.cli import main
from bespoke_solvers.description import differences
from bespoke_solvers.evaluation import held_out
from bespoke_solvers.judge import Judge, mark
from bespoke_solvers.paper import figures, plan
from bespoke_solvers.paper.lab import PICTURES, SPRITES, Lab, _described
from bespoke_solvers.paper.plan import DPM2, FULL, RK2, RK2_BESPOKE, Experiment
from bespoke_solvers.paper.results import Results
from bespoke_solvers.report import significant
from bespoke_solvers.schedules import DiscreteVP
from bespoke_solvers.velocity import Model
from picture_files import mnist_folder, prepare

KEY = ("model", "method", "nfe")
COUNTS = FULL._replace(
    nfe=(4,), paths=4, iterations=2, choose=4, samples=4, fid_samples=4, tolerance=1e-2, batch_size=4
)
TINY = [
    *("--nfe", "4", "--paths", "4", "--iterations", "2", "--choose", "4", "--samples", "4", "--batch-size", "4"),
    *("--tolerance", "1e-2", "--fid-samples", "4"),
]


@pytest.fixture(scope="module")
def board():
    return toy.checkerboard()


def lab(folder, model, name="m", counts=COUNTS, **options):
    return Lab(name, model, Store(folder / "cells", plan.KEY), counts, 0, folder / "bank", **options)


def run(*arguments, code=0):
    with pytest.raises(SystemExit) as end:
        main(["paper", *map(str, arguments), "--quiet"])
    assert end.value.code == code


def refused(capsys, *arguments):
    capsys.readouterr()
    run(*arguments, code=1)
    return capsys.readouterr().err


def forbid(monkeypatch, *names):
    """What must not be reached."""
    for name in names:
        monkeypatch.setattr(name, lambda *_, name=name, **__: pytest.fail(f"{name} was called"))


def test_a_cell_that_does_not_fit_on_the_disk_is_no_cell(tmp_path):
    code = """
import resource, signal, sys
from pathlib import Path
from bespoke_solvers.cells import Store
store = Store(Path(sys.argv[1]), ("model", "method", "nfe"))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
store.add({"model": "m", "method": "x" * 2000, "nfe": 1})
"""
    ran = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert "there is no room for a cell in" in ran.stderr
    assert not Store(tmp_path, KEY).records


@pytest.mark.parametrize(
    ("line", "words"), [('{"model": "m", "nfe": 3}', "it has no method;"), ("[1, 2]", r"it is \[1, 2\];")]
)
def test_a_line_that_is_no_cell_is_named(tmp_path, line, words):
    (tmp_path / "m.jsonl").write_text(json.dumps({"model": "m", "method": "x", "nfe": 2}) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=rf"line 2 of .*m\.jsonl is no cell .*{words} expected .* model, method, nfe"):
        Store(tmp_path, KEY)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"rmse": None, "psnr": None}, "astray"),
        ({"rmse": 0.0}, "rmse 0"),
        ({"rmse": 0.25}, "rmse 0.25"),
        ({"pictures": "..."}, "samples"),
    ],
)
def test_what_is_told_of_a_cell(tmp_path, values, told):
    heard = []
    store = Store(tmp_path, (*KEY, "measured"), say=heard.append)
    store.cell({"model": "m", "method": "x", "nfe": 2, "measured": "samples"}, lambda: values)
    assert heard == [f"m, 2 NFE, x: {told}"]


def test_the_cells_of_another_model_are_refused(tmp_path, board, capsys, monkeypatch):
    """Also where the counts are others, and where nothing is left to measure."""
    lab(tmp_path, board, "toy:checkerboard").about()
    lab(tmp_path, toy.checkerboard(), "toy:checkerboard").about()
    other = dataclasses.replace(board, velocity=lambda t, x: 1.01 * board.velocity(t, x))
    with pytest.raises(ValueError, match=r"cells of toy:checkerboard in .* of another model: other weights .* --out"):
        lab(tmp_path, other, "toy:checkerboard", COUNTS._replace(samples=8))
    with pytest.raises(ValueError, match=r"another model: schedule .*CondOT.*Cosine"):
        lab(tmp_path, toy.load("toy:checkerboard-fm-v-cs"), "toy:checkerboard")
    monkeypatch.setattr("bespoke_solvers.cli.paper.resolve", lambda *_, **__: other)
    forbid(monkeypatch, "bespoke_solvers.paper.figures.write", "bespoke_solvers.fitting.fit")
    assert "of another model" in refused(capsys, "toy:checkerboard", *TINY, "--out", tmp_path)


def features(pictures):
    return pictures.float().mean((2, 3)) / 64


def real(seed):
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.randint(256, (64, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return fid.statistics([pictures], features, keep=64)


@pytest.fixture(scope="module")
def digits():
    return toy.digits(centres=8)


def test_fid_to_other_pictures_is_measured_again(tmp_path, digits, capsys):
    experiment, found = Experiment("x", (), (RK2,), fid=True), []
    for seed in (0, 1, 0):
        judge = Judge(real(seed), features, 4, 0, 4)
        judge.real.save(tmp_path / f"{seed}.npz")
        mine = mark(tmp_path / f"{seed}.npz", features)
        one = lab(tmp_path, digits, "toy:digits", COUNTS._replace(real=mine), judge=judge)
        one.measure(experiment)
        assert not one.failed
        found.append({record["real"]: record["fid"] for record in one.store.of("toy:digits") if "fid" in record})
    assert [len(each) for each in found] == [1, 2, 2]
    assert len(set(found[1].values())) == 2
    told = refused(capsys, "toy:digits", *TINY, "--draw", "--out", tmp_path)
    assert "was measured to 2 sets of pictures; say which by --real" in told


def test_dpm_2_stands_on_its_best_grid(tmp_path, board):
    """On its usual one, even in the log-snr, it is no rival on a flow's path."""
    at = lab(tmp_path, board, counts=COUNTS._replace(nfe=(8,), choose=32, samples=32, batch_size=32))
    usual = at.figures(dedicated.baseline("dpm-2", 8, board))["rmse"]
    found = at.error(DPM2, 8)
    assert found["grid"].startswith("dpm-2@")
    assert found["rmse"] < usual / 2
    assert "grid" not in at.error(RK2, 8)


def test_schedules_of_equal_length_are_told_apart():
    def kept(power):
        alphas = torch.linspace(0.999, 0.01, 50, dtype=torch.float64) ** power
        return _described(Model(lambda t, x: -x, (2,), DiscreteVP(tuple(alphas.tolist())), prediction="flow"))

    assert differences(kept(1), kept(1)) == {}
    assert "schedule" in differences(kept(1), kept(2))


def test_marks_tell_pictures_and_inceptions_apart(tmp_path):
    networks = [torch.nn.Sequential(torch.nn.Linear(2, 2)) for _ in range(2)]
    folder = tmp_path / "real"
    prepare(mnist_folder(tmp_path / "mnist"), folder)
    first = mark(folder, networks[0])
    assert first != mark(folder, networks[1])
    real(0).save(folder / "fid.npz")
    assert first == mark(folder, networks[0]), "however their statistics are rounded"
    card = folder / "data.json"
    facts = json.loads(card.read_text())
    card.write_text(json.dumps(facts | {"sha256": "of other pictures"}))
    assert first != mark(folder, networks[0])
    card.write_text(json.dumps(facts | {"sha256": None, "labels_sha256": None}))
    pixels = np.load(folder / "pixels.npy")
    unknown = mark(folder, networks[0])
    np.save(folder / "pixels.npy", 255 - pixels)
    assert unknown != mark(folder, networks[0]), "of which no digest is known"


def test_sprites_are_alike_whatever_nfe_there_are(tmp_path, digits, monkeypatch):
    """So that a run with more NFE adds to the viewer, which cuts all sprites as it cuts the exact one."""
    monkeypatch.setattr("bespoke_solvers.gallery.PIXELS", SPRITES * 4 * 4 * 4)
    for nfe in ((4,), (4, 8), (8, 10, 20)):
        one = lab(tmp_path, digits, counts=COUNTS._replace(nfe=nfe))
        one.about()
        one.sprites((RK2,))
    layouts = {(r["shown"], r["columns"], tuple(r["size"]), r["height"]) for r in one.store.of("m") if "pictures" in r}
    assert layouts == {(4, 2, (4, 4), 8)}


@pytest.mark.parametrize(("nfe", "at"), [((4, 8, 10), 10), ((8, 20), 8)])
def test_samples_are_drawn_side_by_side(tmp_path, digits, nfe, at):
    """A row for each method, with the RMSE of all the samples to report on, not of those few."""
    one = lab(tmp_path, digits, counts=COUNTS._replace(nfe=nfe, samples=16))
    one.measure(plan.SAMPLES._replace(methods=(RK2, DPM2)))
    one.sprites((RK2, DPM2))
    figure = figures.samples_of(Results(one.store, ["m"], [plan.SAMPLES], one.counts, 0), "m")
    rmse = {method: significant(one.error(method, at)["rmse"]) for method in (RK2, DPM2)}
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert labels == ["exact", *(f"{method}, {at} NFE\nRMSE {error}" for method, error in rmse.items())]
    exact, midpoint, _ = (axes.get_images()[0].get_array() for axes in figure.axes)
    assert exact.shape == midpoint.shape
    assert (exact != midpoint).any()


@pytest.mark.parametrize(("side", "size"), [(32, 32), (64, 64), (256, 138)])
def test_pictures_are_shown_as_they_are_unless_they_are_large(side, size):
    model = Model(velocity=lambda t, x: -x, shape=(3, side, side), schedule=toy.SCHEDULES["fm-ot"])
    noise = held_out(Bank(model, batch_size=4, rtol=0.1, atol=0.1), "report", 0, 4)
    found = gallery.layout(model, noise, SPRITES, [PICTURES])
    assert (found.shown, found.size) == (4, (size, size))
    assert ("256 pixels high" in gallery.text_of(found, side)) == (side > size)


def test_pictures_and_weights_for_fid_are_looked_for_first(tmp_path, capsys, monkeypatch):
    forbid(monkeypatch, "bespoke_solvers.cli.paper.resolve", "bespoke_solvers.fitting.fit")
    command = ["toy:digits", "--quick", "--out", tmp_path, "--real", tmp_path / "none.npz"]
    weights = ["--inception", tmp_path / "none.pth"]
    assert "none.npz; expected a folder of bespoke data, or an .npz file" in refused(capsys, *command, *weights)
    real(0).save(tmp_path / "none.npz")
    told = refused(capsys, *command, *weights)
    assert "there is no file" in told
    assert "none.pth" in told


@pytest.fixture
def drawn(tmp_path, board, monkeypatch):
    """Draws without the models' folders; gives the results that would be written up."""
    for name in ("tiny", "tiny, guidance 2"):
        lab(tmp_path, board, name).about()
    found = []
    monkeypatch.setattr(figures, "write", lambda results, *_: found.append(results) or [])
    forbid(monkeypatch, "bespoke_solvers.cli.paper.resolve")

    def draw(*arguments):
        run("gone/tiny/", "--guidance", "2", *TINY, "--draw", "--out", tmp_path, *arguments)
        return found[-1]

    return draw


def test_drawing_needs_no_folders(drawn):
    assert drawn().models == ["tiny", "tiny, guidance 2"]


def test_models_without_cells_are_left_out_of_the_drawing(drawn, capsys):
    assert drawn("other/big", "--guidance", "2").models == ["tiny", "tiny, guidance 2"]
    assert "has no cells: big, big, guidance 2" in capsys.readouterr().err


def test_the_time_of_training_can_be_corrected(drawn):
    assert drawn("--training", "tiny=70").training == {"tiny": 70.0, "tiny, guidance 2": 70.0}
    assert drawn("--training", "tiny=50").training["tiny"] == 50.0
    assert drawn().training == {}


def test_no_fit_to_fewer_paths_than_its_cell_says(tmp_path, board):
    counts = COUNTS._replace(paths=8)
    full = lab(tmp_path, board, counts=counts)
    full.bank.paths(0, 0)
    used = sum(file.stat().st_size for file in (tmp_path / "bank").rglob("*") if file.is_file())
    small = lab(tmp_path, board, counts=counts, budget=1.5 * used / GIB)
    with pytest.raises(BankFullError, match="exceeds the budget"):
        small.table(RK2_BESPOKE, 4)
    small.measure(Experiment("x", (), (RK2, RK2_BESPOKE)))
    assert list(small.failed) == [(RK2_BESPOKE, 4)]
    assert {record["method"] for record in small.store.of("m") if record["measured"] == "error"} == {RK2}


def test_a_run_goes_on_when_a_fit_fails(tmp_path, capsys, monkeypatch):
    """Each is tried once, also where another model wants its solver; what there is, is drawn."""
    tried = []

    def failing(model, **options):
        tried.append(model)
        raise ValueError("no such luck")

    monkeypatch.setattr("bespoke_solvers.fitting.fit", failing)
    models = ["toy:checkerboard", "toy:checkerboard-fm-v-cs"]
    told = refused(capsys, *models, *TINY, "--only", "fig_a:trans*", "--only", "fig:3_paths", "--out", tmp_path)
    assert len(tried) == 2
    for model in models:
        assert f"failed: {model}, 4 NFE, RK2-Bespoke: no such luck" in told
    content = json.loads((tmp_path / "results.json").read_text())
    assert {(cell["model"], cell["method"]) for cell in content["cells"] if "rmse" in cell} == {
        (m, RK2) for m in models
    }
    for model in models:
        assert f"{model}, 4 NFE, RK2-Bespoke: no such luck" in content["failed"]
    assert (
        f"<p>What failed in this run:</p><ul><li>{content['failed'][0]}.</li>" in (tmp_path / "report.html").read_text()
    )


def test_a_model_without_exact_samples_is_left_out(tmp_path, capsys, monkeypatch):
    about = Lab.about

    def failing(self):
        if self.name == "toy:checkerboard-vp":
            raise RuntimeError("never finished")
        return about(self)

    monkeypatch.setattr(Lab, "about", failing)
    monkeypatch.setattr(Lab, "measure", lambda self, experiment: None)
    command = ["toy:checkerboard", "toy:checkerboard-vp", *TINY, "--only", "fig_a:scale_*", "--out", tmp_path]
    assert "failed: toy:checkerboard-vp, 0 NFE, exact: never finished" in refused(capsys, *command)
    assert list(json.loads((tmp_path / "results.json").read_text())["models"]) == ["toy:checkerboard"]


def test_names_and_counts_are_refused_before_the_work(tmp_path, capsys, monkeypatch):
    forbid(monkeypatch, "bespoke_solvers.cli.paper.resolve")
    assert "--nfe 0,8: a sample takes 1 evaluation or more" in refused(
        capsys, "toy:checkerboard", "--nfe", "0,8", "--out", tmp_path
    )
    assert "two models are called a-b:f, or alike" in refused(capsys, "a-b-f", "a-b:f", "--out", tmp_path)
    assert plan.file_name("a.b:f") != plan.file_name("a-b:f")
