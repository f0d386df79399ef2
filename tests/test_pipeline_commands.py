"""The commands, the example and the pages on tiny pipelines."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
diffusers = pytest.importorskip("diffusers")

from PIL import Image  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

import bespoke_solvers  # noqa: E402
from bespoke_solvers.adapters.pipelines import as_model  # noqa: E402
from bespoke_solvers.cli import app  # noqa: E402
from bespoke_solvers.description import describe  # noqa: E402
from bespoke_solvers.generic import baseline  # noqa: E402
from bespoke_solvers.solver import Solver  # noqa: E402
from pipelines import PROMPTS, SIZE  # noqa: E402
from test_documentation import blocks  # noqa: E402
from test_pipelines import make, saved  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in diffusers

ROOT = Path(__file__).parent.parent


def command(*arguments):
    ran = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert ran.exit_code == 0, ran.output
    return ran.output


QUICK = ["--batch-size", 2, "--tolerance", "3e-2", "--quiet"]


def fitted(folder, out, prompts):
    """A solver of three evaluations, fitted to as little as can be; too coarsely for its figures to mean anything."""
    options = ["--nfe", 3, "--effort", "low", "--paths", 2, "--validation-paths", 2, *QUICK]
    command("fit", folder, "--prompts", prompts, "--guidance", 3.5, "--size", SIZE, *options, "--out", out)
    return bespoke_solvers.load(out)


@pytest.mark.filterwarnings("ignore:the reference's own RMSE")
@pytest.mark.parametrize("name", ["sd", "flux"])
def test_the_command_fits_a_pipeline(tmp_path, name, few_steps):
    folder, out = saved(make(name), tmp_path / "tiny"), tmp_path / "s.json"
    prompts = tmp_path / "tiny" / "prompts.txt"
    solver = fitted(folder, out, prompts)
    assert solver.nfe == 3
    assert solver.model["guidance"] == 3.5
    assert solver.model["shape"] == [4, 8, 8]
    assert solver.model["conditions"].startswith("4 prompts, ")
    scaled = name == "sd"  # by the pipeline; FLUX's does not
    assert solver.fit["learn"] == ("all" if scaled else "all but the scale of the noise")
    assert (solver.table.a[0] == 1) != scaled
    (bank,) = tmp_path.glob("*.bank")
    assert re.fullmatch(r"tiny-4-prompts-\w+-w3-5.*\.bank", bank.name)


@pytest.mark.filterwarnings("ignore:the reference's own RMSE")
def test_the_example_runs(tmp_path, monkeypatch, capsys, few_steps):
    folder, program = saved(make("sd3"), tmp_path / "pipeline"), ROOT / "examples" / "diffusers_fitting.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(program), folder, f"{folder}/prompts.txt"])
    runpy.run_path(str(program), run_name="__main__")
    printed = capsys.readouterr().out
    fitted = re.search(r"RMSE of latents (\S+), midpoint (\S+)", printed)
    assert float(fitted[1]) < 0.7 * float(fitted[2])
    assert Solver.from_pretrained(tmp_path / "my-solver").validation["reference_error"] < 0.5 * float(fitted[1])
    assert "evaluations above, 6 below" in printed
    assert Solver.from_pretrained(tmp_path / "my-solver").nfe == 6
    with Image.open(tmp_path / "exact-above-solver.png") as image:
        assert image.size == (4 * SIZE * 4, 2 * SIZE * 4)


def coarsely(block):
    """A block of a page, with exact paths that are not: what they are worth is not what it is about."""
    assert "rtol=1e-4, atol=1e-4" in block
    return block.replace("rtol=1e-4, atol=1e-4", "rtol=3e-2, atol=3e-2")


@pytest.mark.filterwarnings("ignore:the solver was made for a model with conditions")
def test_the_page_of_schedulers_runs(tmp_path, monkeypatch):
    """On a tiny pipeline in the place of the one that is named there, and a table that was not fitted."""
    pipe = make("sd")
    saved(pipe, tmp_path / "path" / "to" / "pipeline")
    model = as_model(pipe, PROMPTS)
    Solver(baseline("euler", 8).on(model), model=describe(model)).save(tmp_path / "s.json")
    monkeypatch.chdir(tmp_path)
    sampling, starting = blocks("diffusers.md")
    names = {}
    exec(sampling.replace("torch.float16", "torch.float32").replace('"cuda"', '"cpu"'), names)
    assert names["image"].size == (SIZE, SIZE)
    assert isinstance(names["pipe"].scheduler, bespoke_solvers.BespokeScheduler)
    exec(coarsely(starting).replace("paths=64", "paths=4"), {})
    assert list(bespoke_solvers.load("s-later.json").starts) == [4]


@pytest.mark.filterwarnings("ignore:the reference's own RMSE")
def test_the_page_runs(tmp_path, monkeypatch, capsys, few_steps):
    saved(make("sd"), tmp_path / "pipeline")
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("pipelines.md")
    exec(coarsely(block), {})
    assert re.fullmatch(r"4 prompts, \w{16} 3\.5\n", capsys.readouterr().out)
    assert bespoke_solvers.load(tmp_path / "s.json").nfe == 4


@pytest.mark.filterwarnings("ignore:the reference's own RMSE")
def test_the_commands_draw_pictures_of_latents(tmp_path):
    pipe = make("sd")
    folder, out, model = saved(pipe, tmp_path / "tiny"), tmp_path / "s.json", as_model(pipe, PROMPTS, guidance=3.5)
    Solver(baseline("euler", 3).on(model), model=describe(model)).save(out)
    options = ["--prompts", tmp_path / "tiny" / "prompts.txt", "--guidance", 3.5, "--solver", out]
    grid, latents, results = tmp_path / "grid.png", tmp_path / "x.safetensors", tmp_path / "results"
    for file in (grid, latents):
        command("sample", folder, *options, "--seeds", "0-3", "--out", file, "--quiet")
    with Image.open(grid) as image:
        assert image.size == (2 * SIZE * 4, 2 * SIZE * 4), "four pictures, enlarged"
    kept = load_file(latents)
    noise = model.noise(range(4))
    assert torch.equal(kept["condition"], noise.condition)
    expected = Solver(baseline("euler", 3).on(model)).sample(model.bind(noise.condition), noise.x0)
    torch.testing.assert_close(kept["samples"], expected, rtol=1e-4, atol=1e-4)
    command("eval", folder, *options, *QUICK, "--samples", 2, "--nfe", 3, "--baselines", "midpoint", "--out", results)
    assert (results / "samples.png").exists()
