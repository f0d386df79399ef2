"""Training of flow and diffusion networks, within a time or a number of steps, resumed from a checkpoint."""

import copy
import dataclasses
import math
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from bespoke_solvers import __version__, checkpoints, dedicated, generic, matching, model_folder, pictures
from bespoke_solvers.adapters.diffusers import CHECKPOINT, as_model, trained_by_us
from bespoke_solvers.description import describe_schedule
from bespoke_solvers.pretrain_configs import unet
from bespoke_solvers.pretrain_plan import Plan
from bespoke_solvers.run import Rate, rated
from bespoke_solvers.table import sample
from bespoke_solvers.velocity import Model, default_device

EMA_DECAY = 0.9999
LARGEST_GRADIENT = 1.0
REPORT = 50  # steps between two looks at the loss; a look waits for the GPU
PAUSE = 180.0  # seconds between two checkpoints with their sample grids
CURVE = 200  # the most points of the loss curve in training.json
COLUMNS, SAMPLE_NFE, SAMPLE_BATCH = 8, 20, 16
FID_BY = "ipndm@quadratic"  # with SAMPLE_NFE, near the exact samples on all paths


def ema_decay(steps: int) -> float:
    """Averages over about the last tenth of the steps, until that is 1 / (1 - EMA_DECAY) of them."""
    return min(EMA_DECAY, (1 + steps) / (10 + steps))


class Training:
    """What changes during a training, all of it in the checkpoint. Draws from PyTorch's own random generators."""

    KEPT = ("network", "average", "optimizer", "steps", "seconds", "history", "running", "random", "fid")

    def __init__(self, plan: Plan, device: torch.device, compiled: bool) -> None:
        config, classes = plan.config, len(plan.classes)
        torch.manual_seed(plan.seed + (plan.start.seed if plan.start else 0))
        torch.backends.cudnn.benchmark = True  # all batches have one shape
        self.plan, self.device = plan, device
        self.source = matching.Source(plan.data, classes, config.label_dropout, plan.flip, device)
        network = unet(config, plan.shape[0], classes)
        if plan.start:
            plan.start.put_into(network)
        self.network = network.to(device).to(memory_format=torch.channels_last).train()
        self.average = copy.deepcopy(self.network).requires_grad_(False).eval()
        self.parameters, self.averages = list(self.network.parameters()), list(self.average.parameters())
        self.optimizer = torch.optim.Adam(self.parameters, lr=config.learning_rate, fused=device.type == "cuda")
        self.loss = torch.compile(matching.loss, dynamic=False) if compiled else matching.loss
        self.steps, self.seconds = 0, 0.0
        self.history: list[tuple[int, float, float]] = []  # steps, seconds, mean loss since the entry before
        self.running = torch.zeros((), device=device)  # sum of the losses since the last entry
        self.fid: list[tuple[int, float, float, str | bool]] = []  # steps, seconds, FID, by what (`rated`)

    def learning_rate(self, progress: float) -> float:
        """Of the next step: warm-up, and the decay that ends with the limit."""
        config = self.plan.config
        warm = min(1.0, (self.steps + 1) / config.warmup) if config.warmup else 1.0
        return config.learning_rate * warm * math.pow(max(0.0, 1 - progress), config.decay)

    def compile(self) -> None:
        """Compile the network and let cuDNN choose, in a step that leaves no trace: minutes that no limit counts."""
        if self.loss is not matching.loss:
            with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
                self.gradient().item()
            self.optimizer.zero_grad()

    def gradient(self) -> Tensor:
        """The loss of a new batch, whose gradient is added to the parameters'."""
        config = self.plan.config
        batch = self.source.draw(config.batch_size, config.schedule)
        loss: Tensor = self.loss(self.network, config.schedule, config.prediction, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def step(self, progress: float) -> None:
        """One step of Adam and of the average; nothing in it waits for the GPU."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(progress)
        loss = self.gradient()
        torch.nn.utils.clip_grad_norm_(self.parameters, LARGEST_GRADIENT)
        self.optimizer.step()
        self.optimizer.zero_grad()
        torch._foreach_lerp_(self.averages, self.parameters, 1 - ema_decay(self.steps))
        self.running += loss
        self.steps += 1

    def latest(self) -> tuple[int, float, float]:
        """Steps, seconds, and the mean loss since the last entry of the history."""
        since = self.steps - (self.history[-1][0] if self.history else 0)
        return self.steps, self.seconds, self.running.item() / since

    def report(self) -> None:
        """Put the loss of the last steps into the history; stop where it is not a number any more."""
        matching.check(self.running, self.parameters, self.steps)
        self.history.append(self.latest())
        self.running.zero_()

    def curve(self) -> list[list[float]]:
        """The history in at most CURVE points, and what came after it."""
        points = [*self.history, self.latest()] if self.steps % REPORT else self.history
        width = -(-len(points) // CURVE) if points else 1
        chunks = [points[i : i + width] for i in range(0, len(points), width)]
        return [[*chunk[-1][:2], sum(loss for *_, loss in chunk) / len(chunk)] for chunk in chunks]

    def state(self) -> dict[str, Any]:
        """All that a resumed training needs to go on as if nothing had been."""
        on_gpu = {"cuda": torch.cuda.get_rng_state(self.device)} if self.device.type == "cuda" else {}
        return {
            "settings": self.plan.settings,
            **{name: getattr(self, name).state_dict() for name in ("network", "average", "optimizer")},
            **{name: getattr(self, name) for name in ("steps", "seconds", "history", "running", "fid")},
            "random": {"cpu": torch.get_rng_state()} | on_gpu,
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Take over a state."""
        for name in ("network", "average", "optimizer"):
            getattr(self, name).load_state_dict(state[name])
        for name in ("steps", "seconds", "history", "fid"):
            setattr(self, name, state[name])
        self.running = state["running"].to(self.device)
        torch.set_rng_state(state["random"]["cpu"])
        if self.device.type == "cuda" and "cuda" in state["random"]:
            torch.cuda.set_rng_state(state["random"]["cuda"], self.device)

    def model(self) -> Model:
        """The averaged network as a model."""
        config = self.plan.config
        return as_model(
            self.average, trained_by_us(config.prediction, config.schedule, len(self.plan.classes)), self.plan.shape
        )

    @torch.no_grad()
    def look(self, folder: Path, rate: Rate | None) -> None:
        """Draw samples of the averaged network, and measure their FID."""
        self.draw_samples(folder)
        by, known = rated(rate), {(each[0], *each[3:]) for each in self.fid}  # earlier ones do not say by what
        if rate is None or (self.steps, by) in known:
            return
        model = self.model()
        try:
            found = rate(dedicated.baseline(FID_BY, SAMPLE_NFE, model), model)
        except ValueError as error:  # samples that are not finite, say, of a network that has not learned yet
            warnings.warn(f"FID was not measured after {self.steps} steps: {error}", stacklevel=2)
        else:
            self.fid += [(self.steps, self.seconds, found, by)] if math.isfinite(found) else []

    def draw_samples(self, folder: Path) -> None:
        """A picture of samples from the same noise each time: a row for each class, or 64."""
        model, classes = self.model(), len(self.plan.classes)
        in_rows = 0 < classes <= 10
        noise = model.noise(range(COLUMNS * classes if in_rows else 64))
        labels = torch.arange(classes, device=self.device).repeat_interleave(COLUMNS) if in_rows else noise.condition
        table = generic.baseline("midpoint", SAMPLE_NFE).on(model)
        drawn = []
        for i in range(0, len(noise.x0), SAMPLE_BATCH):
            u = model.bind(labels[i : i + SAMPLE_BATCH] if isinstance(labels, Tensor) else None)
            drawn.append(sample(table, u, noise.x0[i : i + SAMPLE_BATCH]))
        pictures.save_samples(torch.cat(drawn), folder / f"samples-{self.steps:06d}.png", columns=COLUMNS)

    def record(self, half: bool) -> dict[str, Any]:
        """What `training.json` says."""
        import diffusers

        plan, gpu = self.plan, self.device.type == "cuda"
        return {
            "config": plan.config.name,
            "schedule": describe_schedule(plan.config.schedule),
            "prediction": plan.config.prediction,
            "data": {"name": plan.data.name, "pictures": len(plan.data), "shape": plan.shape, "classes": plan.classes},
            "settings": dataclasses.asdict(plan.config)
            | {name: getattr(plan, name) for name in ("flip", "seed", "steps", "minutes")}
            | {"ema_decay": EMA_DECAY},
            "parameters": sum(value.numel() for value in self.parameters),
            "weights": "float16" if half else "float32",
            "steps": self.steps,
            "images": self.steps * plan.config.batch_size,
            "seconds": round(self.seconds, 1),
            "device": torch.cuda.get_device_name(self.device) if gpu else platform.machine() + " CPU",
            "precision": "bfloat16 autocast" if gpu else "float32",
            **({"gpu_memory": torch.cuda.max_memory_allocated(self.device)} if gpu else {}),  # bytes, at most
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "diffusers": diffusers.__version__,
                "bespoke_solvers": __version__,
            },
            **({"start": plan.start.record} if plan.start else {}),
            "losses": self.curve(),
            **({"fid": self.fid} if self.fid else {}),
        }


def read_checkpoint(path: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The state in a checkpoint, or None where there is none; one of another training is refused."""
    if path.exists():
        return checkpoints.read(path, Training.KEPT, settings, of="training", instead="give another --out")
    model_folder.check_free(path.parent)
    return None


def train(
    plan: Plan,
    out: Path,
    *,
    half: bool = False,
    compiled: bool | None = None,
    device: str | torch.device | None = None,
    rate: Rate | None = None,
    command: str = "",
    progress: bool = True,
) -> dict[str, Any]:
    """Train to the end of the plan, going on from `out/checkpoint.pt`; returns what `out/training.json` says.

    Runs on the GPU if there is one, where the network is compiled by default. An interruption (Ctrl-C) writes the
    checkpoint and raises KeyboardInterrupt. rate: FID of a table on the model, measured with each grid of samples, say
    (`Judge.fid`). command: what was typed, for the record.
    """
    device = torch.device(device or default_device())
    gpus = [device] if device.type == "cuda" else []
    out.mkdir(parents=True, exist_ok=True)
    checkpoint = out / CHECKPOINT
    state = read_checkpoint(checkpoint, plan.settings)
    style = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
    with (
        checkpoints.interruptible() as asked,
        torch.random.fork_rng(gpus),
        tqdm(total=1.0, desc=plan.config.name, bar_format=style, disable=not progress) as bar,
    ):
        training = Training(plan, device, compiled=bool(gpus) if compiled is None else compiled)
        if state is not None:
            training.resume(state)
            bar.set_description(f"{plan.config.name}, from step {training.steps}")
        training.compile()

        def look() -> None:
            if asked:
                raise KeyboardInterrupt
            with checkpoints.at_once():
                training.look(out, rate)

        paused = time.monotonic()
        began, since = paused - training.seconds, (paused, training.steps)
        while (done := plan.progress(training.steps, training.seconds)) < 1 and not asked:
            training.step(done)
            training.seconds = (now := time.monotonic()) - began
            if training.steps % REPORT == 0:
                training.report()
                speed = (training.steps - since[1]) * plan.config.batch_size / (time.monotonic() - since[0])
                since = time.monotonic(), training.steps
                bar.set_postfix_str(f"loss {training.history[-1][2]:.4f}, {speed:,.0f} images/s", refresh=False)
            bar.update(min(1.0, plan.progress(training.steps, training.seconds)) - bar.n)
            if now - paused > PAUSE:
                matching.check(training.running, training.parameters, training.steps)
                checkpoints.write(checkpoint, training.state())
                look()
                paused = time.monotonic()
                since, began = (paused, training.steps), began + paused - now
        matching.check(training.running, training.parameters, training.steps)
        checkpoints.write(checkpoint, training.state())
        look()
        checkpoints.write(checkpoint, training.state())  # with the last FID, for a run that goes on with a larger limit
        record = {"command": command} | training.record(half)
        model_folder.save(training.average, record, out, half)
    return record
