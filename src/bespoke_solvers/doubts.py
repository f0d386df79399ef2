"""Whether a velocity can be what its model says, by one evaluation at pure noise.

There x tells nothing of the data: the noise that a network predicts is x's own, and the data that it predicts does not
depend on it. A time that runs backwards, a wrong sign on the straight path or another prediction than the network's
shows in these slopes. A wrong schedule, or a network's time that is off, does not.
"""

import math

import torch
from torch import Tensor

from bespoke_solvers.velocity import Model, ends

SAMPLES = 16
FROM_NOISE = ("epsilon", "score")  # predictions from which x1_hat is a difference divided by a small alpha
LOW_SNR = 0.01  # alpha / sigma up to which x1_hat does not depend on x0
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
        f"network is trained, look whether t = 0 is noise and t = 1 is data, whether the velocity is dx/dt and not its "
        f"negative, and whether it predicts {model.prediction!r}"
    )
