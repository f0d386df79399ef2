"""Whether a model, its samples and the noise can be what they are said to be.

A velocity is looked at by one evaluation at pure noise. There x tells nothing of the data: the noise that a network
predicts is x's own, and the data that it predicts does not depend on it. A time that runs backwards, a wrong sign on
the straight path or another prediction than the network's shows in these slopes; a network's time that is off may, a
wrong schedule does not.
"""

import math

import torch
from torch import Tensor

from bespoke_solvers.metrics import norm
from bespoke_solvers.velocity import Model, ends

SAMPLES = 16
FROM_NOISE = ("epsilon", "score")  # predictions from which x1_hat is a difference divided by a small alpha
LOW_SNR = 0.01  # alpha / sigma up to which x1_hat does not depend on x0
ENOUGH, SPREAD = 16, 3.0  # numbers by which a standard deviation is known, and how far from 1 that of noise may be
LARGE = 1e3  # root mean square of a sample; pictures in bytes have less
FAR = 0.7  # from the slope that is expected; a wrong sign or prediction is off by 1 or 2


@torch.no_grad()
def doubt(model: Model) -> str | None:
    """What speaks against a model, in one sentence that says what to look at."""
    x0, condition = model.noise(range(SAMPLES))
    t, x = torch.full((), model.t_lo, dtype=x0.dtype, device=x0.device), model.start_scale * x0
    predicted, path = ends(model.schedule, t, x, model.bind(condition)(t, x)), model.schedule(t)
    if path.alpha > path.sigma:
        return (
            f"the path begins, at t = {model.t_lo:g}, with more data than noise (alpha {path.alpha:.2f}, sigma "
            f"{path.sigma:.2f}); look at the schedule (alphas_cumprod is the product of all alphas up to a step, and "
            "ends near 0) and at the domain"
        )

    def slope(y: Tensor) -> float:
        return ((y * x0).sum() / (x0 * x0).sum()).item()

    if model.prediction in FROM_NOISE:
        found, expected, what = slope(predicted.x0), 1, "predicts noise that goes with the true noise by a factor of"
    elif path.alpha <= LOW_SNR * path.sigma:
        found, expected, what = slope(predicted.x1), 0, "predicts data that depends on the noise with a slope of"
    else:
        return None
    if math.isnan(found) or abs(found - expected) < FAR:  # what is not finite is told by the exact paths
        return None
    return (
        f"at pure noise, t = {model.t_lo:g}, the model {what} {found:.2f}, where about {expected} is expected: if the "
        f"network is trained, look whether it predicts {model.prediction!r}, whether it is told the time that it was "
        "trained with (network_time), whether t = 0 is noise and t = 1 is data, and whether a velocity of one's own is "
        "dx/dt and not its negative"
    )


def far_from_data(x1: Tensor) -> str | None:
    """What speaks against the exact samples of a model, in one sentence: that they are larger than any data."""
    size = norm(x1).mean().item()
    if size < LARGE:
        return None
    return (
        f"the exact samples have the size {size:.2g} (root mean square), where data has about 1, so that solvers for "
        "them are worthless: look at the model's prediction, schedule and network_time"
    )


def strange_noise(x0: Tensor) -> str | None:
    """What speaks against noise to begin with, in one sentence: that it is scaled."""
    spread = x0.float().std().item() if x0.numel() >= ENOUGH else 1.0
    if 1 / SPREAD < spread < SPREAD:
        return None
    return (
        f"the noise x0 has a standard deviation of {spread:.3g}; expected N(0, I), which a solver scales by itself "
        "(to a sigma_max, say)"
    )
