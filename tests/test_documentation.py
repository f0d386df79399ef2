"""The commands and programs in README and docs are run as they are printed there."""

import argparse
import ast
import importlib
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import bespoke_solvers
from bespoke_solvers import Solver, toy
from bespoke_solvers.dedicated import baseline
from bespoke_solvers.description import describe
from picture_files import cifar_folder

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r'^```(?P<language>python|bash)(?: title="(?P<file>\S+)")?\n(?P<code>.*?)^```', re.MULTILINE | re.DOTALL
)
# Each page with blocks has a test that runs them: here, or with those of the part that it is about.
ELSEWHERE = {"comfyui.md", "diffusers.md", "flow_matching.md", "hub.md", "pipelines.md"}
DEFINITIONS = (ast.FunctionDef, ast.ClassDef)
HERE = {"README.md", "data.md", "file-format.md", "how-it-works.md", "models.md", "own-model.md", "start.md", "zoo.md"}


def blocks(page: str) -> list[str]:
    """The code of the Python blocks of a page in docs."""
    found = BLOCK.finditer((ROOT / "docs" / page).read_text())
    return [block["code"] for block in found if block["language"] == "python"]


def run_blocks(page: Path, folder: Path) -> list[str]:
    """Run a page's blocks one after another in a folder; what each of them printed."""
    to_run = []
    for block in BLOCK.finditer(page.read_text()):
        if block["file"]:
            (folder / block["file"]).write_text(block["code"])
        else:
            to_run.append((block["language"], block["code"]))
    command = [sys.executable, Path(__file__).with_name("run_page.py")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, input=json.dumps(to_run), cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_no_page_is_left_out():
    with_blocks = {page.name for page in PAGES if BLOCK.search(page.read_text())}
    assert with_blocks == HERE | ELSEWHERE
    named = "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py") if path != Path(__file__))
    assert all(f'"{page}"' in named for page in ELSEWHERE)
    for page in PAGES:
        assert not re.search(r"^ {4}(import|from) ", page.read_text(), re.M), f"Python in {page.name} that is not run"
        fences = re.findall(r"^```(.*)\n(?:.*\n)*?```$", page.read_text(), re.M)
        assert len(fences) == len(BLOCK.findall(page.read_text())), f"a block of {page.name} in another language"


def test_the_walk_through_for_an_own_model(tmp_path):
    printed = run_blocks(ROOT / "docs" / "own-model.md", tmp_path)
    for name in ("moons.json", "moons.png", "results/results.json", "results/report.html", "results/paths.png"):
        assert (tmp_path / name).exists()
    fitted = re.search(r"RMSE (\S+) \(.*midpoint at the same cost (\S+) ", printed[1])
    assert float(fitted[1]) < 0.2 * float(fitted[2])
    assert "torch.Size([1000, 2]) with 8 evaluations" in printed[-1]


def test_the_first_five_minutes(tmp_path):
    fitted, shown, compared, _, drawn = run_blocks(ROOT / "docs" / "start.md", tmp_path)
    assert fitted.count("RMSE") == 3
    assert "3 tables" in shown
    assert "ns-bespoke" in compared
    assert (tmp_path / "points.png").exists()
    assert (tmp_path / "results" / "samples.png").exists()
    assert re.fullmatch(r"1000 samples with 6 evaluations each, RMSE 0\.00\d\d\n", drawn)


def test_the_examples_of_models(tmp_path):
    edm, ddpm, sampled, guided = run_blocks(ROOT / "docs" / "models.md", tmp_path)
    assert sampled == "torch.Size([4, 2])\n"
    for printed in (edm, ddpm, guided):
        fitted = re.search(r"RMSE (\S+) \(.*at the same cost (\S+) ", printed)
        assert float(fitted[1]) < 0.2 * float(fitted[2])
    assert "ns-bespoke" in guided
    assert '"guidance": 2.0' in (tmp_path / "guidance.json").read_text()


def test_the_zoo(tmp_path):
    (drawn,) = run_blocks(ROOT / "docs" / "zoo.md", tmp_path)
    assert drawn == "['deer', 'automobile', 'bird', 'airplane'] (4, 3, 32, 32)\n"


def test_the_program_in_the_readme_prints_what_it_says(tmp_path):
    text = (ROOT / "README.md").read_text()
    (printed,) = run_blocks(ROOT / "README.md", tmp_path)
    promised = re.search(r"prints `(.*?)`", text)[1]
    numbers = [re.findall(r"\d+\.\d+", line) for line in (printed, promised)]
    assert [float(n) for n in numbers[0]] == pytest.approx([float(n) for n in numbers[1]], rel=0.5)


def test_the_loop_that_reads_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("file-format.md")
    exec(block, {})
    evaluations, off = re.fullmatch(r"(\d+) evaluations, off by (\S+)\n", capsys.readouterr().out).groups()
    assert evaluations == "6"
    assert float(off) < 1e-5


def test_a_file_has_the_fields_of_the_page():
    from bespoke_solvers.solver import content_of

    model = toy.load("toy:checkerboard")
    content = content_of([Solver(baseline("dpmpp-2m", 6, model), model=describe(model))])
    page = (ROOT / "docs" / "file-format.md").read_text()
    named = [
        set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (.*?) \|", part, re.M)))) for part in page.split("\n## ")
    ]
    assert named[0] == set(content)
    assert named[1] == set(content["model"])
    assert named[2] == {*content["tables"]["6"], "starts"}


def test_the_table_of_a_method(capsys):
    (block,) = blocks("how-it-works.md")
    exec(block, {})
    assert capsys.readouterr().out.splitlines() == [
        "t [0.0, 0.25, 0.5, 0.75]",
        "a [1.0, 1.0, 1.0, 1.0, 1.0]",
        "b [0.0, 0.5, 0.0, 0.5] in the last row",
    ]


@pytest.mark.filterwarnings("ignore:.*MD5 sum")
def test_real_pictures_in_python(tmp_path, monkeypatch, capsys):
    from bespoke_solvers import data

    data.prepare(cifar_folder(tmp_path / "source"), tmp_path / "data" / "cifar10", progress=False)
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("data.md")
    names = {}
    exec(block, names)
    assert names["x"].shape == (3, 3, 32, 32)
    assert len(ast.literal_eval(capsys.readouterr().out)) == 3


def commands(program: str, page: str | None = None) -> list[str]:
    """The commands of a page, or of all, that begin with that."""
    text = "".join(path.read_text() for path in PAGES if page in (None, path.name))
    return re.findall(rf"^(?: {{4}})?({program}.*)$", re.sub(r"\\\n\s*", "", text), re.M)


class Parsed(Exception):  # noqa: N818, it is no error
    """What stops a benchmark once it has read its options."""


def test_benchmarks_have_the_options_that_the_pages_give_them(monkeypatch):
    read = argparse.ArgumentParser.parse_args

    def parse(parser, *arguments):
        read(parser, *arguments)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    found = commands(r"python -m bench\.")
    assert len(found) > 6
    for line in found:
        _, _, module, *arguments = shlex.split(line)
        monkeypatch.setattr(sys, "argv", [module, *arguments])
        with pytest.raises(Parsed):
            importlib.import_module(module).main()


def test_the_pictures_of_how_it_works():
    """Drawn here with a table that was not fitted; the committed ones stay small."""
    figures = importlib.import_module("bench.figures")
    straight = figures.model()
    euler = Solver(baseline("euler", figures.NFE, straight))
    drawn = [figures.solvers(straight, euler), figures.tables(straight, euler), figures.errors(straight)]
    drawn.append(figures.transform(figures.model(bespoke_solvers.schedules.VP())))
    assert [len(figure.axes) for figure in drawn] == [2, 4, 2, 3]
    order = np.polyfit(*(np.log(drawn[2].axes[1].lines[1].get_data())[:, 2:]), 1)[0]
    assert order == pytest.approx(-2, abs=0.1), "whatever the transform"
    kept = sorted((ROOT / "docs").glob("how-*.png"))
    assert len(kept) == len(drawn)
    assert all(file.stat().st_size < 100_000 for file in kept)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)[)#]|src=\"([^\"]+)\"", page.read_text()):
        assert (page.parent / "".join(target)).exists(), target


def nav_pages(nav) -> list[str]:
    """The files in a navigation of zensical.toml."""
    if isinstance(nav, str):
        return [nav]
    return [file for entry in nav for value in entry.values() for file in nav_pages(value)]


def test_the_site_has_every_page_and_its_links_stay_on_it(tmp_path):
    stage = runpy.run_path(str(ROOT / "docs" / "stage.py"))
    stage["main"](tmp_path)
    listed = nav_pages(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"])
    assert sorted(listed) == sorted(file.name for file in tmp_path.glob("*.md"))
    examples = [path for path in sorted((ROOT / "examples").iterdir()) if path.is_file()]
    assert re.findall(r"\{#(\w+)\}", (tmp_path / "examples.md").read_text()) == [path.stem for path in examples]
    assert all(len(path.read_text().splitlines()) < 60 for path in examples), "short enough to be read"
    for page in tmp_path.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)[)#]|src=\"([^\"]+)\"", page.read_text()):
            assert (tmp_path / "".join(target)).parent == tmp_path
            assert (tmp_path / "".join(target)).is_file(), f"{page.name}: {target}"


def test_the_reference_names_what_is_there():
    page = (ROOT / "docs" / "reference.md").read_text()
    named = re.findall(r"^::: (\S+)(?:\n +options:\n +members: \[(.*)\])?$", page, re.M)
    assert len(named) == page.count(":::")
    public = {f"bespoke_solvers.{name}" for name in bespoke_solvers.__all__ if name != "__version__"}
    for name, members in named:
        if name in public:
            continue
        source = ROOT / "src" / Path(*name.split("."))
        tree = ast.parse((source / "__init__.py" if source.is_dir() else source.with_suffix(".py")).read_text())
        explained = {node.name for node in tree.body if isinstance(node, DEFINITIONS) and ast.get_docstring(node)}
        assert set(filter(None, members.split(", "))) <= explained, name
    assert public <= {name for name, _ in named}


def test_the_messages_that_are_explained_are_those_of_the_code():
    literals = [
        node.value
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    head = [line for line in page.splitlines() if line.startswith(("| `", "**`"))]
    parts = [
        part
        for line in head
        for quote in re.findall(r"`(.*?)`", re.split(r" \| |\*\* ", line)[0])
        for part in quote.split("...")
    ]
    assert len(parts) > 10
    for part in parts:
        assert any(part.strip(" ,") in text for text in literals), part
