"""A plain install in a clean virtual environment gives the command."""

import os
import subprocess
import sys
from pathlib import Path

import bespoke_solvers

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "bespoke_solvers"


def test_pip_install_gives_the_command(tmp_path):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run(
        [
            venv / "bin" / "pip",
            "install",
            "--quiet",
            "--no-compile",
            "--constraint",
            ROOT / "constraints.txt",
            "torch",
            ROOT,
        ],
        check=True,
        cwd=tmp_path,
    )
    printed = subprocess.run([venv / "bin" / "bespoke", "--version"], check=True, capture_output=True, text=True).stdout
    assert printed == f"bespoke-solvers {bespoke_solvers.__version__}\n"
    code = "import bespoke_solvers; print(bespoke_solvers.toy.digits(centres=3).shape)"
    digits = subprocess.run([venv / "bin" / "python", "-c", code], check=True, capture_output=True, text=True)
    assert digits.stdout == "(1, 8, 8)\n", "the data travels with the package"
    assert digits.stderr == ""
    used = ["--solver", "zoo:cifar10-fm-ot", "--nfe", "8", "--seeds", "0", "--out", "one.png", "--quiet"]
    drawn = [venv / "bin" / "bespoke", "sample", "zoo:cifar10-fm-ot", *used]
    subprocess.run(drawn, check=True, cwd=tmp_path, capture_output=True)
    assert (tmp_path / "one.png").stat().st_size > 1000, "so do the zoo's networks and solvers, as the demo needs them"
    for name in ("transformers", "accelerate"):
        assert not list(venv.glob(f"lib/*/site-packages/{name}")), "which would hide that they are needed"
    (installed,) = venv.glob("lib/*/site-packages/bespoke_solvers")
    for folder, _, names in os.walk(PACKAGE):
        if "__pycache__" not in folder:
            assert set(names) <= set(os.listdir(installed / Path(folder).relative_to(PACKAGE))), folder
