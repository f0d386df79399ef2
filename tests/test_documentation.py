"""The commands and programs in README and docs are run as they are printed there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(
    r"^```(?P<language>python|bash)(?: file=(?P<file>\S+))?\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL
)


def run_blocks(page: Path, folder: Path) -> list[str]:
    """Run a page's blocks one after another in a folder; what each of them printed."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    printed = []
    for block in BLOCK.finditer(page.read_text()):
        if block["file"]:
            (folder / block["file"]).write_text(block["code"])
            continue
        command = ["bash", "-euc"] if block["language"] == "bash" else [sys.executable, "-c"]
        done = subprocess.run([*command, block["code"]], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{block['code']}\n{done.stdout}\n{done.stderr}"
        printed.append(done.stdout)
    return printed


def test_the_walk_through_for_an_own_model(tmp_path):
    printed = run_blocks(ROOT / "docs" / "own-model.md", tmp_path)
    for name in ("moons.json", "moons.png", "results/results.json", "results/report.html", "results/paths.png"):
        assert (tmp_path / name).exists()
    fitted = re.search(r"RMSE (\S+) \(.*midpoint at the same cost (\S+) ", printed[1])
    assert float(fitted[1]) < 0.8 * float(fitted[2])
    assert "torch.Size([1000, 2]) with 8 evaluations" in printed[-1]


def test_the_examples_of_models(tmp_path):
    edm, guided = run_blocks(ROOT / "docs" / "models.md", tmp_path)
    for printed in (edm, guided):
        fitted = re.search(r"RMSE (\S+) \(.*at the same cost (\S+) ", printed)
        assert float(fitted[1]) < 0.2 * float(fitted[2])
    assert "ns-bespoke" in guided
    assert '"guidance": 2.0' in (tmp_path / "guidance.json").read_text()


def test_the_folder_of_a_solver(tmp_path):
    used, shown = run_blocks(ROOT / "docs" / "hub.md", tmp_path)
    assert used == "torch.Size([5, 2]) [4, 6]\n"
    assert "2 tables for a model of [2]" in shown
    assert 'base_model: "me/my-model"' in (tmp_path / "my-solver" / "README.md").read_text()


def test_the_program_in_the_readme_prints_what_it_says(tmp_path):
    text = (ROOT / "README.md").read_text()
    (printed,) = run_blocks(ROOT / "README.md", tmp_path)
    promised = re.search(r"prints `(.*?)`", text)[1]
    numbers = [re.findall(r"\d+\.\d+", line) for line in (printed, promised)]
    assert [float(n) for n in numbers[0]] == pytest.approx([float(n) for n in numbers[1]], rel=0.5)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)|src=\"([^\"]+)\"", page.read_text()):
        assert (page.parent / "".join(target)).exists(), target
