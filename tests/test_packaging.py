"""A plain install in a clean virtual environment gives the command."""

import subprocess
import sys
from pathlib import Path

import bespoke_solvers

ROOT = Path(__file__).parent.parent


def test_pip_install_gives_the_command(tmp_path):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run(
        [venv / "bin" / "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", "torch", ROOT],
        check=True,
        cwd=tmp_path,
    )
    printed = subprocess.run([venv / "bin" / "bespoke", "--version"], check=True, capture_output=True, text=True).stdout
    assert printed == f"bespoke-solvers {bespoke_solvers.__version__}\n"
    code = "import bespoke_solvers; print(bespoke_solvers.toy.digits(centres=3).shape)"
    digits = subprocess.run([venv / "bin" / "python", "-c", code], check=True, capture_output=True, text=True)
    assert digits.stdout == "(1, 8, 8)\n", "the data travels with the package"
    assert digits.stderr == ""
