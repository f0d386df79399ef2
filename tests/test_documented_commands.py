"""Every command `bespoke` in README and docs runs, in a folder with small stand-ins for what it names.

Those in fenced blocks run as printed with the other blocks of their pages. Those that stand alone run here: as printed
where that takes seconds, and otherwise with --dry-run.
"""

import functools
import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from bespoke_solvers import Solver, zoo
from bespoke_solvers.cli.common import numbers
from bespoke_solvers.generic import baseline
from bespoke_solvers.solver import save
from picture_files import binary, cifar_folder, cifar_tar, prepare, random_picture, zipped
from picture_files import save as save_picture
from run_page import run_command
from test_documentation import BLOCK, PAGES, ROOT, commands

OWN = "from bespoke_solvers import toy\n\n\ndef model():\n    return toy.load('toy:checkerboard')\n"
AS_PRINTED = {"data", "sample", "show"}
# The stand-in for a pipeline is too slow on large pictures.
INSTEAD = {"--size 512": "--size 16"}


def solver(path: Path, nfe: str = "8") -> None:
    """Of a method that knows no model, so it can be any model's."""
    save([Solver(baseline("euler", n)) for n in numbers(nfe)], path)


def photos(path: Path, *folders: str) -> None:
    for folder in folders or [""]:
        for i in range(3):
            save_picture(random_picture(32, 32), path / folder / f"{i}.png")


def zipped_photos(path: Path) -> None:
    photos(path.with_suffix(""), "train/cat", "test/cat", "test/dog")
    zipped(path.with_suffix(""), path)


def data_set(path: Path) -> None:
    prepare(cifar_folder(path.with_name("source")), path)


def pipeline(path: Path) -> None:
    pytest.importorskip("transformers")
    from pipelines import stable_diffusion

    stable_diffusion().save_pretrained(path)


def network(name: str):
    return lambda path: path.symlink_to(zoo.folder(name))


# What commands name and do not make, by its name there.
STAND_INS = {
    "mine:model": lambda path: path.with_name("mine.py").write_text(OWN),
    "MODEL": network("zoo:cifar10-fm-ot"),
    "models/fm-ot": network("zoo:cifar10-fm-ot"),
    "models/eps-vp": network("zoo:cifar10-eps-vp"),
    "path/to/pipeline": pipeline,
    "prompts.txt": lambda path: path.write_text("a red cat\ntwo dogs\n"),
    "s.json": solver,
    "digits.json": solver,
    "SOURCE": photos,
    "FOLDER": data_set,
    "data/cifar10": data_set,
    "imagenet/train": lambda path: photos(path, "n01440764", "n01443537"),
    "afhq.zip": zipped_photos,
    "cifar-10-binary.tar.gz": lambda path: cifar_tar(path.parent / "cifar", binary).rename(path),
    "bench/results/paper": lambda path: shutil.copytree(ROOT / "bench" / "results" / "paper" / "cells", path / "cells"),
    "bench/results/zoo": lambda path: shutil.copytree(ROOT / "bench" / "results" / "zoo" / "cells", path / "cells"),
}


def indented(page: Path) -> list[str]:
    """The commands of a page that stand alone."""
    return [line for line in commands("bespoke ", page.name) if line not in in_blocks(page)]


def in_blocks(page: Path) -> list[str]:
    code = [block["code"] for block in BLOCK.finditer(page.read_text()) if block["language"] == "bash"]
    return "".join(code).splitlines()


def make_stand_ins(arguments: list[str], folder: Path) -> None:
    """What the command reads; to draw, it also reads what is in its folder."""
    written = value(arguments, "--out") if "--draw" not in arguments else None
    for name in arguments:
        if name in STAND_INS and name != written and not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            STAND_INS[name](folder / name)


def value(arguments: list[str], option: str) -> str | None:
    return arguments[arguments.index(option) + 1] if option in arguments else None


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.mark.filterwarnings("ignore:.*MD5 sum")
@pytest.mark.parametrize("page", [page for page in PAGES if indented(page)], ids=lambda page: page.name)
def test_the_commands_of_a_page(page, here, capsys):
    if page.name == "app.md":
        pytest.importorskip("gradio")
    for printed in indented(page):
        line = functools.reduce(lambda text, pair: text.replace(*pair), INSTEAD.items(), printed)
        _, command, *arguments = shlex.split(line)
        make_stand_ins(arguments, here)
        before = sorted(here.rglob("*"))
        dry, out = command not in AS_PRINTED and "--draw" not in arguments, value(arguments, "--out")
        run_command(f"{line} --dry-run" if dry else line)
        told = capsys.readouterr().out
        left = [path for path in sorted(here.rglob("*")) if path not in before and "__pycache__" not in path.parts]
        assert told
        assert (left == []) == (dry or out is None), left
        assert out is None or out in told
        assert dry or out is None or (here / out).exists()
        if "--draw" in arguments:  # what is committed is what its cells say
            drawn, kept = (json.loads((root / out / "results.json").read_text()) for root in (here, ROOT))
            assert drawn == kept
        if command == "fit":  # for the commands that follow
            solver(here / out, value(arguments, "--nfe"))


def test_no_command_is_left_out():
    """Those in blocks run in test_documentation.py, and in test_hub.py."""
    assert {page.name for page in PAGES if in_blocks(page)} == {"hub.md", "models.md", "own-model.md", "start.md"}
    alone = [line for page in PAGES for line in indented(page)]
    assert len(alone) > 15
    named = {name for line in alone for name in shlex.split(line)}
    assert set(STAND_INS) <= named, "none that no page names"
    assert all(any(printed in line for line in alone) for printed in INSTEAD)
