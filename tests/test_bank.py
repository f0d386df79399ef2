import dataclasses
import itertools
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from bespoke_solvers import bank as bank_module
from bespoke_solvers import reference, toy
from bespoke_solvers.bank import Bank, BankFullError
from bespoke_solvers.evaluation import held_out
from bespoke_solvers.files import write_atomically, write_new
from bespoke_solvers.fitting import fit
from bespoke_solvers.metrics import psnr, rmse
from bespoke_solvers.schedules import VP, CondOT
from bespoke_solvers.table import sample
from bespoke_solvers.velocity import Counter, Model
from problems import SCHEDULES


@pytest.fixture
def counter():
    return Counter(toy.checkerboard().velocity)


@pytest.fixture
def model(counter):
    return dataclasses.replace(toy.checkerboard(), velocity=counter)


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_a_batch_is_solved_once_and_comes_back_whole(model, counter, tmp_path, where):
    folder = tmp_path / "bank" if where == "folder" else None
    bank = Bank(model, folder, batch_size=4)
    exact = reference.solve(model, bank.noise("fit", 7, 2))
    first = bank.paths(7, 2)
    calls = counter.calls
    again = (Bank(model, folder, batch_size=4) if folder else bank).paths(7, 2)
    assert counter.calls - calls <= 8, "at most a fingerprint"
    t = torch.linspace(0, 1, 7, dtype=torch.float64)
    for paths in (first, again):
        assert torch.equal(paths.at(t).x, exact.at(t).x)
        assert torch.equal(paths.x1, exact.x1)
        assert paths.evaluations == exact.evaluations


@pytest.mark.parametrize("first", ["samples", "paths"])
def test_ends_of_fitting_paths_are_kept_apart_from_them(model, tmp_path, first):
    """To see whether a fit is better on its own paths than on others."""
    bank = Bank(model, tmp_path, batch_size=4)
    if first == "paths":
        bank.paths(0, 0)
    _, x1, _ = bank.samples("fit", 0, 0)
    assert torch.equal(x1, bank.paths(0, 0).x1)


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_a_fit_counts_the_time_of_paths_that_were_there(model, tmp_path, monkeypatch, where):
    """Each batch takes ten seconds of this clock, and nothing else takes any."""
    now = itertools.count(0, 10)
    monkeypatch.setattr("bespoke_solvers.bank.time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr("bespoke_solvers.run.time", SimpleNamespace(monotonic=lambda: 0))
    folder = tmp_path if where == "folder" else None
    bank = Bank(model, folder, batch_size=4)

    def fitted(bank, paths):
        return fit(model, nfe=2, bank=bank, paths=paths, validation_paths=8, effort="low", progress=False)

    assert fitted(bank, 8).fit["seconds"] == 40
    assert fitted(bank, 12).fit["seconds"] == 50
    if where == "folder":
        assert fitted(Bank(model, folder, batch_size=4), 12).fit["seconds"] == 50
        for file in folder.glob("fit-*.safetensors"):  # as an earlier version wrote them
            save_file({name: value for name, value in load_file(file).items() if name != "seconds"}, file)
        assert fitted(Bank(model, folder, batch_size=4), 12).fit["seconds"] == 20


def test_an_error_of_writing_is_not_hidden_by_that_of_tidying(tmp_path, monkeypatch):
    """On a disk that can only be read, what was not begun cannot be removed either."""

    def refuse(*arguments, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(OSError, match="Read-only file system: file cannot be written there"):
        write_atomically(tmp_path / "file", b"whole")


def test_threads_can_write_one_file(tmp_path):
    def write(number):
        for _ in range(50):
            write_atomically(tmp_path / "file", bytes([number]) * 1000)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert len(set((tmp_path / "file").read_bytes())) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_eps_vp_paths_survive_the_folder(tmp_path):
    """Also the part of a path after the domain, and the regular schedule on which it was solved."""
    toy_vp = toy.load("toy:checkerboard-vp")
    model = Model(velocity=toy_vp.velocity, shape=(2,), schedule=VP(), prediction="epsilon", domain=(0.0, 0.9))
    t = torch.tensor([0.3, 0.95, 1.0], dtype=torch.float64)
    made, read = (Bank(model, tmp_path, batch_size=4).paths(0, 0).at(t) for _ in range(2))
    assert torch.equal(made.x, read.x)
    assert torch.equal(made.x, reference.solve(model, Bank(model, batch_size=4).noise("fit", 0, 0)).at(t).x)


def test_a_bank_grows_without_solving_again(model, counter, tmp_path):
    Bank(model, tmp_path, batch_size=4).fill(0, 8)
    files = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert sorted(files) == ["bank.json", "fit-0-000000.safetensors", "fit-0-000001.safetensors"]
    assert Bank(model, tmp_path, batch_size=4).fill(0, 13) == 4
    after = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert len(after) == 5
    assert files.items() <= after.items()


def test_unfinished_files_of_a_crash_are_no_paths(model, tmp_path):
    bank = Bank(model, tmp_path, batch_size=4)
    (tmp_path / ".fit-0-000000.safetensors.123.unfinished").write_bytes(b"half a batch")
    assert bank.paths(0, 0).x1.shape == (4, 2)


def test_a_damaged_file_is_named(model, tmp_path):
    bank = Bank(model, tmp_path, batch_size=4)
    bank.fill(0, 4)
    file = tmp_path / "fit-0-000000.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"fit-0-000000.safetensors is damaged .*remove it"):
        bank.paths(0, 0)


def test_a_bank_of_another_model_is_refused(model, tmp_path):
    Bank(model, tmp_path, batch_size=4)
    other = dataclasses.replace(model, velocity=lambda t, x: 1.005 * toy.checkerboard().velocity(t, x))
    with pytest.raises(ValueError, match="another model or setting: other weights"):
        Bank(other, tmp_path, batch_size=4)
    with pytest.raises(ValueError, match=r"schedule .*CondOT.* \(here .*VP"):
        Bank(toy.load("toy:checkerboard-vp"), tmp_path, batch_size=4)
    with pytest.raises(ValueError, match=r"batch_size 4 \(here 8\)"):
        Bank(model, tmp_path, batch_size=8)
    assert Bank(model, tmp_path, batch_size=4).batch_size == 4


def test_domains_that_differ_near_the_data_are_others(tmp_path):
    def model(end):
        return Model(lambda t, x: -x, (2,), VP(), prediction="flow", domain=(0.0, end))

    Bank(model(1 - 1e-4), tmp_path, batch_size=4)
    Bank(model(1 - 1e-4), tmp_path, batch_size=4)
    with pytest.raises(ValueError, match="domain"):
        Bank(model(1 - 1e-5), tmp_path, batch_size=4)


def test_rounding_does_not_make_another_model(model, tmp_path):
    Bank(model, tmp_path, batch_size=4)
    rounded = dataclasses.replace(model, velocity=lambda t, x: model.velocity(t, x).half().float())
    assert Bank(rounded, tmp_path, batch_size=4).folder == tmp_path


def test_a_bank_of_nearly_the_same_data_is_refused(tmp_path):
    Bank(toy.digits(300), tmp_path)
    with pytest.raises(ValueError, match="other weights"):
        Bank(toy.digits(290), tmp_path)
    with pytest.raises(ValueError, match=r"dtype torch.float32 \(here torch.float64\)"):
        Bank(toy.digits(300, dtype=torch.float64), tmp_path)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_bank_is_opened_again_whatever_the_schedule(schedule, tmp_path):
    model = Model(velocity=lambda t, x: -x, shape=(3,), schedule=schedule)
    assert Bank(model, tmp_path).folder == Bank(model, tmp_path).folder


def test_a_model_that_is_not_finite_leaves_no_bank(tmp_path):
    model = Model(velocity=lambda t, x: x * torch.nan, shape=(3,), schedule=VP())
    with pytest.raises(ValueError, match="velocity is not finite"):
        Bank(model, tmp_path / "bank")
    assert not (tmp_path / "bank").exists()


@pytest.mark.parametrize("content", ['{"schedule": ', "[1]", "3"])
def test_a_damaged_card_is_named(model, tmp_path, content):
    (tmp_path / "bank.json").write_text(content)
    with pytest.raises(ValueError, match=r"bank.json is damaged or no card of a bank"):
        Bank(model, tmp_path)


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_the_byte_budget_is_kept(model, tmp_path, where):
    folder = tmp_path if where == "folder" else None
    bank = Bank(model, folder, batch_size=4, budget=20_000)
    with pytest.warns(UserWarning, match=r"exceeds the budget of .*goes on with (\d+) paths"):
        batches = bank.fill(0, 1000)
    assert 2 <= batches < 30
    assert bank.fill(0, 4 * batches) == batches
    if folder:
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 20_000
    with pytest.raises(BankFullError, match="raise it or make the batches smaller"):
        Bank(model, batch_size=4, budget=100).fill(0, 4)


def test_held_out_quality_is_that_of_the_samples(model, tmp_path):
    from bespoke_solvers.generic import baseline

    bank = Bank(model, tmp_path, batch_size=4)
    held = held_out(bank, "report", 3, 10)
    assert len(held.x1) == 10
    noise = torch.cat([bank.noise("report", 3, i).x0 for i in range(3)])[:10]
    got = sample(baseline("euler", 5), model.bind(), noise)
    assert held.quality(baseline("euler", 5), model) == pytest.approx((rmse(got, held.x1), psnr(got, held.x1)))
    assert 0 < held.own_error < 1e-4
    assert held.evaluations > 20


def test_the_card_is_readable(model, tmp_path):
    Bank(model, tmp_path, batch_size=4)
    card = json.loads((tmp_path / "bank.json").read_text())
    assert card["schedule"] == {"name": "CondOT"}
    assert len(card["fingerprint"]) == 25


@pytest.mark.parametrize(("shape", "count"), [((2,), 24), ((3, 4, 8), 21), ((3, 32, 32), 8)])
def test_how_exact_samples_are_is_seen_on_many_where_that_is_cheap(shape, count, monkeypatch):
    asked = []
    monkeypatch.setattr("bespoke_solvers.bank.own_error", lambda *_, count, **options: asked.append(count) or 0.0)
    straight = Model(lambda t, x: -x, shape, CondOT())
    held_out(Bank(straight, batch_size=24), "report", 0, 24)
    assert asked == [count]


def test_of_two_that_make_a_bank_at_once_the_second_sees_the_first(model, tmp_path, monkeypatch):
    other, write = toy.load("toy:checkerboard-vp"), bank_module.write_new

    def meanwhile(path, content):
        monkeypatch.setattr(bank_module, "write_new", write)
        Bank(other, tmp_path)
        return write(path, content)

    monkeypatch.setattr(bank_module, "write_new", meanwhile)
    with pytest.raises(ValueError, match=r"is of another model or setting: schedule"):
        Bank(model, tmp_path)
    Bank(other, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["bank.json"]


def test_paths_without_a_card_are_nobodys(model, tmp_path):
    Bank(model, tmp_path, batch_size=2).paths(0, 0)
    (tmp_path / "bank.json").unlink()
    with pytest.raises(ValueError, match=r"holds paths, but no bank.json that says whose; use another"):
        Bank(model, tmp_path, batch_size=2)


def test_a_file_is_new_once_where_there_are_no_links_too(tmp_path, monkeypatch):
    for name in ("a", "b"):
        assert [write_new(tmp_path / name, content) for content in (b"one", b"two")] == [True, False]
        assert (tmp_path / name).read_bytes() == b"one"
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("not supported")))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b"]
