"""Solver files in repositories of the Hugging Face Hub, and in folders like them: `solver.json` and a card made of it.

A file, with all its tables, is the unit; huggingface_hub is imported when the Hub is asked, not before.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from bespoke_solvers.metrics import decimals

FILE, CARD = "solver.json", "README.md"
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


class Download(TypedDict, total=False):
    """Options of `find`, as huggingface_hub names them."""

    revision: str | None
    token: str | bool | None
    cache_dir: str | Path | None
    local_files_only: bool


class Upload(TypedDict, total=False):
    """Options of `upload`, as huggingface_hub names them."""

    private: bool | None
    token: str | bool | None
    revision: str | None
    commit_message: str


def find(
    name: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
) -> Path:
    """The solver file of that name: the file itself, that of a folder, or that of a repository, downloaded once."""
    path = Path(name)
    if path.is_dir():
        if not (path / FILE).is_file():
            raise ValueError(f"the folder {path} has no {FILE}; expected one that save_pretrained made")
        return path / FILE
    repository = path.as_posix()
    if path.is_file() or path.suffix == ".json" or not REPOSITORY.fullmatch(repository):
        return path
    from huggingface_hub import hf_hub_download

    with _errors_by_name(repository, revision):
        return Path(
            hf_hub_download(
                repository,
                FILE,
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                local_files_only=local_files_only,
            )
        )


def upload(
    files: Mapping[str, bytes],
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
    commit_message: str = "Upload a Bespoke solver",
) -> str:
    """Put files into a repository in one commit, making the repository if need be; returns the commit's address."""
    if not REPOSITORY.fullmatch(repo_id):
        raise ValueError(f"{repo_id!r} is no repository of the Hub; expected user/name")
    from huggingface_hub import CommitOperationAdd, HfApi

    with _errors_by_name(repo_id, revision):
        api = HfApi(token=token)
        api.create_repo(repo_id, private=private, exist_ok=True)
        operations = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=content) for name, content in files.items()]
        commit = api.create_commit(repo_id, operations, commit_message=commit_message, revision=revision)
    return str(commit.commit_url)


@contextmanager
def _errors_by_name(repository: str, revision: str | None) -> Iterator[None]:
    """What the Hub refuses, in one sentence that says what to do."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise ValueError(f"{repository} is gated: ask for access on its page, then give a token") from error
    except errors.RepositoryNotFoundError as error:
        raise ValueError(
            f"there is no file, folder or repository {repository}, or it is private: check the name, and log in "
            "(hf auth login) or give a token"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(f"{repository} has no revision {revision!r}; expected a branch, a tag or a commit") from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise ValueError(
            f"{repository} is neither a folder nor downloaded, and the Hub cannot be reached or must not be asked"
        ) from error
    except errors.EntryNotFoundError as error:
        raise ValueError(f"{repository} has no {FILE}: it is not a repository of a solver") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        advice = "; log in (hf auth login) or give a token that may write there" if status in (401, 403) else ""
        raise ValueError(f"the Hub refused {repository} ({status}): {error}{advice}") from error
    except _unreachable() as error:
        raise ValueError(f"the Hub cannot be reached for {repository} ({error}); try again later") from error


def _unreachable() -> tuple[type[Exception], ...]:
    """What a broken connection raises, by whichever library huggingface_hub asks."""
    by = {"httpx": "TransportError", "requests": "RequestException"}
    theirs = [getattr(sys.modules[module], name) for module, name in by.items() if module in sys.modules]
    return (ConnectionError, TimeoutError, *theirs)


def card(content: Mapping[str, Any], repo_id: str | None = None, base_model: str | None = None) -> str:
    """The model card (Markdown with the Hub's YAML header) of what a solver file holds.

    repo_id: where it will lie, for the commands. base_model: the repository of the model that it was fitted to.
    """
    model, tables = content["model"], {int(nfe): table for nfe, table in content["tables"].items()}
    counts = ", ".join(map(str, tables))
    where = repo_id or "path/to/this/folder"
    measured = sorted({table["validation"]["samples"] for table in tables.values() if "samples" in table["validation"]})
    header = ["---", "library_name: bespoke-solvers", "tags:", "- bespoke-solvers", "- diffusion", "- ode-solver"]
    header += [f"base_model: {json.dumps(base_model)}"] if base_model else []
    parts = [
        *header,
        "---",
        "",
        f"# A Bespoke solver with {counts} evaluations",
        "",
        f"A table of numbers that draws the samples of one pre-trained model{f', {base_model},' if base_model else ''} "
        f"with {counts} evaluations of its network (NFE). The model is not changed and not in here.",
        "",
        "## The model that it is for",
        "",
        *(f"- {name}: {value}" for name, value in _model(model).items()),
        "",
        "## How close its samples are to the exact ones",
        "",
        *_rows({str(nfe): _quality(table) for nfe, table in tables.items()}),
    ]
    if measured:
        parts += ["", f"On {measured[-1]} samples from noise that no fit has seen; PSNR is for a range of [-1, 1]."]
    return "\n".join(
        [
            *parts,
            "",
            "## What the fit cost",
            "",
            *_rows({str(nfe): _cost(table) for nfe, table in tables.items()}),
            "",
            "## How to use it",
            "",
            "```python",
            "from bespoke_solvers import Solver",
            "",
            f"solver = Solver.from_pretrained({where!r}, nfe={next(iter(tables))})",
            "x1 = solver.sample(u, x0)  # u(t, x): the model's velocity, t = 0 noise, t = 1 data; x0 ~ N(0, I)",
            "```",
            "",
            "```bash",
            f"bespoke sample MODEL --solver {where} --nfe {next(iter(tables))} --out samples.png",
            "```",
            "",
            "In a pipeline of diffusers, `num_inference_steps` then being the NFE:",
            "",
            "```python",
            "from bespoke_solvers import BespokeScheduler",
            "",
            f"pipe.scheduler = BespokeScheduler.from_solver({where!r}, pipe.scheduler)",
            "```",
            "",
        ]
    )


def _model(model: Mapping[str, Any]) -> dict[str, str]:
    """What a file says of its model, in words; long lists are left to the file."""
    schedule = {key: value for key, value in model.get("schedule", {}).items() if not isinstance(value, list)}
    path = schedule.pop("name", "unknown")
    parameters = ", ".join(f"{key} = {value}" for key, value in schedule.items())
    words = {
        "path": f"{path}({parameters})",
        "prediction": model.get("prediction"),
        "shape of a sample": model.get("shape"),
        "times": model.get("domain"),
        "guidance scale": model.get("guidance"),
        "conditional": {True: "yes", False: "no"}.get(model.get("conditional", "")),
        "conditions": model.get("conditions"),
    }
    return {name: str(value) for name, value in words.items() if value is not None}


def _quality(table: Mapping[str, Any]) -> dict[str, str]:
    validation = table["validation"]
    base = validation.get("baseline", "baseline")
    return {
        "family": table["family"],
        "RMSE": _figure(validation.get("rmse"), decimals),
        "PSNR (dB)": _figure(validation.get("psnr"), "{:.1f}".format),
        f"RMSE of {base}": _figure(validation.get("baseline_rmse"), decimals),
        f"PSNR of {base} (dB)": _figure(validation.get("baseline_psnr"), "{:.1f}".format),
        "NFE of the exact samples": _figure(validation.get("reference_evaluations"), "{:.0f}".format),
    }


def _cost(table: Mapping[str, Any]) -> dict[str, str]:
    fit = table["fit"]
    evaluations = fit.get("evaluations", {})
    return {
        "objective": str(fit.get("objective", "")),
        "exact paths": str(fit.get("paths", "")),
        "evaluations of the model": ", ".join(f"{count:,} {kind}" for kind, count in evaluations.items()),
        "seconds": _figure(fit.get("seconds"), "{:g}".format),
    }


def _figure(value: float | None, written: Callable[[float], str]) -> str:
    return "" if value is None else written(value)


def _rows(rows: Mapping[str, Mapping[str, str]]) -> list[str]:
    """A table in Markdown, a line for each NFE; a column that only some lines have is blank in the others."""
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    lines = [["NFE", *columns], ["---"] * (len(columns) + 1)]
    lines += [[nfe, *(row.get(name, "") for name in columns)] for nfe, row in rows.items()]
    return [f"| {' | '.join(line)} |" for line in lines]
