"""The paper's own figures, as its tables print them, to stand beside ours."""

import json
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

CIFAR10 = "CIFAR10"
SIDES = {CIFAR10: 32, "ImageNet-64": 64, "ImageNet-128": 128}  # pixels, of the tables' data


class Printed(NamedTuple):
    """A line of the paper's tables of RK2-Bespoke: FID, that of exact samples, the share of it and of the training
    time that the fit took, both in percent."""

    data: str
    model: str
    nfe: int
    fid: float
    exact_fid: float
    percent: int
    percent_time: float


@cache
def _file() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(files("bespoke_solvers.paper").joinpath("printed.json").read_text())
    return content


def bespoke(table: str) -> list[Printed]:
    """The lines of tab:cifar10_a (`cifar10`) or tab:imagenet_64_and_128 (`imagenet`)."""
    columns = ("nfe", "fid", "percent", "percent_time")
    return [
        Printed(
            data=each["data"], model=each["model"], exact_fid=each["exact_fid"], **dict(zip(columns, row, strict=True))
        )
        for each in _file()[table]
        for row in zip(*(each[name] for name in columns), strict=True)
    ]


def by_data() -> dict[str, list[Printed]]:
    """The lines of both tables by the data that they are of."""
    lines = [*bespoke("cifar10"), *bespoke("imagenet")]
    return {data: [line for line in lines if line.data == data] for data in SIDES}


def comparison() -> list[tuple[str, int, float]]:
    """Method, NFE and FID on CIFAR10, of tab:cifar10_comprison."""
    return [
        (each["method"], nfe, fid)
        for each in _file()["comparison"]
        for nfe, fid in zip(each["nfe"], each["fid"], strict=True)
    ]


def edm() -> dict[str, tuple[int, float]]:
    """NFE and FID on EDM's own CIFAR10 model, said of fig:bes_vs_edm."""
    return {name: (int(nfe), fid) for name, (nfe, fid) in _file()["edm"].items()}
