"""FID and KID of solvers, and `bespoke eval --fid`."""

import dataclasses
import json
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import bespoke_solvers
from bespoke_solvers import comparison, data, dedicated, fid, inception, portfolio, toy
from bespoke_solvers.bank import Bank
from bespoke_solvers.cells import Store
from bespoke_solvers.cli import app
from bespoke_solvers.evaluation import held_out
from bespoke_solvers.generic import baseline
from bespoke_solvers.judge import KEY, Judge, check_size, in_words, mark, real_pictures
from bespoke_solvers.reference import solve
from bespoke_solvers.stages import TRIED
from bespoke_solvers.velocity import Counter, noise_seeds


def features(pictures):
    """Few and cheap: means of the picture's quarters."""
    x = pictures.float().mean(1, keepdim=True)
    return torch.nn.functional.adaptive_avg_pool2d(x, 2).flatten(1) / 64


@pytest.fixture(scope="module")
def model():
    return toy.load("toy:digits")


@pytest.fixture(scope="module")
def real(model):
    """The model's own exact samples from other noise stand for the data."""
    exact = solve(model, model.noise(noise_seeds("fit", 0, 0, 256)))
    pictures = ((exact.x1.clamp(-1, 1) + 1) * 127.5).round().byte().expand(-1, 3, -1, -1)
    return fid.statistics([pictures], features, keep=256)


def test_the_exact_samples_are_judged_as_the_limit_of_the_tables(model, real):
    judge = Judge(real, features, count=192, batch_size=64)
    exact = judge.solved(model, 1e-5, 1e-5)
    coarse, fine = (judge.table(baseline("midpoint", nfe).on(model), model) for nfe in (2, 200))
    assert fine["fid"] == pytest.approx(exact["fid"], rel=1e-2)
    assert fine["kid"] == pytest.approx(exact["kid"], abs=1e-3)
    assert coarse["fid"] > 2 * exact["fid"]
    assert coarse["kid"] > exact["kid"]


def test_samples_are_drawn_from_the_noise_that_was_asked_for(model, real):
    """Of the seed and of the set of noise."""
    judge, table = Judge(real, features, count=64, batch_size=32), baseline("midpoint", 4).on(model)
    others = [dataclasses.replace(judge, **changed) for changed in ({"seed": 1}, {"noise_set": "choose"})]
    figures = [each.table(table, model)["fid"] for each in (judge, judge, *others)]
    assert figures[0] == figures[1]
    assert len(set(figures)) == 3


def test_few_exact_samples_are_solved_themselves(model, real, monkeypatch):
    """To find a solver that stands for them would take a hundred times their evaluations."""
    judge, counter = Judge(real, features, count=8, batch_size=8), Counter(model.velocity)
    bank = Bank(dataclasses.replace(model, velocity=counter), batch_size=8)
    found = judge.exact(bank)
    assert found == judge.solved(model, 1e-5, 1e-5)
    assert counter.evaluations == 8 * solve(model, model.noise(noise_seeds("report", 0, 0, 8))).evaluations


def test_a_solver_stands_for_the_exact_samples_where_it_comes_close(model, real, monkeypatch):
    monkeypatch.setattr("bespoke_solvers.judge.WORTH", 192)
    judge, counter = Judge(real, features, count=192, batch_size=64), Counter(model.velocity)
    bank = Bank(dataclasses.replace(model, velocity=counter), batch_size=32)
    found, solved = judge.exact(bank), judge.solved(model, 1e-5, 1e-5)
    assert found["fid"] == pytest.approx(solved["fid"], rel=2e-3)
    assert found["by"].startswith("ipndm@")
    assert "60 NFE" in in_words(found)
    name = found["by"].partition(",")[0]
    spent = counter.evaluations
    found = judge.exact(bank)
    assert counter.evaluations - spent == 60 * (192 + 32 + 32 * len(portfolio.variants("ipndm", 60, model)))
    closer = held_out(bank, "report", 0, 32).quality(dedicated.baseline(name, 120, model), model).rmse
    monkeypatch.setattr("bespoke_solvers.judge.CLOSE", 1.01 * closer)
    assert "120 NFE" in judge.exact(bank)["by"]
    monkeypatch.setattr("bespoke_solvers.judge.CLOSE", 1e-9)
    assert judge.exact(bank) == solved
    assert in_words(solved) == f"{solved['fid']:.2f}"


def test_fid_is_kept_for_its_own_decoder_and_features_alone(model, real, tmp_path):
    judge = Judge(real, features, count=32, batch_size=32, store=Store(tmp_path, KEY))
    table = baseline("midpoint", 4).on(model)
    other = dataclasses.replace(model, decode=lambda x: x / 2)
    darker = dataclasses.replace(judge, features=lambda pictures: features(pictures) / 2)
    found = [judge.table(table, model), judge.table(table, other), darker.table(table, model)]
    assert len({each["fid"] for each in found}) == 3
    assert [judge.table(table, model), judge.table(table, other), darker.table(table, model)] == found
    assert len(Store(tmp_path, KEY).records) == 3
    jitter = dataclasses.replace(model, velocity=lambda t, x: model.velocity(t, x) * (1 + 1e-7))
    assert judge.table(table, jitter) == found[0], "rounded otherwise, as on another machine"


def test_samples_that_are_no_pictures_are_refused_with_a_store_too(real, tmp_path):
    board = toy.load("toy:checkerboard")
    judge = Judge(real, features, count=8, store=Store(tmp_path, KEY))
    with pytest.raises(ValueError, match=r"\(2,\) are no pictures, which FID is of"):
        judge.table(baseline("euler", 2).on(board), board)


def test_exact_samples_are_judged_to_both_tolerances_of_their_bank(model, real, monkeypatch):
    used = []
    monkeypatch.setattr("bespoke_solvers.judge.CLOSE", 0.0)
    monkeypatch.setattr("bespoke_solvers.judge.solve", lambda *_, **to: used.append(to) or solve(*_, **to))
    Judge(real, features, count=8, batch_size=8).exact(Bank(model, rtol=1e-2, atol=1e-3, batch_size=32))
    assert used == [{"rtol": 1e-2, "atol": 1e-3}]


def test_copies_on_other_devices_share_the_work(model, real):
    calls = []

    def counted(name):
        def velocity(t, x):
            calls.append((name, len(x)))
            return model.velocity(t, x)

        return dataclasses.replace(model, velocity=velocity)

    table, alone = baseline("euler", 4).on(model), Judge(real, features, count=80, batch_size=16)
    expected = alone.table(table, model)
    shared = dataclasses.replace(alone, copies=[counted("copy")])
    assert shared.table(table, counted("first")) == pytest.approx(expected, rel=1e-6)
    while_drawn = [call for call in calls if call[1] == 16]
    assert while_drawn.count(("first", 16)) >= 4 * 3
    assert while_drawn.count(("copy", 16)) >= 4 * 2
    spent = [0, 0]
    for i, judge in enumerate((alone, shared)):
        counter = Counter(model.velocity)
        judge.fid(table, dataclasses.replace(model, velocity=counter))
        spent[i] = counter.evaluations
    assert spent[0] == 4 * 80
    assert 4 * 80 <= spent[1] < 4 * 80 + 100, "and some to see that the copies are copies"


def test_a_file_without_features_gives_no_kid(model, real):
    bare = fid.Statistics(real.mean, real.covariance, torch.empty(0, 4), 0)
    assert set(Judge(bare, features, count=16).table(baseline("euler", 4).on(model), model)) == {"fid"}


def test_the_comparison_says_fid_in_percent_of_the_exact_samples(model, real):
    judge = Judge(real, features, count=64, batch_size=64)
    tables = {"midpoint": [baseline("midpoint", nfe).on(model) for nfe in (4, 8)]}
    found = comparison.compare(Bank(model, batch_size=16), tables, 0, 16, judge=judge)
    assert found.exact == judge.exact(Bank(model, batch_size=16))
    for row in found.rows:
        share = f"{row['fid']:.2f} ({100 * row['fid'] / found.exact['fid']:.0f} %)"
        assert share in comparison.as_text(found)
    assert f"{in_words(found.exact)}; on 64 samples" in comparison.as_text(found)
    assert "FID" not in comparison.as_text(comparison.compare(Bank(model, batch_size=16), tables, 0, 16))


def test_a_table_that_went_astray_has_no_fid(real):
    wild = toy.load("toy:digits")
    far = baseline("euler", 2).on(wild)
    broken = type(far)(far.t, far.a * 1e30, far.b)
    judge = Judge(real, features, count=16)
    found = comparison.compare(Bank(wild, batch_size=8), {"wild": [broken]}, 0, 8, judge=judge)
    assert found.rows[0]["rmse"] is None
    assert "fid" not in found.rows[0]
    assert comparison.as_text(found).count("went astray") == 3
    few = Judge(real, features, count=16, noise_set="choose")
    assert few.fid(type(far)(far.t, far.a * 1e39, far.b), wild) == float("inf")


def test_samples_that_only_fid_meets_astray_leave_the_rest_of_a_comparison(model, real):
    class Unlucky(Judge):
        def table(self, table, model):
            if table.nfe == 2:
                raise fid.AstrayError("samples from 5000 on are not finite")
            return super().table(table, model)

    tables = {"rk2": [baseline("midpoint", nfe).on(model) for nfe in (2, 4)]}
    found = comparison.compare(Bank(model, batch_size=8), tables, 0, 8, judge=Unlucky(real, features, count=16))
    assert ["fid" in row for row in found.rows] == [False, True]
    assert comparison.as_text(found)


@pytest.fixture
def folder(tmp_path):
    """A prepared data set of grey pictures of one size."""
    generator = np.random.default_rng(0)
    (tmp_path / "pictures").mkdir()
    for i in range(12):
        pixels = generator.integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{i}.png")
    data.prepare(tmp_path / "pictures", tmp_path / "prepared", size=8, progress=False)
    return tmp_path / "prepared"


def test_statistics_of_a_data_set_are_kept_in_it(folder):
    seen = []

    def counting(pictures):
        seen.append(len(pictures))
        return features(pictures)

    first = real_pictures(folder, counting)
    assert (first.count, seen) == (12, [2, 12, 12]), "to know features by, pictures by, and all"
    again = real_pictures(folder, counting)
    assert seen[3:] == [2, 12], "not made twice"
    torch.testing.assert_close(again.mean, first.mean)
    torch.testing.assert_close(real_pictures(folder / "fid.npz", counting).covariance, first.covariance)
    other = real_pictures(folder, lambda pictures: 2 * features(pictures))
    torch.testing.assert_close(other.mean, 2 * first.mean, msg="other features, other statistics")


def test_statistics_of_pictures_that_can_only_be_read_are_not_kept(folder, monkeypatch):
    """But used: they may have taken minutes."""

    def refused(path, content):
        raise OSError(30, "Read-only file system", str(folder))

    monkeypatch.setattr("bespoke_solvers.fid.write_atomically", refused)
    with pytest.warns(UserWarning, match="are not kept for the next time: .* Read-only file system"):
        found = real_pictures(folder, features)
    monkeypatch.undo()
    torch.testing.assert_close(found.mean, real_pictures(folder, features).mean)


def test_statistics_of_pictures_that_were_replaced_are_made_again(folder):
    first = real_pictures(folder, features)
    pixels = np.load(folder / "pixels.npy")
    np.save(folder / "pixels.npy", 255 - pixels)
    assert not torch.allclose(real_pictures(folder, features).mean, first.mean)


def test_statistics_of_a_folder_that_became_another_are_made_again(folder, tmp_path):
    """Though the pictures by which they are known are the same."""
    real_pictures(folder, features)
    card = json.loads((folder / "data.json").read_text())
    (folder / "data.json").write_text(json.dumps(card | {"sha256": "0" * 64}))
    kept = (folder / "fid.npz").read_bytes()
    real_pictures(folder, features)
    assert (folder / "fid.npz").read_bytes() != kept


def test_kept_statistics_that_are_damaged_are_told_and_made_again(folder):
    first = real_pictures(folder, features)
    (folder / "fid.npz").write_bytes((folder / "fid.npz").read_bytes()[:100])
    with pytest.warns(UserWarning, match=r"the kept statistics are not used: .*fid\.npz is damaged"):
        again = real_pictures(folder, features)
    assert torch.equal(again.mean, first.mean)
    assert torch.equal(fid.load(folder / "fid.npz").mean, first.mean)


def test_pictures_of_another_size_than_the_samples_are_doubted(folder, real, tmp_path):
    with pytest.warns(UserWarning, match="have 8 x 8 pixels, the samples 8 x 9: FID will be of that"):
        check_size(folder, (3, 8, 9))
    real.save(tmp_path / "real.npz")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_size(folder, (1, 8, 8))
        check_size(folder, (2,))  # no pictures, of which there is no FID
        check_size(tmp_path / "real.npz", (1, 8, 9))


def test_statistics_of_other_features_are_refused_before_any_sample(real, tmp_path):
    real.save(tmp_path / "real.npz")
    assert torch.equal(real_pictures(tmp_path / "real.npz", features).mean, real.mean)
    with pytest.raises(ValueError, match=r"real.npz holds statistics of 4 features, but Inception gives 3; give "):
        real_pictures(tmp_path / "real.npz", lambda pictures: features(pictures)[:, :3])


def test_the_command(folder, tmp_path, monkeypatch):
    weights, asked = tmp_path / "weights.pth", []

    def load(path):
        asked.append(path)
        return features

    monkeypatch.setattr(inception, "load", load)
    runner, solver = CliRunner(), tmp_path / "s.json"
    few = ["--paths", "8", "--validation-paths", "8", "--batch-size", "8", "--quiet"]
    made = runner.invoke(app, ["fit", "toy:digits", "--nfe", "3", "--effort", "low", *few, "--out", str(solver)])
    assert made.exit_code == 0, made.output
    options = ["--fid", str(folder), "--fid-samples", "8", "--inception", str(weights), "--samples", "8", "--quiet"]
    arguments = ["eval", "toy:digits", "--solver", str(solver), "--nfe", "4", "--baselines", "euler"]
    ran = runner.invoke(app, [*arguments, *options, "--out", str(tmp_path / "out")])
    assert ran.exit_code == 0, ran.output
    assert asked == [weights]
    assert "FID at NFE" in ran.output
    assert "KID at NFE, in thousandths" in ran.output
    assert "exact samples: " in ran.output
    assert "on 8 samples, too few to tell solvers apart by it" in ran.output
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert written["judged"] == 8
    assert {"fid", "kid"} <= set(written["exact"])
    assert all({"fid", "kid"} <= set(row) for row in written["rows"])
    few += ["--nfe", "3", "--effort", "low", "--overwrite", *options[:6]]
    chosen = runner.invoke(app, ["fit", "toy:digits", *few, "--out", str(solver)])
    assert chosen.exit_code == 0, chosen.output
    assert bespoke_solvers.load(solver).fit["rated"] == f"FID to {mark(folder, features)} on 8 samples of choose 0"
    ratings = bespoke_solvers.load(solver).fit["ratings"]
    assert [iteration for iteration, _ in ratings] == [0, TRIED + 1]
    assert all(rating > 0 for _, rating in ratings)
    dry = runner.invoke(app, [*arguments, *options, "--out", str(tmp_path / "other"), "--dry-run"])
    assert "on 8 samples for FID" in dry.output
    assert "and 40 exact samples" in dry.output
    more = runner.invoke(app, [*arguments, *options, "--fid-samples", "256", "--out", str(tmp_path / "o"), "--dry-run"])
    tried = 32 * 60 * len(portfolio.variants("ipndm", 60, toy.load("toy:digits")))
    assert f"{tried:,} to find a solver that stands for exact ones, which then takes 15,360 or more" in more.output
    assert not (tmp_path / "other").exists()


def interrupted(monkeypatch, method):
    """A judge's method is interrupted the second time; returns what it judged."""
    judged, own = [], getattr(Judge, method)

    def second_time(self, by, model):
        judged.append(by)
        if len(judged) == 2:
            raise KeyboardInterrupt
        return own(self, by, model)

    monkeypatch.setattr(Judge, method, second_time)
    return judged


def test_an_interrupted_fit_goes_on_by_the_same_fid_alone(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(inception, "load", lambda path: features)
    runner = CliRunner()
    interrupted(monkeypatch, "fid")
    arguments = ["fit", "toy:digits", "--nfe", "3", "--effort", "low", "--out", str(tmp_path / "s.json"), "--quiet"]
    arguments += ["--paths", "8", "--validation-paths", "8", "--batch-size", "8", "--fid"]
    assert runner.invoke(app, [*arguments, str(folder), "--fid-samples", "8"]).exit_code == 130
    statistics = real_pictures(folder, features)
    dataclasses.replace(statistics, mean=statistics.mean + 1).save(tmp_path / "other.npz")
    to = mark(folder, features)
    for other, samples in ((folder, "16"), (tmp_path / "other.npz", "8")):
        again = runner.invoke(app, [*arguments, str(other), "--fid-samples", samples])
        found = f"FID to {to} on 8 samples of choose 0 (here FID to {mark(other, features)} on {samples} samples of"
        assert f"is of another fit: rated {found} choose 0)" in str(again.exception)
    assert runner.invoke(app, [*arguments, str(folder), "--fid-samples", "8"]).exit_code == 0


def test_a_comparison_that_was_interrupted_measures_fid_once(folder, tmp_path, monkeypatch):
    """Of four tables and the exact samples, one is judged when it is stopped; the others are when it goes on."""
    monkeypatch.setattr(inception, "load", lambda path: features)
    runner, judged = CliRunner(), interrupted(monkeypatch, "_judged")
    solver = tmp_path / "s.json"
    few = ["--paths", "8", "--validation-paths", "8", "--batch-size", "8", "--quiet"]
    runner.invoke(app, ["fit", "toy:digits", "--nfe", "3", "--effort", "low", *few, "--out", str(solver)])
    arguments = ["eval", "toy:digits", "--solver", str(solver), "--nfe", "4", "--baselines", "euler,midpoint"]
    arguments += ["--fid", str(folder), "--inception", "weights.pth", "--samples", "8", "--quiet"]
    arguments += ["--out", str(tmp_path / "out"), "--fid-samples"]
    assert runner.invoke(app, [*arguments, "8"]).exit_code != 0
    ran = runner.invoke(app, [*arguments, "8"])
    assert ran.exit_code == 0, ran.output
    assert len(judged) == 2 + 4
    before = json.loads((tmp_path / "out" / "results.json").read_text())
    assert runner.invoke(app, [*arguments, "8"]).exit_code == 0
    assert len(judged) == 2 + 4, "all of it is known"
    again = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (again["rows"], again["exact"]) == (before["rows"], before["exact"])
    runner.invoke(app, [*arguments, "16"])
    assert len(judged) == 2 + 4 + 5, "of other samples it is not"
