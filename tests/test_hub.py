"""Solvers in folders and on the Hub, of which a stand-in keeps what would be uploaded."""

import dataclasses
import json
import re
import runpy
import sys
from inspect import signature
from types import SimpleNamespace

import httpx
import huggingface_hub
import pytest
import torch
from huggingface_hub import ModelCard, errors

from bespoke_solvers import Solver, Table, hub, load
from bespoke_solvers.cli import main
from bespoke_solvers.description import describe
from bespoke_solvers.generic import baseline
from bespoke_solvers.schedules import DiscreteVP
from bespoke_solvers.solver import available, push_to_hub, save, save_pretrained
from bespoke_solvers.velocity import Model
from run_page import run_command
from test_documentation import ROOT, blocks, commands

MODEL = Model(
    velocity=lambda t, x: -x, shape=(3,), schedule=DiscreteVP((0.9, 0.5, 0.1)), domain=(0.0, 0.5), guidance=3.5
)
DESCRIPTION = describe(MODEL)


def make(nfe: int) -> Solver:
    return Solver(
        table=baseline("midpoint", nfe).on(MODEL),
        family="ns",
        model=DESCRIPTION,
        fit={"objective": "endpoint", "paths": 64, "evaluations": {"fit": 12345, "reference": 678}, "seconds": 42.5},
        validation={
            "samples": 256,
            "rmse": 0.0123 / nfe,
            "psnr": 41.25,
            "baseline": "midpoint",
            "baseline_rmse": 0.2177,
            "baseline_psnr": None,
            "reference_evaluations": 127.0,
        },
    )


def same(one: Table, other: Table) -> bool:
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("t", "a", "b"))


class Api:
    """HfApi, with repositories in a dictionary. Calls must fit the signatures of the true one."""

    repositories: dict
    tokens: list

    def __init__(self, **options):
        signature(huggingface_hub.HfApi.__init__).bind(self, **options)
        self.tokens.append(options["token"])

    def create_repo(self, *args, **options):
        given = signature(TRUE_API.create_repo).bind(self, *args, **options).arguments
        if given["repo_id"] in self.repositories:
            assert given["exist_ok"]
        self.repositories.setdefault(given["repo_id"], {"private": given["private"], "commits": []})

    def create_commit(self, *args, **options):
        given = signature(TRUE_API.create_commit).bind(self, *args, **options).arguments
        files = {operation.path_in_repo: operation.path_or_fileobj for operation in given["operations"]}
        commits = self.repositories[given["repo_id"]]["commits"]
        commits.append({"files": files, "revision": given["revision"], "message": given["commit_message"]})
        return SimpleNamespace(commit_url=f"https://huggingface.co/{given['repo_id']}/commit/{len(commits)}")


TRUE_API, true_download = huggingface_hub.HfApi, huggingface_hub.hf_hub_download


@pytest.fixture
def server(tmp_path, monkeypatch):
    """What was uploaded, and how downloads were asked for."""
    repositories, tokens, asked = {}, [], []
    monkeypatch.setattr(Api, "repositories", repositories, raising=False)
    monkeypatch.setattr(Api, "tokens", tokens, raising=False)

    def download(*args, **options):
        given = signature(true_download).bind(*args, **options).arguments
        asked.append(given)
        path = tmp_path / "cache" / given["filename"]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(repositories[given["repo_id"]]["commits"][-1]["files"][given["filename"]])
        return str(path)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return SimpleNamespace(repositories=repositories, tokens=tokens, asked=asked)


def test_the_page_runs(server, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    in_folders, on_the_hub = blocks("hub.md")
    names = {}
    exec(in_folders, names)
    assert capsys.readouterr().out == "torch.Size([5, 2]) [4, 6]\n"
    assert 'base_model: "me/my-model"' in (tmp_path / "my-solver" / "README.md").read_text()
    exec(on_the_hub, names)
    assert {name: kept["private"] for name, kept in server.repositories.items()} == {
        "me/one-solver": True,
        "me/my-solver": None,
    }
    assert names["solver"].nfe == 6
    for command in commands("bespoke ", "hub.md"):
        run_command(command)
    assert "2 tables for a model of [2]" in capsys.readouterr().out
    assert (tmp_path / "points.png").exists()


@pytest.mark.parametrize("repository", [[], ["me/shared"]])
def test_the_example_runs(server, tmp_path, monkeypatch, capsys, repository):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sharing_on_the_hub.py", *repository])
    runpy.run_path(str(ROOT / "examples" / "sharing_on_the_hub.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(r"1000 samples with 6 evaluations each, RMSE 0\.0\d+\n$", printed)
    assert ("committed: https://huggingface.co/me/shared/commit/1" in printed) == bool(repository)
    assert list(server.repositories) == repository
    assert sorted(path.name for path in (tmp_path / "my-solver").iterdir()) == ["README.md", "solver.json"]


def test_a_solver_goes_to_the_hub_and_comes_back(server):
    solver = make(4)
    address = solver.push_to_hub(
        "me/s", private=True, token="hf_x", revision="dev", commit_message="First", base_model="me/model"
    )
    assert address == "https://huggingface.co/me/s/commit/1"
    assert server.tokens == ["hf_x"]
    repository = server.repositories["me/s"]
    assert repository["private"] is True
    (commit,) = repository["commits"]
    assert (commit["revision"], commit["message"]) == ("dev", "First")
    assert sorted(commit["files"]) == ["README.md", "solver.json"]
    again = Solver.from_pretrained("me/s", revision="dev", token="hf_x")
    assert same(again.table, solver.table), "to the last bit"
    assert again.validation == solver.validation
    assert server.asked == [
        {
            "repo_id": "me/s",
            "filename": "solver.json",
            "revision": "dev",
            "token": "hf_x",
            "cache_dir": None,
            "local_files_only": False,
        }
    ]


def test_what_is_uploaded_is_the_file_that_save_writes(server, tmp_path):
    save([make(8), make(4)], tmp_path / "s.json")
    push_to_hub([make(8), make(4)], "me/s")
    (commit,) = server.repositories["me/s"]["commits"]
    assert commit["files"]["solver.json"] == (tmp_path / "s.json").read_bytes()
    assert sorted(json.loads(commit["files"]["solver.json"])["tables"]) == ["4", "8"]


def test_several_tables_are_chosen_by_nfe(server):
    push_to_hub([make(4), make(8)], "me/several")
    assert Solver.from_pretrained("me/several", nfe=8).nfe == 8
    with pytest.raises(ValueError, match=r"tables for nfe = 4, 8; no nfe was given"):
        Solver.from_pretrained("me/several")
    file = hub.find("me/several")
    assert [load(file, nfe).nfe for nfe in available(file)] == [4, 8]


def test_a_folder_works_the_same_without_the_hub(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # an import of it fails
    folder = tmp_path / "new" / "folder"
    save_pretrained([make(4), make(6)], folder)
    assert sorted(file.name for file in folder.iterdir()) == ["README.md", "solver.json"]
    assert same(Solver.from_pretrained(folder, nfe=6).table, make(6).table)
    make(4).save_pretrained(folder)
    assert Solver.from_pretrained(str(folder)).nfe == 4
    assert Solver.from_pretrained(folder / "solver.json").nfe == 4


def test_the_card_says_what_the_file_knows():
    push = {nfe: make(nfe) for nfe in (4, 8)}
    content = {"model": DESCRIPTION, "tables": {str(n): _record(s) for n, s in push.items()}}
    text = hub.card(content, "me/s", "me/model")
    header = ModelCard(text).data  # the Hub's own reading of it
    assert header.library_name == "bespoke-solvers"
    assert header.base_model == "me/model"
    assert "ode-solver" in header.tags
    assert "- path: DiscreteVP()" in text, "the long list of numbers stays in the file"
    assert "- guidance scale: 3.5" in text
    assert "- shape of a sample: [3]" in text
    assert (
        "| NFE | family | RMSE | PSNR (dB) | RMSE of midpoint | PSNR of midpoint (dB) | NFE of the exact samples |"
        in (text)
    )
    assert "| 4 | ns | 0.0031 | 41.2 | 0.2177 |  | 127 |" in text
    assert "| 8 | ns | 0.0015 | 41.2 | 0.2177 |  | 127 |" in text
    assert "| 8 | endpoint | 64 | 12,345 fit, 678 reference | 42.5 |" in text
    assert "Solver.from_pretrained('me/s', nfe=4)" in text
    content["tables"]["8"]["validation"]["rmse"] = 3e-5
    assert "| 8 | ns | 3.0e-05 | 41.2 |" in hub.card(content, "me/s", "me/model")
    assert "bespoke sample MODEL --solver me/s --nfe 4" in text


def _record(solver: Solver) -> dict:
    return {"family": solver.family, "fit": solver.fit, "validation": solver.validation}


def test_a_solver_without_provenance_has_a_card_too(tmp_path):
    Solver(baseline("euler", 3)).save_pretrained(tmp_path)
    assert "| 3 | table |" in (tmp_path / "README.md").read_text()


def test_solvers_of_two_models_are_not_put_into_one_file(server):
    with pytest.raises(ValueError, match="must belong to one model"):
        push_to_hub([make(4), dataclasses.replace(make(8), model={})], "me/s")
    assert not server.repositories


RESPONSE = SimpleNamespace(headers={}, request=None, status_code=403)


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (errors.RepositoryNotFoundError("", response=RESPONSE), "no file, folder or repository me/s, or it is private"),
        (errors.GatedRepoError("", response=RESPONSE), "me/s is gated"),
        (errors.RevisionNotFoundError("", response=RESPONSE), "me/s has no revision 'dev'"),
        (errors.RemoteEntryNotFoundError("", response=RESPONSE), "me/s has no solver.json"),
        (errors.LocalEntryNotFoundError(""), "neither a folder nor downloaded"),
        (errors.OfflineModeIsEnabled(""), "neither a folder nor downloaded"),
        (errors.HfHubHTTPError("Forbidden", response=RESPONSE), r"refused me/s \(403\): Forbidden; log in"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_hub_refuses_is_said_by_name(monkeypatch, raised, said):
    def fail(*args, **options):
        raise raised

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", fail)
    with pytest.raises(ValueError, match=said):
        Solver.from_pretrained("me/s", revision="dev")
    with pytest.raises(ValueError, match=said):
        make(4).push_to_hub("me/s", revision="dev")


@pytest.mark.parametrize("error", [httpx.ConnectError("no route"), ConnectionError("no route")])
def test_a_hub_that_cannot_be_reached_is_said_so(server, monkeypatch, error):
    def unreachable(*args, **options):
        raise error

    monkeypatch.setattr(Api, "create_repo", unreachable)
    with pytest.raises(ValueError, match=r"the Hub cannot be reached for me/s \(no route\); try again later"):
        make(4).push_to_hub("me/s")


def test_what_is_no_name_is_refused_without_asking_the_hub(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"has no solver\.json; expected one that save_pretrained made"):
        Solver.from_pretrained(tmp_path)
    for name in ("missing", "some/missing.json", "a/b/c"):
        with pytest.raises(ValueError, match=f"there is no solver file {name}"):
            Solver.from_pretrained(name)
    with pytest.raises(ValueError, match="'s' is no repository of the Hub; expected user/name"):
        make(4).push_to_hub("s")
    with pytest.raises(TypeError, match="revison"):
        Solver.from_pretrained(tmp_path, revison="dev")


def test_the_commands_take_a_folder_or_a_repository(server, tmp_path, capsys):
    push_to_hub([make(4), make(8)], "me/s")
    save_pretrained([make(4), make(8)], tmp_path / "folder")
    for name in ("me/s", tmp_path / "folder"):
        with pytest.raises(SystemExit) as end:
            main(["show", str(name)])
        assert end.value.code == 0
        assert "2 tables for a model of [3]" in capsys.readouterr().out
