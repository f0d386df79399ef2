"""The networks that come with the package, and the demo on one of them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import ROOT
from bespoke_solvers import load, model_folder, zoo
from bespoke_solvers.cli import main
from bespoke_solvers.generic import baseline
from bespoke_solvers.metrics import rmse
from bespoke_solvers.models import folder_of, resolve
from bespoke_solvers.reference import solve
from bespoke_solvers.solver import available
from bespoke_solvers.table import sample

PATHS = {"zoo:cifar10-fm-ot": "CondOT", "zoo:cifar10-fm-v-cs": "Cosine", "zoo:cifar10-eps-vp": "VP"}


def test_there_is_one_for_each_path():
    assert sorted(PATHS) == zoo.NAMES


@pytest.fixture(scope="module", params=zoo.NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def model(name):
    return resolve(name)


def test_a_network_is_small_and_knows_its_classes(name, model):
    folder = zoo.folder(name)
    assert sum(file.stat().st_size for file in folder.glob("*.safetensors")) < 4e6
    assert type(model.schedule).__name__ == PATHS[name]
    assert model.shape == (3, 32, 32)
    assert model.labels[:3] == ("airplane", "automobile", "bird")
    few = model.noise(range(1))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.bind(few.condition)(torch.tensor(0.5), few.x0)
    assert counter.get_total_flops() < 0.5e9


def test_the_papers_solvers_come_with_it_and_beat_their_base_method(name, model):
    """On few samples, which need not be very exact for that."""
    file = zoo.folder(name) / zoo.RK2_BESPOKE
    assert list(available(file)) == [8, 10, 16, 20]
    solver = load(file, 8)
    assert solver.doubts(model) is None, "the weights are those that it was fitted to"
    noise = model.noise(range(4))
    u = model.bind(noise.condition)
    with torch.no_grad():
        exact = solve(model, noise, rtol=1e-3, atol=1e-3).x1
        own, base = (rmse(sample(table, u, noise.x0), exact) for table in (solver.table, baseline("midpoint", 8)))
    assert own < 0.7 * base


def test_a_network_is_a_folder_to_all_commands(name):
    assert folder_of(name) == zoo.folder(name)
    assert folder_of("toy:digits") == Path("toy:digits")
    guided = resolve(name, 2.0)
    assert guided.guidance == 2.0


@pytest.fixture(scope="module")
def made_again(tmp_path_factory):
    """What the benchmark's cells say now."""
    out = tmp_path_factory.mktemp("zoo")
    page = re.sub(r"(?m)^\| `zoo:.*\n", "", (ROOT / "docs" / "zoo.md").read_text())
    (out / "zoo.md").write_text(page)
    command = [sys.executable, "-m", "bench.zoo", "--out", out, "--into", out / "zoo.md"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return out


def test_the_page_has_what_was_measured(made_again):
    expected = [line for line in (made_again / "zoo.md").read_text().splitlines() if line.startswith("| `zoo:")]
    assert len(expected) == 3 * 3, "three solvers of three networks"
    assert [line for line in (ROOT / "docs" / "zoo.md").read_text().splitlines() if line in expected] == expected


def test_cards_and_solvers_are_those_of_the_cells(name, made_again):
    folder = zoo.folder(name)
    card, record = (folder / "README.md").read_text(), json.loads((folder / "training.json").read_text())
    assert record["command"].startswith(f"bespoke pretrain small-{name.removeprefix('zoo:cifar10-')} ")
    assert all(text in card for text in (record["command"], f"{record['images']:,} pictures seen", "last loss", "FID"))
    again = made_again / folder.name
    assert (again / "README.md").read_text() == card
    assert all(
        torch.equal(load(again / zoo.RK2_BESPOKE, n).table.b, load(folder / zoo.RK2_BESPOKE, n).table.b)
        for n in available(folder / zoo.RK2_BESPOKE)
    )


def test_its_solvers_have_a_name_for_the_commands(capsys):
    with pytest.raises(SystemExit) as end:
        main(["show", "zoo:cifar10-fm-ot"])
    assert end.value.code == 0
    assert "8 evaluations, family rk2" in capsys.readouterr().out


def test_a_card_says_how_fast_a_gpu_was_and_how_much_of_it_was_needed():
    record = json.loads((zoo.folder("zoo:cifar10-fm-ot") / "training.json").read_text())
    unknown = {name: value for name, value in record.items() if name != "gpu_memory"}
    assert "GiB" not in model_folder.card(unknown)
    known = record | {"images": 9000, "seconds": 3.0, "gpu_memory": 5 * 2**29}
    assert "bfloat16 autocast; 3,000 pictures a second, 2.5 GiB of its memory |" in model_folder.card(known)


def test_an_unknown_network_is_named():
    with pytest.raises(ValueError, match="unknown model 'zoo:mnist' of the zoo; expected one of zoo:cifar10-eps-vp, "):
        resolve("zoo:mnist")


def test_the_demo_tells_the_whole_story_within_8000_evaluations(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["demo", "--out", str(tmp_path / "demo"), "--quiet"])
    assert end.value.code == 0
    printed = capsys.readouterr()
    assert "warning" not in printed.err
    found = re.search(
        r"With 8 evaluations instead of \d\d, .* (\d+\.\d) times closer .* than the best other,", printed.out
    )
    assert float(found[1]) > 2.1
    spent = re.search(r"All of it took ([\d,]+) evaluations", printed.out)[1].replace(",", "")
    assert 4000 < int(spent) <= 8000
    files = printed.out.split("\n\n")[-2].splitlines()
    assert [Path(line).suffix for line in files] == [".json", ".json", ".png", ".png", ".png", ".html"]
    assert all(Path(line).exists() for line in files)
    rows = {row["method"]: row["rmse"] for row in json.loads((tmp_path / "demo" / "results.json").read_text())["rows"]}
    assert rows["ns-bespoke"] < 0.6 * rows["rk2-bespoke"] < 0.6 * 0.6 * rows["midpoint"], "what a person sees"
