"""A model from its name: `zoo:NAME`, `toy:NAME`, a folder of diffusers, or `package.module:name` of one's own."""

import importlib
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bespoke_solvers import toy, zoo
from bespoke_solvers.adapters import diffusers, pipelines
from bespoke_solvers.velocity import Model, default_device


def folder_of(name: str) -> Path:
    """The folder of a model that is in one; of another name, a path that is no folder."""
    return zoo.folder(name) if name.startswith(zoo.PREFIX) else Path(name)


def resolve(
    name: str,
    guidance: float | None = None,
    *,
    prompts: Sequence[str] = (),
    size: int | None = None,
    dtype: torch.dtype | None = None,
    offload: pipelines.Offload | None = None,
    device: str | None = None,
) -> Model:
    """The named model. Modules are looked up in the current directory, too; a folder's model is on the GPU, if any.

    prompts, size, dtype and offload are those of `pipelines.load`.
    """
    if guidance is not None and not math.isfinite(guidance):
        raise ValueError(f"guidance {guidance} is no scale; expected a finite number, 1 for none")
    folder, device = folder_of(name), device or default_device()
    if folder.is_dir() and pipelines.is_pipeline(folder):
        precision = dtype or torch.float32
        return pipelines.load(
            folder, prompts, guidance=guidance, size=size, device=device, dtype=precision, offload=offload
        )
    given = {"prompts": prompts, "size": size, "dtype": dtype, "offload": offload}
    if wrong := [option for option, value in given.items() if value]:
        raise ValueError(f"{', '.join(wrong)}: only for pipelines of diffusers that make latents; {name} is none")
    if folder.is_dir():
        return diffusers.load(folder, guidance=guidance, device=device)
    if guidance is not None:
        raise ValueError(f"guidance {guidance:g} is for models in diffusers' folders; {name} brings its own, or none")
    if name.startswith("toy:"):
        return toy.load(name)
    module, colon, own = name.replace(".py:", ":").partition(":")
    if not (colon and module and own.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        there = f"there is no folder {name}" if "/" in name else f"unknown model {name!r}"
        raise ValueError(
            f"{there}; expected {', '.join(zoo.NAMES)}, toy:digits, toy:checkerboard, a folder of "
            "diffusers, or package.module:name of a bespoke_solvers.Model, or of a function without arguments that "
            "returns one"
        )
    make = _look_up(module, own)
    if isinstance(make, Model):
        return make
    if isinstance(make, torch.nn.Module):
        raise ValueError(
            f"{name} is a network, a {type(make).__name__}; expected a bespoke_solvers.Model, which says what it "
            "predicts and on which path: Model.from_network(network, prediction=..., schedule=..., shape=...)"
        )
    required = [
        p for p in inspect.signature(make).parameters.values() if p.default is p.empty and p.kind < p.VAR_POSITIONAL
    ]
    if required:
        raise ValueError(f"{name} takes the arguments {', '.join(map(str, required))}; it must take none")
    try:
        model = make()
    except (ValueError, OSError):  # which say themselves what is wrong
        raise
    except Exception as error:
        raise _failed(name, error) from error
    if not isinstance(model, Model):
        raise ValueError(f"{name} returned a {type(model).__name__}; it must return a bespoke_solvers.Model")
    return model


def copies(name: str, guidance: float | None = None, **options: Any) -> list[Model]:
    """A folder's model on all GPUs but the first, where `resolve` puts it; of other models only their makers know."""
    others = range(1, torch.cuda.device_count()) if folder_of(name).is_dir() and not options.get("offload") else []
    return [resolve(name, guidance, device=f"cuda:{i}", **options) for i in others]


def _look_up(module: str, name: str) -> Model | Callable[[], Any]:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module + ".").startswith(error.name + "."):
            raise _failed(module, error) from error  # it is there, but something that it imports is not
        raise ValueError(
            f"there is no module {error.name!r} for the model {module}:{name}, neither installed nor in {here}"
        ) from error
    except (ValueError, OSError):
        raise
    except Exception as error:
        raise _failed(module, error) from error
    own = getattr(found, name, None)
    if not isinstance(own, Model) and not callable(own):
        got = f"it is a {type(own).__name__}" if hasattr(found, name) else f"the module has no {name!r}"
        raise ValueError(f"{module}:{name} must be a bespoke_solvers.Model, or a function that returns one; {got}")
    return own


def _failed(name: str, error: Exception) -> ValueError:
    """An error in the user's own module, with its place there."""
    own = name.partition(":")[0].rpartition(".")[2]
    frames = (frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).stem == own)
    place = "".join(f"{frame.filename}, line {frame.lineno}; " for frame in [*frames][-1:])
    return ValueError(
        f"{name} failed: {type(error).__name__}: {error} ({place}`bespoke --traceback ...` shows the way there)"
    )
