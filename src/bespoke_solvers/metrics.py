"""How far two batches of samples are apart (paper, eq. 6)."""

import torch
from jaxtyping import Float
from torch import Tensor


def mse(x: Float[Tensor, "b *shape"], y: Float[Tensor, "b *shape"]) -> Float[Tensor, " b"]:
    """Each sample's mean square difference."""
    return (x - y).square().flatten(1).mean(1)


def norm(x: Float[Tensor, "b *shape"]) -> Float[Tensor, " b"]:
    """Each sample's root mean square ||x||; its gradient at 0 is 0, not NaN."""
    square = x.square().flatten(1).mean(1)
    return square.clamp(min=torch.finfo(x.dtype).tiny).sqrt()


def rmse(x: Float[Tensor, "b *shape"], y: Float[Tensor, "b *shape"]) -> float:
    """The mean over samples of ||x - y|| (eq. 6)."""
    return mse(x, y).sqrt().mean().item()


def decimals(error: float) -> str:
    """An RMSE to be read: four decimals, or two digits where these would be zeros, or ten thousands."""
    return f"{error:.4f}" if 5e-4 <= error < 1e3 or error == 0 else f"{error:.1e}"


def psnr(x: Float[Tensor, "b *shape"], y: Float[Tensor, "b *shape"]) -> float:
    """The mean over samples of 10 log10(4 / MSE): decibels for pictures in [-1, 1]; finite also where x equals y."""
    floored = mse(x, y).cpu().double().clamp(min=torch.finfo(torch.float32).tiny)
    return (10 * (4 / floored).log10()).mean().item()
