"""A solver as a scheduler of diffusers: `pipe.scheduler = BespokeScheduler.from_solver("s.json", pipe.scheduler)`.

diffusers calls the network and hands its output to `step`, which gives the network's next input.
"""

import os
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import diffusers
import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.schedulers.scheduling_utils import KarrasDiffusionSchedulers, SchedulerMixin, SchedulerOutput
from torch import Tensor

from bespoke_solvers import hub
from bespoke_solvers.adapters.diffusers import Meaning, meaning_of
from bespoke_solvers.adapters.stepping import Stepper, dpm_solver, full, rounded
from bespoke_solvers.description import alike, close, describe_schedule, in_words
from bespoke_solvers.schedules import float64
from bespoke_solvers.solver import Solver, content_of, read, solvers_in
from bespoke_solvers.velocity import expand

LOST = ("clip_sample", "thresholding", "eta", "stochastic_sampling")  # of a configuration, since no table does it
NOISY = ("Ancestral", "SDE", "SASolver", "LCM", "TCD")  # of classes whose users want noise; all have DDPM
CAST = 2**-8  # relative; how far a time may be off that was cast to bfloat16 on its way
SCALE = 1e-5  # relative; how far a start may be off without being a wrong one


class Content(dict[str, Any]):
    """What a solver file holds; diffusers prints the parts of a configuration in warnings, and this is long."""

    def __repr__(self) -> str:
        return f"<a solver for {', '.join(sorted(self['tables'], key=int))} evaluations>"


class BespokeScheduler(SchedulerMixin, ConfigMixin):  # type: ignore[misc]
    """Runs a solver's tables in diffusers' pipelines: `num_inference_steps` is the NFE, and chooses among them.

    solver: what a solver file holds.
    replaced: the class of the pipeline's own scheduler, the rest of whose configuration stands beside these two; it
    says the path, the prediction and the network's time. None for networks that `bespoke pretrain` made.
    """

    _compatibles = [  # noqa: RUF012, as diffusers has it
        *(kind.name for kind in KarrasDiffusionSchedulers),
        "FlowMatchEulerDiscreteScheduler",
        "FlowMatchHeunDiscreteScheduler",
    ]
    order = 1  # network calls for each of the timesteps

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(self, solver: dict[str, Any] | None = None, replaced: str | None = None) -> None:
        if solver is None:
            raise ValueError(
                "a BespokeScheduler needs a solver; make it with BespokeScheduler.from_solver('s.json', pipe.scheduler)"
            )
        self.solvers = solvers_in(solver, "the solver of this scheduler")
        self.register_to_config(solver=Content(solver))
        self.num_inference_steps: int | None = None
        self.timesteps = torch.empty(0)
        self._noise_scale: float | None = None  # by which a pipeline was told to scale its noise
        self._forget()

    def __repr__(self) -> str:
        """Short, where diffusers would print all numbers of the solver."""
        instead = f", instead of {self.config.replaced}" if self.config.replaced else ""
        return f"BespokeScheduler({self.config.solver!r}{instead})"

    @classmethod
    def from_solver(cls, solver: str | os.PathLike[str] | Solver, scheduler: Any = None) -> "BespokeScheduler":
        """The solver in place of a pipeline's scheduler, whose path and prediction are kept.

        A file, a folder or a repository of the Hub is taken with all of its tables. Without a scheduler, the network
        must be one that `bespoke pretrain` made, and the solver one for it.
        """
        if isinstance(scheduler, dict):
            raise ValueError("got the configuration of a scheduler; give the scheduler itself, pipe.scheduler")
        config = {} if scheduler is None else {k: v for k, v in scheduler.config.items() if not k.startswith("_")}
        replaced = config.get("replaced") if isinstance(scheduler, cls) else _known_class(scheduler)
        content = content_of([solver]) if isinstance(solver, Solver) else read(hub.find(solver))
        made: BespokeScheduler = cls(solver=content, replaced=replaced)
        made.register_to_config(**{k: v for k, v in config.items() if k not in ("solver", "replaced")})
        made._meaning  # noqa: B018, refuses a solver for another network
        asked = [f"{name} = {config[name]}" for name in LOST if config.get(name)]
        if str(config.get("algorithm_type")).startswith("sde"):
            asked.append(f"algorithm_type = {config['algorithm_type']}")
        if any(word in str(replaced) for word in NOISY):
            asked.append("noise in its steps")
        if asked:
            warnings.warn(
                f"the {replaced} had {', '.join(asked)}; a solver neither clips nor adds noise, so it draws other "
                "samples",
                stacklevel=2,
            )
        return made

    def __getstate__(self) -> dict[str, Any]:
        """What pickle keeps: not a run, and what the network's output means is found again."""
        return {name: value for name, value in vars(self).items() if name != "_meaning"} | {"_run": None}

    @cached_property
    def _meaning(self) -> Meaning:
        """Of the network's output and time, once the solvers are known to be made for it."""
        meaning = meaning_of({**self.config, "_class_name": type(self).__name__})
        path = describe_schedule(meaning.schedule)
        for solver in self.solvers.values():
            schedule, prediction = (solver.model.get(name) for name in ("schedule", "prediction"))
            if prediction not in (None, meaning.prediction):
                raise _for_another("prediction", prediction, meaning.prediction)
            if schedule is not None and not alike(schedule, path):
                raise _for_another("schedule", schedule, path)
            here = meaning.network_time(solver.table.t).tolist()
            if solver.network_time and not close(solver.network_time, here, tolerance=1e-3):
                ours = "; or give from_solver the scheduler that it replaces" if self.config.replaced is None else ""
                raise _for_another("network time", solver.network_time, here, ours)
        return meaning

    # What pipelines set and ask before they sample

    def set_timesteps(
        self,
        num_inference_steps: int | None = None,
        device: str | torch.device | None = None,
        timesteps: Sequence[float] | Tensor | None = None,
        sigmas: Any = None,
        mu: float | None = None,
    ) -> None:
        """Take the table with that many evaluations.

        `sigmas` (of which the number counts) and `mu` are what some pipelines always pass; the learned times stay.
        """
        if timesteps is not None:
            raise ValueError("a BespokeScheduler has times of its own: `timesteps` cannot be given; leave them out")
        nfe = len(sigmas) if num_inference_steps is None and sigmas is not None else num_inference_steps
        if nfe is None and len(self.solvers) == 1:
            (nfe,) = self.solvers
        if nfe not in self.solvers:
            raise ValueError(
                f"the solver has tables for num_inference_steps = {', '.join(map(str, self.solvers))}, got {nfe}; "
                "choose one of these, or fit a solver with that many evaluations"
            )
        self.num_inference_steps = nfe
        times = self._meaning.network_time(rounded(self.solvers[nfe].table.t))
        self.timesteps = times.to(torch.float32).to(device)
        self._forget()

    def _forget(self) -> None:
        self._begin_index: int | None = None
        self._step_index: int | None = None
        self._run: Stepper | None = None

    @property
    def begin_index(self) -> int | None:
        """The evaluation to begin with, if a pipeline has set it."""
        return self._begin_index

    @property
    def step_index(self) -> int | None:
        """How many of the evaluations are done, or skipped by the start."""
        return self._step_index

    def set_begin_index(self, begin_index: int = 0) -> None:
        """Begin with that evaluation: a pipeline starts from a noisy picture."""
        self._begin_index = begin_index

    @property
    def init_noise_sigma(self) -> float:
        """a_0, the scale of the first input; of the first table before `set_timesteps`."""
        self._noise_scale = self.solvers[self.num_inference_steps or min(self.solvers)].table.a[0].item()
        return self._noise_scale

    def scale_model_input(self, sample: Tensor, timestep: Any = None) -> Tensor:
        """The sample as it is."""
        return sample

    def add_noise(self, original_samples: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """x(t) = alpha_t data + sigma_t noise at the network's times."""
        first, last = self._meaning.network_time(torch.tensor([0.0, 1.0], dtype=torch.float64))
        t = (float64(timesteps) - first) / (last - first)
        alpha, sigma, _, _ = self._meaning.schedule(t.reshape(-1))
        x1 = full(original_samples)
        self._noise_scale = self.init_noise_sigma  # x(t_0) is a first input as it is
        return (expand(alpha, x1) * x1 + expand(sigma, x1) * noise.to(x1)).to(original_samples.dtype)

    def scale_noise(self, sample: Tensor, timestep: Tensor, noise: Tensor) -> Tensor:
        """`add_noise` as pipelines of flows call it."""
        return self.add_noise(sample, noise, timestep)

    # The steps

    def step(
        self,
        model_output: Tensor,
        timestep: float | Tensor,
        sample: Tensor,
        eta: float = 0.0,
        use_clipped_model_output: bool | None = None,
        generator: Any = None,
        return_dict: bool = True,
    ) -> SchedulerOutput | tuple[Tensor]:
        """The next input of the network, or the result, from the network's output at this one.

        Steps count themselves: `timestep` says where to begin, if nothing else did. `generator` is not needed.
        """
        if eta or use_clipped_model_output:
            raise ValueError(
                f"a solver adds no noise on its way and clips nothing; got eta = {eta} and use_clipped_model_output = "
                f"{use_clipped_model_output}, expected neither"
            )
        if model_output.shape != sample.shape:
            raise ValueError(
                f"the network's output has the shape {tuple(model_output.shape)}, expected {tuple(sample.shape)}, that "
                "of the sample; a predicted variance must be cut off"
            )
        if self._run is None and self._step_index is not None:
            raise ValueError("this scheduler was copied in the middle of a run; call set_timesteps and begin again")
        if self._run is None:
            self._run = self._begin(timestep, sample)
        run = self._run
        if run.finished:
            raise ValueError(f"all {self.num_inference_steps} steps are done; call set_timesteps to begin again")
        if not run.given_out(sample):
            raise ValueError(
                f"the latents were edited before step {self._step_index}: they are not those that the step before it "
                "returned. A solver computes from the first noise and all velocities, so that the edit (of a "
                "callback_on_step_end, or of an inpainting pipeline) would be lost; use the pipeline's own scheduler"
            )
        assert self._step_index is not None
        _check_whole(timestep, self.timesteps[self._step_index])
        self._step_index += 1
        previous = run.advance(model_output, sample.dtype)
        return SchedulerOutput(prev_sample=previous) if return_dict else (previous,)

    def _begin(self, timestep: float | Tensor, sample: Tensor) -> Stepper:
        """A run from this sample: with the learned table, or with one that begins at a later evaluation."""
        if self.num_inference_steps is None:
            raise ValueError("call set_timesteps(num_inference_steps) before step")
        solver = self.solvers[self.num_inference_steps]
        k = self._index_of(timestep) if self._begin_index is None else self._begin_index
        if not 0 <= k < solver.nfe:
            raise ValueError(f"got a start at evaluation {k}; expected one from 0 to {solver.nfe - 1}")
        self._check_shape(solver, sample)
        scale, self._noise_scale = self._noise_scale, None
        self._step_index = k
        if k == 0:
            table = solver.table
            _check_scale(scale, table.a[0].item())
        elif k in solver.starts:
            table = solver.starts[k]
        else:
            table = dpm_solver(self._meaning.schedule, rounded(solver.table.t[k:]))
            warnings.warn(
                f"the solver has no table that starts at evaluation {k} of {solver.nfe}; DPM-Solver++(2M) takes its "
                "place, on the learned times from there",
                stacklevel=3,
            )
        return Stepper.from_first_input(table, self._meaning, sample)

    def _index_of(self, timestep: float | Tensor) -> int:
        """The first evaluation at that time."""
        time = float(timestep)
        k = int((self.timesteps - time).abs().argmin())
        if abs(float(self.timesteps[k]) - time) > CAST * max(abs(time), 1):
            raise ValueError(f"timestep {time:g} is none of this scheduler's, which are {self.timesteps.tolist()}")
        return k

    def _check_shape(self, solver: Solver, sample: Tensor) -> None:
        """Other channels are refused, another size is a warning; packed latents have neither."""
        was, now = solver.model.get("shape"), list(sample.shape[1:])
        if was is None or len(was) != 3 or len(now) != 3 or was == now:
            return
        if was[0] != now[0]:
            raise _for_another("shape", was, now)
        words = in_words("shape", was, now)
        warnings.warn(f"the solver was made for a model with {words}; it may serve worse here", stacklevel=4)


def _check_whole(given: float | Tensor, own: Tensor) -> None:
    """Warn of a time that was cut to a whole number on its way to the network."""
    whole = not given.is_floating_point() if isinstance(given, Tensor) else isinstance(given, int)
    if whole and float(own) % 1:
        warnings.warn(
            f"got the timestep {int(given)}, but the solver's is {float(own):.6g}: the network was told a time that "
            "was cut to a whole number, and pictures are worse for it; pass the scheduler's timesteps on as they are",
            stacklevel=3,
        )


# Saved pipelines name this class by the package, so that importing `bespoke_solvers` is enough to load them.
BespokeScheduler.__module__ = "bespoke_solvers"


def _known_class(scheduler: Any) -> str | None:
    """The name of its class, or of the one in diffusers that this was made from."""
    names = [kind.__name__ for kind in type(scheduler).__mro__]
    known = (name for name in names if name.endswith("Scheduler") and hasattr(diffusers, name))
    return None if scheduler is None else next(known, names[0])


def _for_another(name: str, was: Any, now: Any, more: str = "") -> ValueError:
    words = in_words(name, was, now)
    return ValueError(f"the solver was made for a model with {words}; fit one for the model of this pipeline{more}")


def _check_scale(scale: float | None, a0: float) -> None:
    """Refuse noise that a pipeline has not scaled by a_0."""
    if abs((1.0 if scale is None else scale) - a0) > SCALE * abs(a0):
        did = "did not scale its noise" if scale is None else f"scaled its noise by {scale:g}, before set_timesteps"
        raise ValueError(
            f"the first input of this table is {a0:g} times the noise (init_noise_sigma), but the pipeline {did}; ask "
            "for init_noise_sigma after set_timesteps, each time, or take a solver that does not scale the noise: fit "
            "a model with scales_noise=False"
        )
