"""What a training is: a configuration, the pictures, and when it ends."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from bespoke_solvers import model_folder
from bespoke_solvers.data import Pictures
from bespoke_solvers.pretrain_configs import Config


@dataclass(frozen=True)
class Plan:
    """What is trained on what, until `steps` steps are done or `minutes` have passed, resumed runs included.

    start: a network to go on from (`model_folder.start`), rather than new weights.
    """

    config: Config
    data: Pictures
    steps: int | None = None
    minutes: float | None = None
    seed: int = 0
    start: model_folder.Start | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise ValueError(f"give either steps or minutes, got steps = {self.steps} and minutes = {self.minutes}")
        if not 0 < (limit := self.steps or self.minutes or 0) < math.inf:
            raise ValueError(f"steps or minutes must be positive and finite, got {limit}")
        if not 0 < self.config.learning_rate < math.inf:
            raise ValueError(f"the learning rate must be positive and finite, got {self.config.learning_rate:g}")
        size = self.config.size
        if self.shape not in ((1, size, size), (3, size, size)):
            raise ValueError(
                f"{self.config.name} is for pictures of 1 or 3 colours x {size} x {size}, but {self.data.name} has "
                f"{' x '.join(map(str, self.shape))}; choose another configuration, or make the data at that size"
            )
        if self.start:
            self.start.check(self.config.name, self.classes, self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one picture."""
        return tuple(self.data.pixels.shape[1:])

    @property
    def classes(self) -> list[str]:
        """Those that the network knows: none where data or configuration have no labels."""
        return [] if self.data.labels is None or self.config.label_dropout is None else self.data.classes

    @property
    def flip(self) -> bool:
        """Whether half of the pictures are mirrored: where the configuration does not say, all but grey ones."""
        return self.shape[0] > 1 if self.config.flip is None else self.config.flip

    @property
    def settings(self) -> dict[str, Any]:
        """What a checkpoint must agree with; the limit may change."""
        data = {"data": self.data.name, "pictures": (len(self.data), *self.data.digests), "shape": self.shape}
        config = {name: value for name, value in dataclasses.asdict(self.config).items() if name != "name"}
        own = {"flip": self.flip, "seed": self.seed, "start": self.start and self.start.digest}
        return {"config": self.config.name, **data, "classes": self.classes, **config, **own}

    def progress(self, steps: int, seconds: float) -> float:
        """The part of the limit that is used up."""
        return steps / self.steps if self.steps is not None else seconds / (60 * (self.minutes or 0))
