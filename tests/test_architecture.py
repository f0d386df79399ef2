"""The package is built in layers: a module imports only from those above it in this list."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bespoke_solvers

PACKAGE = Path(bespoke_solvers.__file__).parent
LAYERS = [
    "precision",
    "replay",
    "files",
    "data",
    "schedules",
    "velocity",
    "scale_time",
    "toy",
    "metrics",
    "table",
    "cells",
    "transfer",
    "generic",
    "grids",
    "dedicated",
    "families",
    "description",
    "doubts",
    "hub",
    "solver",
    "reference",
    "bank",
    "evaluation",
    "portfolio",
    "bound",
    "objectives",
    "regression",
    "screening",
    "starts",
    "stages",
    "gauss_newton",
    "endpoint",
    "projection",
    "checkpoints",
    "run",
    "fitting",
    "pictures",
    "tracks",
    "report",
    "gallery",
    "inception",
    "fid",
    "judge",
    "comparison",
    "eval_report",
    "paper",
    "adapters",
    "pretrain_configs",
    "matching",
    "model_folder",
    "pretrain_plan",
    "pretrain",
    "zoo",
    "models",
    "playground",
    "app",
    "cli",
]


def imported(path: Path) -> set[str]:
    """The modules of this package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "bespoke_solvers":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bespoke_solvers."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.level:
            pytest.fail(f"{path.name} has a relative import")
    return found & set(LAYERS)


def modules() -> dict[str, list[Path]]:
    files = {path.stem: [path] for path in PACKAGE.glob("*.py") if path.stem != "__init__"}
    folders = {path.parent.name: sorted(path.parent.glob("*.py")) for path in PACKAGE.glob("*/__init__.py")}
    return files | folders


def test_every_module_has_its_layer():
    assert sorted(modules()) == sorted(LAYERS)


@pytest.mark.parametrize("module", LAYERS)
def test_a_module_imports_from_above_only(module):
    below = set(LAYERS[LAYERS.index(module) + 1 :])
    for path in modules()[module]:
        assert not imported(path) & below, f"{path.name} imports from a layer below it"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_are_short(path):
    assert len(path.read_text().splitlines()) <= 320


def test_the_import_is_light():
    """Importing the library imports neither what only the command needs nor the heavy optional packages."""
    heavy = {"typer", "matplotlib", "diffusers", "scipy", "huggingface_hub", "transformers"}
    code = f"import sys, bespoke_solvers; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_import_takes_hardly_longer_than_torch():
    """In one process, so that it does not matter how busy the machine is."""
    command = [sys.executable, "-X", "importtime", "-c", "import bespoke_solvers"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stderr.splitlines()
    cumulative = {
        name.strip(): int(spent) for _, spent, name in (line.split("|") for line in lines) if spent.strip().isdecimal()
    }
    assert cumulative["bespoke_solvers"] < 1.5 * cumulative["torch"]
