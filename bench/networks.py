"""What docs/results*.md say of networks and digits, by one command: python -m bench.networks MODELS --work FOLDER.

The lines of a lane run one after another and the lanes of a stage side by side, which fills a GPU. A line measures the
cells that its store does not have: interrupted, or out of time (`--minutes`), the same command goes on where it ended.
"""

import argparse
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import Formatter

from bench.exchange import BOUND as BY_BOUND
from bench.frontier import BNS, CHAIN, DEFAULT, GAUSS_NEWTON, HIGH, PRINTED, REFINED, TRANSFERRED
from bench.models import PATHS, link
from bespoke_solvers import dedicated, zoo
from bespoke_solvers.adapters.diffusers import TRAINING

FRONTIER = "bench.frontier --models {models} --banks {work}/banks --minutes {left} --batch-size 64 --paths 64"
UNGUIDED = f"{FRONTIER} --choose 256 --tolerance 3e-6 --grid-samples 64"
GUIDED = f"{FRONTIER} --choose 128 --samples 128 --tolerance 1e-5 --grid-samples 64"
ALONE = (  # with nothing beside it, and as much to choose by and as exact as by default: the seconds of a fit
    "bench.frontier --warm-up --batch-size 64 --choose 64 --tolerance 1e-5 --minutes {left} --nfe 10 "
    "--store bench/results/alone"
)
EVERY = "--nfe 10 8 6 5 4 16 20"
GUIDED_MODELS = "cifar10-fm-ot@w2 cifar10-fm-ot@w4"
DEDICATED = f"--method {shlex.join(dedicated.NAMES)}"
OURS = f"--method {shlex.join(CHAIN)}"
END_POINT = f"--method {shlex.join(GAUSS_NEWTON)}"
BOUND = f"--method {shlex.join(BY_BOUND.values())} --learning-rate 2e-2 --adam 150"
RIVALS = [*CHAIN, *(name for name in (*GAUSS_NEWTON, *BY_BOUND.values()) if name.startswith("rk2"))]
BY_ADAM = f"--method {shlex.quote(BNS)} --learning-rate 1e-3"
SLOWER = f"--method {shlex.quote(BNS)} --learning-rate 2e-4 --begin 1e-3"
HALF = f"--method unipc ipndm {shlex.join([TRANSFERRED, REFINED, DEFAULT])}"
DIGITS = "bench.frontier --banks {work}/banks --minutes {left} --choose 1024 --samples 8192 toy:digits toy:digits-vp"
TOYS = f"{DIGITS} toy:digits-fm-v-cs --batch-size 128"
SAME = f"{TOYS} --paths 256"  # for all fits
FID = "bench.fid --models {models} --real {real} --weights {weights} --compile --statistics {work}/statistics"
EXACTLY = "--method dopri5 --tolerance 1e-4"
FINE = f"{FID} --nfe 60 --frontier bench/results/fine"
CLOSED_FORM = shlex.quote(next(iter(CHAIN)))
PAPER = (
    "bespoke_solvers.cli paper --out bench/results/paper --bank {work}/banks --budget 64 --batch-size 64 --paths 64 "
    "--choose 256 --samples 256 --tolerance 3e-6 --iterations 150 --learning-rate 2e-2 --quiet"
)
ON_ZOO = (
    "bespoke_solvers.cli paper --out bench/results/zoo --bank {work}/banks --paths 128 --choose 256 --samples 512 "
    "--batch-size 128 --iterations 150 --learning-rate 2e-2 --quiet"
)
ZOO = f"{ON_ZOO} --only tab:cifar10_a --only fig_a:transferred_ablation"
STAND_INS = {"cifar10-fm-ot": "bfloat16", "cifar10-eps-vp": "float16"}  # with the FID of float32 to 0.5 %
FOLDERS = {name: "{work}/folders/" + name for name in PATHS}
EACH = f"{' '.join(FOLDERS.values())} zoo:cifar10-fm-ot"  # two of them on one path, for the paper's transfer
STORES = ("frontier", "alone", "paths", "many", "fid")  # of which the pages have tables
PAGES = " ".join(f"docs/results{page}.md" for page in ("", "-networks", "-digits", "-paper"))
FITS = "--nfe 6,8,10,16,20 --only fig:euler_vs_midpoint"
ABLATION = "--nfe 6,8,10,16,20 --only fig_a:scale_time_ablation"
WITH_FID = ("--nfe 8,10,16,20 --only fig:nfe_vs_fid_cifar10", f"{ABLATION} --only fig:bes_vs_edm")
TO_PICTURES = "--fid-samples 10000 --real {real} --inception {weights}"
ERRORS = "--only fig:euler_vs_midpoint --only fig_a:scale_time_ablation --only fig:nfe_vs_psnr_imagenet"
CURVES = "--only fig:nfe_vs_psnr_imagenet --only fig:imagenet-64 --only fig:3_paths"


def _toys() -> list[str]:
    paths = f"{DIGITS} --batch-size 16 --store bench/results/paths"
    return [
        f"{SAME} {EVERY} {DEDICATED} {shlex.join([*CHAIN, *GAUSS_NEWTON, *BY_BOUND.values()])}",
        f"{SAME} {EVERY} {BY_ADAM} --adam 4000",
        f"{SAME} --nfe 10 16 20 {BY_ADAM} --adam 4000 --learning-rate 1e-4",
        f"{TOYS} --nfe 8 10 --method '{HIGH}'",
        f"{SAME} --nfe 10 --method '{PRINTED}' --adam 2000",
        *(
            f"{fits} --seed {seed} --store bench/results/many"
            for fits in (
                f"{TOYS} --nfe 8 10 --method midpoint '{DEFAULT}'",
                f"{SAME} --nfe 8 10 --method '{DEFAULT}'",
                f"{TOYS} --nfe 10 --method '{HIGH}'",
            )
            for seed in range(8)
        ),
        *(f"{paths} --nfe 5 8 10 {OURS} --paths {count}" for count in (16, 32, 64, 128, 256, 512, 1024)),
    ]


def _paths(counts: Sequence[int]) -> list[str]:
    line = f"{UNGUIDED} cifar10-fm-ot --nfe 4 --method '{DEFAULT}' --store bench/results/paths"
    return [f"{line} --paths {count} --batch-size {min(count, 64)}" for count in counts]


def _by_bound(name: str) -> list[str]:
    return [
        f"{PAPER} {FOLDERS[name]} {FITS}",
        "bench.exchange bench/results/paper",
        f"{UNGUIDED} {name} {EVERY} {BOUND}",
    ]


def _of_paper(name: str) -> list[str]:
    return [
        f"{PAPER} {FOLDERS[name]} --nfe 6,8,10,16,20 {CURVES}",
        f"{PAPER} {FOLDERS[name]} {ABLATION}",
    ]


def _until_rest(nfe: int, methods: str, steps: Sequence[int]) -> list[str]:
    """Each line goes on from the one before."""
    return [f"{UNGUIDED} cifar10-fm-ot --nfe {nfe} {methods} --adam {count}" for count in steps]


STAGES: list[dict[str, list[str]]] = [
    {
        "alone": [
            f"{ALONE} {' '.join(zoo.NAMES)} --method '{DEFAULT}'",
            f"{ALONE} {' '.join(PATHS)} --models {{models}} --paths 64 {BOUND} --method {shlex.join(RIVALS)}",
        ]
    },
    {  # the first fits to a model solve the exact paths, which the lanes after them share
        "fm-ot-ours": [f"{UNGUIDED} cifar10-fm-ot {EVERY} {OURS}", *_paths([64])],
        "eps-vp-ours": [f"{UNGUIDED} cifar10-eps-vp {EVERY} {OURS}"],
        **{f"w{w}-ours": [f"{GUIDED} cifar10-fm-ot@w{w} {EVERY} {OURS} {shlex.join(dedicated.NAMES)}"] for w in (2, 4)},
    },
    {
        "fm-ot-dedicated": [f"{UNGUIDED} cifar10-fm-ot {EVERY} {DEDICATED}"],
        "fm-ot": [
            f"{UNGUIDED} cifar10-fm-ot {EVERY} {END_POINT}",
            *_by_bound("cifar10-fm-ot"),
            f"{UNGUIDED} cifar10-fm-ot@bfloat16 cifar10-fm-ot@float16 --nfe 5 10 {HALF}",
            f"{UNGUIDED} cifar10-fm-ot --nfe 8 10 {BOUND} --paths 128 --adam 400 --learning-rate 1e-2",
            f"{UNGUIDED} cifar10-fm-ot --nfe 8 10 {BOUND} --paths 128 --adam 600 --method 'rk2-bespoke, bound'",
            *_paths([16, 32, 128, 256, 512, 1024]),
        ],
        **{f"bns-{nfe}": [*_until_rest(nfe, BY_ADAM, (1800,)), *_until_rest(nfe, SLOWER, (2000,))] for nfe in (8, 10)},
        "end-point": [f"{UNGUIDED} cifar10-fm-ot --nfe 10 8 {END_POINT} --gauss-newton 60 --pays 1e-3"],
        "rk2-10": _until_rest(10, f"{BOUND} --method 'rk2-bespoke, bound'", (1000,)),
        "eps-vp-dedicated": [f"{UNGUIDED} cifar10-eps-vp {EVERY} {DEDICATED}"],
        "eps-vp": [f"{UNGUIDED} cifar10-eps-vp {EVERY} {END_POINT}"],
        "eps-vp-bound": [*_by_bound("cifar10-eps-vp"), f"{UNGUIDED} cifar10-eps-vp --nfe 8 10 {BY_ADAM} --adam 150"],
        **{f"w{w}": [f"{GUIDED} cifar10-fm-ot@w{w} {EVERY} {END_POINT}"] for w in (2, 4)},
        **{
            f"w{w}-by-adam": [f"{GUIDED} cifar10-fm-ot@w{w} {EVERY} {by} --adam 75" for by in (BOUND, BY_ADAM)]
            for w in (2, 4)
        },
        "toys": _toys(),
    },
    {
        **{
            f"{name.removeprefix('cifar10-')}-fid": [
                f"{FID} {name} {nfe} --method {methods}"
                for nfe, methods in (
                    ("--nfe 4 5 6 8 10 16 20", f"'{DEFAULT}'"),
                    ("--nfe 6 8 10 16 20", "midpoint 'rk2-bespoke, end point' 'rk2-bespoke, bound'"),
                    ("--nfe 8 10 16 20", "euler dpm-2"),
                    ("--nfe 8 16 20", "rk4"),
                    ("--nfe 4 5 6 8 10", "ipndm ipndm-ab unipc dpmpp-2m deis"),
                )
            ]
            for name in PATHS
        },
        "fine": [
            f"{UNGUIDED} {' '.join(PATHS)} --store bench/results/fine --nfe 60 --method ipndm",
            f"{UNGUIDED} cifar10-eps-vp --store bench/results/fine --nfe 60 --method {CLOSED_FORM}",
            *(
                f"{FINE} {name} --method ipndm"
                for name in (*PATHS, *(f"{name}@{half}" for name, half in STAND_INS.items()), "cifar10-eps-vp@bfloat16")
            ),
            *(f"{FINE} {name}@{half} --method ipndm --samples 50000" for name, half in STAND_INS.items()),
            *(f"{FINE} cifar10-eps-vp@float16 --method {CLOSED_FORM} --samples {n}" for n in (10_000, 50_000)),
        ],
        "exact": [
            f"{FID} cifar10-fm-ot --nfe 6 --method '{DEFAULT}' --samples 50000",
            f"{FID} cifar10-eps-vp --nfe 6 20 --method '{DEFAULT}' --samples 50000",
            *(f"{FID} {name} {EXACTLY}" for name in PATHS),
        ],
        **{f"{name.removeprefix('zoo:cifar10-')}-dopri5": [f"{FID} {name} {EXACTLY}"] for name in zoo.NAMES},
        "w2-fid": [
            f"{FID} cifar10-fm-ot@w2 --nfe 8 10 --method '{DEFAULT}' midpoint 'rk2-bespoke, end point'",
            f"{FID} cifar10-fm-ot@w2 {EXACTLY}",
        ],
    },
    {
        **{
            name.replace(":cifar10", ""): [f"{ZOO} {name} --nfe {nfe} {TO_PICTURES}" for nfe in ("8,10", "16,20")]
            for name in zoo.NAMES
        },
        "fm-ot-paper": _of_paper("cifar10-fm-ot"),
        "eps-vp-paper": [
            *_of_paper("cifar10-eps-vp"),
            f"{PAPER} {FOLDERS['cifar10-eps-vp']} --nfe 6,8,10,16,20 --only fig:bes_vs_edm",
        ],
        **{
            f"{name.removeprefix('cifar10-')}-guided": [
                f"{PAPER} {FOLDERS[name]} --guidance 2 --nfe 8,10 {CURVES}",
                *(f"{PAPER} {FOLDERS[name]} --guidance 2 --nfe {nfe} {ERRORS}" for nfe in ("8,10", 6, 16, 20)),
                f"{PAPER} {FOLDERS[name]} --guidance 2 --nfe 8,10 --only fig:nfe_vs_fid_cifar10 {TO_PICTURES}",
            ]
            for name in PATHS
        },
        "zoo-paper": [f"{PAPER} zoo:cifar10-fm-ot --nfe 6,8,10,16,20 {ERRORS}"],
    },
    {
        "paper": [
            f"{PAPER} {EACH} --nfe 6,8,10,16,20 --only fig_a:transferred_ablation",
            "bench.exchange bench/results/paper --real {real} --weights {weights}",
            *(f"{PAPER} {' '.join(FOLDERS.values())} {each} {TO_PICTURES}" for each in WITH_FID),
            f"{PAPER} {EACH} --nfe 16,20 --only fig_a:transferred_ablation {TO_PICTURES}",
            f"{PAPER} {EACH} --guidance 2 --nfe 6,8,10,16,20 --draw --fid-samples 10000",
        ],
        "tables": [
            f"{ON_ZOO} {' '.join(zoo.NAMES)} --nfe 8,10,16,20 --fid-samples 10000 --draw",
            "bench.zoo --into docs/zoo.md",
            "bench.tables --paper bench/results/zoo/results.json --into docs/zoo.md",
            *(f"bench.tables --store bench/results/{store} --into {PAGES}" for store in STORES),
            "bench.tables --paper bench/results/paper/results.json --into docs/results-paper.md",
            f"bench.tables {' '.join(PATHS)} {GUIDED_MODELS} --pictures docs",
        ],
    },
]


def _say(told: str) -> None:
    print(f"{told}\n", end="", flush=True)  # in one piece: `print` writes the end by itself, after another lane's line


class Runner:
    """Runs the lanes, as long as there is time and nobody interrupts; `failed` are the lines that failed."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.given, self.until = vars(options), time.monotonic() + 60 * options.minutes
        self.failed, self.interrupted = list[str](), threading.Event()

    def stage(self, lanes: Mapping[str, Sequence[str]]) -> None:
        """The lanes side by side."""
        with ThreadPoolExecutor(len(lanes)) as pool:
            done = [pool.submit(self.lane, name, lines) for name, lines in lanes.items()]
            try:
                for each in done:
                    each.result()
            except KeyboardInterrupt:  # the lines that run got it, too
                self.interrupted.set()
                raise

    def lane(self, name: str, lines: Sequence[str]) -> None:
        """One line after another, those that failed once more: the lanes share the memory of a GPU."""
        again = [line for line in lines if not self.line(name, line)]
        self.failed += [line for line in again if not self.line(name, line)]

    def line(self, name: str, line: str) -> bool:
        """Whether a line did not fail; one that lacks a file, or comes too late, is left out, and that is said."""
        left = (self.until - time.monotonic()) / 60
        named = {field for _, field, _, _ in Formatter().parse(line) if field}
        lacking = [f"--{field}" for field in sorted(named - {"left"}) if self.given.get(field) is None]
        if self.interrupted.is_set():
            return True
        if lacking or left <= 0:
            why = f"without {' and '.join(lacking)}" if lacking else "for want of time"
            _say(f"{name}: left out {why}: {line}")
            return True
        arguments = [part.format(left=f"{left:.1f}", **self.given) for part in shlex.split(line)]
        started, log = time.monotonic(), self.given["work"] / f"{name}.log"
        with log.open("a") as file:
            command = [sys.executable, "-m", *arguments]
            code = subprocess.run(command, stdout=file, stderr=file, check=False).returncode
        told = "done" if code == 0 else f"failed with {code}, see {log},"
        _say(f"{name}: {told} after {time.monotonic() - started:.0f} s: {line}")
        return code == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, help="the folder of the networks")
    parser.add_argument("--work", type=Path, required=True, help="a folder for exact paths and logs")
    parser.add_argument("--real", type=Path, help="a folder of `bespoke data`, for FID")
    parser.add_argument("--weights", type=Path, help="those of the usual Inception, for FID")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after that time")
    every = [name for lanes in STAGES for name in lanes]
    parser.add_argument("--lane", nargs="+", choices=every, default=every, help="only these; by default all")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    for name in PATHS:
        if not (options.work / "folders" / name / TRAINING).exists():
            link(options.models / name, options.work / "folders" / name)
    runner = Runner(options)
    for lanes in STAGES:
        if chosen := {name: lines for name, lines in lanes.items() if name in options.lane}:
            runner.stage(chosen)
    raise SystemExit(bool(runner.failed))


if __name__ == "__main__":
    main()
