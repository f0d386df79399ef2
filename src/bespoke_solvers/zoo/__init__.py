"""Small networks that come with the package: `zoo:cifar10-fm-ot`, `zoo:cifar10-fm-v-cs` and `zoo:cifar10-eps-vp`.

Each is a folder that diffusers loads, with its model card, and a file of the paper's solvers for it.
"""

from pathlib import Path

PREFIX = "zoo:"
RK2_BESPOKE = "rk2-bespoke.json"
_HERE = Path(__file__).parent
NAMES = sorted(f"{PREFIX}{file.parent.name}" for file in _HERE.glob("*/config.json"))


def folder(name: str) -> Path:
    """Where the named network is."""
    if name not in NAMES:
        raise ValueError(f"unknown model {name!r} of the zoo; expected one of {', '.join(NAMES)}")
    return _HERE / name.removeprefix(PREFIX)
