"""The Inception-v3 whose 2048 features FID and KID are measured on: TensorFlow's graph of 2015-12-05.

After Szegedy et al. 2015, "Rethinking the Inception Architecture for Computer Vision", as Heusel et al. 2017 use it.
The names of the layers are those of pytorch-fid and torch-fidelity, whose file of weights is read here. Torchvision's
network of that name is another one.
"""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from bespoke_solvers.precision import full_float32
from bespoke_solvers.velocity import default_device

FILE = "pt_inception-2015-12-05-6726825d.pth"
URL = f"https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/{FILE}"
SIZE = 299

Layer = tuple[int, tuple[str, ...]]
Pool = Callable[[Tensor], Tensor]


def _average(x: Tensor) -> Tensor:
    """The mean of 3 x 3 that leaves the padding out."""
    return functional.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)


def _largest(x: Tensor) -> Tensor:
    return functional.max_pool2d(x, 3, stride=1, padding=1)


def _halve(x: Tensor) -> Tensor:
    return functional.max_pool2d(x, 3, stride=2)


def _layers(*described: str) -> list[Layer]:
    """'64 3x3' is a convolution to 64 channels, '384 1x3 3x1' two to 384 each, side by side."""
    split = [text.split() for text in described]
    return [(int(channels), tuple(kernels)) for channels, *kernels in split]


def _block_5(pool: int) -> dict[str, list[Layer]]:
    return {
        "branch1x1": _layers("64 1x1"),
        "branch5x5": _layers("48 1x1", "64 5x5"),
        "branch3x3dbl": _layers("64 1x1", "96 3x3", "96 3x3"),
        "branch_pool": _layers(f"{pool} 1x1"),
    }


def _block_6(width: int) -> dict[str, list[Layer]]:
    return {
        "branch1x1": _layers("192 1x1"),
        "branch7x7": _layers(f"{width} 1x1", f"{width} 1x7", "192 7x1"),
        "branch7x7dbl": _layers(f"{width} 1x1", f"{width} 7x1", f"{width} 1x7", f"{width} 7x1", "192 1x7"),
        "branch_pool": _layers("192 1x1"),
    }


_BLOCK_7 = {
    "branch1x1": _layers("320 1x1"),
    "branch3x3": _layers("384 1x1", "384 1x3 3x1"),
    "branch3x3dbl": _layers("448 1x1", "384 3x3", "384 1x3 3x1"),
    "branch_pool": _layers("192 1x1"),
}

BLOCKS: dict[str, tuple[dict[str, list[Layer]], Pool]] = {
    "Mixed_5b": (_block_5(32), _average),
    "Mixed_5c": (_block_5(64), _average),
    "Mixed_5d": (_block_5(64), _average),
    "Mixed_6a": (
        {
            "branch3x3": _layers("384 3x3"),
            "branch3x3dbl": _layers("64 1x1", "96 3x3", "96 3x3"),
            "branch_pool": [],
        },
        _halve,
    ),
    "Mixed_6b": (_block_6(128), _average),
    "Mixed_6c": (_block_6(160), _average),
    "Mixed_6d": (_block_6(160), _average),
    "Mixed_6e": (_block_6(192), _average),
    "Mixed_7a": (
        {
            "branch3x3": _layers("192 1x1", "320 3x3"),
            "branch7x7x3": _layers("192 1x1", "192 1x7", "192 7x1", "192 3x3"),
            "branch_pool": [],
        },
        _halve,
    ),
    "Mixed_7b": (_BLOCK_7, _average),
    "Mixed_7c": (_BLOCK_7, _largest),
}


class _Norm(nn.Module):
    """A batch norm that never trains."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.running_mean: Tensor
        self.running_var: Tensor
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=1e-3)


class _Unit(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: str, stride: int = 1, padded: bool = True) -> None:
        super().__init__()
        height, width = map(int, kernel.split("x"))
        padding = (height // 2, width // 2) if padded else 0
        self.conv = nn.Conv2d(inputs, outputs, (height, width), stride, padding, bias=False)
        self.bn = _Norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x)))


class _Mixed(nn.Module):
    """Branches side by side: chains of units on x, the last one on what the pool makes of x.

    With a pool that halves the picture, so does the last unit of each branch.
    """

    def __init__(self, inputs: int, branches: dict[str, list[Layer]], pool: Pool) -> None:
        super().__init__()
        self.pool = pool
        self.chains: dict[str, list[list[str]]] = {}
        self.outputs = 0
        for branch, layers in branches.items():
            channels, self.chains[branch] = inputs, []
            for i, (outputs, kernels) in enumerate(layers, 1):
                halving = pool is _halve and i == len(layers)
                numbered = branch if len(layers) == 1 else f"{branch}_{i}"
                names = [numbered] if len(kernels) == 1 else [numbered + letter for letter in "ab"]
                for name, kernel in zip(names, kernels, strict=True):
                    self.add_module(name, _Unit(channels, outputs, kernel, 2 if halving else 1, padded=not halving))
                self.chains[branch].append(names)
                channels = outputs * len(kernels)
            self.outputs += channels

    def forward(self, x: Tensor) -> Tensor:
        parts = []
        for branch, chain in self.chains.items():
            y = self.pool(x) if branch == "branch_pool" else x
            for names in chain:
                y = torch.cat([self.get_submodule(name)(y) for name in names], 1)
            parts.append(y)
        return torch.cat(parts, 1)


class Inception(nn.Module):
    """Pictures to features. The classifier `fc` is there for its weights alone: it tells torchvision's file."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = _Unit(3, 32, "3x3", stride=2, padded=False)
        self.Conv2d_2a_3x3 = _Unit(32, 32, "3x3", padded=False)
        self.Conv2d_2b_3x3 = _Unit(32, 64, "3x3")
        self.Conv2d_3b_1x1 = _Unit(64, 80, "1x1")
        self.Conv2d_4a_3x3 = _Unit(80, 192, "3x3", padded=False)
        channels = 192
        for name, (branches, pool) in BLOCKS.items():
            block = _Mixed(channels, branches, pool)
            self.add_module(name, block)
            channels = block.outputs
        self.fc = nn.Linear(channels, 1008)

    @torch.no_grad()
    def forward(self, pictures: Tensor) -> Float[Tensor, "b 2048"]:
        """The features of uint8 pictures (b, 3, h, w), from any device, in full float32 on the network's."""
        if pictures.dtype != torch.uint8 or pictures.ndim != 4 or pictures.shape[1] != 3:
            raise ValueError(
                f"got {pictures.dtype} {tuple(pictures.shape)}; Inception takes torch.uint8 pictures (b, 3, h, w)"
            )
        device = self.fc.weight.device
        x = (resized(pictures.to(device).float()) - 128) / 128
        with full_float32(device):
            x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
            x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(_halve(x)))
            x = _halve(x)
            for name in BLOCKS:
                x = self.get_submodule(name)(x)
            return x.mean((2, 3))


def resized(x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c 299 299"]:
    """TensorFlow 1's bilinear resize: pixel i is read at i * old size / new size, without half-pixel centres."""
    for dim in (3, 2):
        size = x.shape[dim]
        at = torch.arange(SIZE, dtype=x.dtype, device=x.device) * (torch.tensor(size, dtype=x.dtype) / SIZE)
        low = at.long()
        left, right = x.index_select(dim, low), x.index_select(dim, (low + 1).clamp(max=size - 1))
        x = left + (right - left) * (at - low).reshape(-1, *(1,) * (3 - dim))
    return x


def load(weights: str | os.PathLike[str] | None = None, device: str | torch.device | None = None) -> Inception:
    """The network with its weights: from a file, or else from torch.hub's cache, or else from the release on GitHub.

    It is on the GPU where there is one, unless a device is given.
    """
    with torch.device("meta"):
        network = Inception()
    state = _read(Path(weights) if weights is not None else _cached(), network)
    network.load_state_dict(state, assign=True)
    return network.to(device or default_device()).requires_grad_(False)


def _cached() -> Path:
    """The file in torch.hub's cache, downloaded where it is not there."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / FILE
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(URL, str(path), hash_prefix=FILE[-12:-4])
        except (OSError, RuntimeError) as error:
            raise OSError(
                f"the weights of Inception could not be downloaded ({error}); fetch {URL} elsewhere and put it at "
                f"{path}, or give its place: --inception, in Python `weights`"
            ) from error
    return path


def _read(path: Path, network: Inception) -> dict[str, Tensor]:
    """The weights in a file; refuses any other file by its name."""
    if not path.is_file():
        raise ValueError(f"there is no file {path} of Inception's weights; fetch {URL}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:  # a cut file may be any of these
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} is damaged or no file of weights ({reason}); fetch {URL}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, expected a dict of weights; fetch {URL}")
    expected = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    state = {name: value for name, value in content.items() if not str(name).endswith("num_batches_tracked")}
    got = {name: tuple(value.shape) if isinstance(value, Tensor) else None for name, value in state.items()}
    wrong = [name for name in expected | got if got.get(name) != expected.get(name)]
    if wrong:
        shapes = [f"{name} is {got.get(name, 'missing')}, expected {expected.get(name, 'none')}" for name in wrong[:3]]
        raise ValueError(
            f"{path} is not the Inception of 2015-12-05 ({len(wrong)} of its {len(got)} entries are others: "
            f"{'; '.join(shapes)}); fetch {URL}"
        )
    return {name: value.float() for name, value in state.items()}
