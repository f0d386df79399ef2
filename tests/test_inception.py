"""Inception without its weights: the names, the shapes, the resize, and which files are refused."""

import math
import re
from urllib.error import URLError

import pytest
import torch
from torch.nn import functional

from bespoke_solvers import inception

UNITS = {
    "Conv2d_1a_3x3": "",
    "Conv2d_2a_3x3": "",
    "Conv2d_2b_3x3": "",
    "Conv2d_3b_1x1": "",
    "Conv2d_4a_3x3": "",
    **dict.fromkeys(
        ["Mixed_5b", "Mixed_5c", "Mixed_5d"],
        "branch1x1 branch5x5_1 branch5x5_2 branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3 branch_pool",
    ),
    "Mixed_6a": "branch3x3 branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3",
    **dict.fromkeys(
        ["Mixed_6b", "Mixed_6c", "Mixed_6d", "Mixed_6e"],
        "branch1x1 branch7x7_1 branch7x7_2 branch7x7_3 branch7x7dbl_1 branch7x7dbl_2 branch7x7dbl_3 branch7x7dbl_4 "
        "branch7x7dbl_5 branch_pool",
    ),
    "Mixed_7a": "branch3x3_1 branch3x3_2 branch7x7x3_1 branch7x7x3_2 branch7x7x3_3 branch7x7x3_4",
    **dict.fromkeys(
        ["Mixed_7b", "Mixed_7c"],
        "branch1x1 branch3x3_1 branch3x3_2a branch3x3_2b branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3a "
        "branch3x3dbl_3b branch_pool",
    ),
}
LEAVES = ("conv.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var")
SHAPES = {
    "Conv2d_1a_3x3.conv.weight": (32, 3, 3, 3),
    "Mixed_5b.branch_pool.conv.weight": (32, 192, 1, 1),
    "Mixed_5d.branch5x5_2.conv.weight": (64, 48, 5, 5),
    "Mixed_6a.branch3x3.conv.weight": (384, 288, 3, 3),
    "Mixed_6c.branch7x7dbl_2.conv.weight": (160, 160, 7, 1),
    "Mixed_6e.branch7x7_2.conv.weight": (192, 192, 1, 7),
    "Mixed_7a.branch7x7x3_4.conv.weight": (192, 192, 3, 3),
    "Mixed_7b.branch1x1.conv.weight": (320, 1280, 1, 1),
    "Mixed_7c.branch3x3dbl_3b.conv.weight": (384, 384, 3, 1),
    "fc.weight": (1008, 2048),
}


@pytest.fixture(scope="module")
def weights():
    """Random ones, of a size that keeps the signal alive through the depth."""
    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in inception.Inception().state_dict().items()}
    state = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) > 1:
            state[name] = noise * math.sqrt(2 / math.prod(shape[1:]))
        else:
            around_one = name.endswith(("bn.weight", "running_var"))
            state[name] = 1 + 0.1 * noise.abs() if around_one else 0.1 * noise
    return state


@pytest.fixture(scope="module")
def file(weights, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "inception.pth"
    torch.save(weights, path)
    return path


@pytest.fixture(scope="module")
def network(file):
    return inception.load(file)


def pictures(b: int, h: int, w: int) -> torch.Tensor:
    return torch.randint(256, (b, 3, h, w), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def test_the_names_are_those_of_the_usual_file(weights):
    units = [f"{layer}.{unit}".rstrip(".") for layer, several in UNITS.items() for unit in several.split() or [""]]
    assert len(units) == 94
    assert set(weights) == {f"{unit}.{leaf}" for unit in units for leaf in LEAVES} | {"fc.weight", "fc.bias"}
    assert {name: tuple(weights[name].shape) for name in SHAPES} == SHAPES
    assert sum(value.numel() for name, value in weights.items() if "conv" in name) == 21_751_136


def test_the_size_of_the_picture_after_each_layer_is_that_of_the_graph(network):
    seen = {}
    hooks = [
        layer.register_forward_hook(lambda _, __, y, name=name: seen.update({name: tuple(y.shape[1:])}))
        for name, layer in network.named_children()
    ]
    network(pictures(1, 8, 8))
    for hook in hooks:
        hook.remove()
    sizes = [149, 147, 147, 73, 71, 35, 35, 35, 17, 17, 17, 17, 17, 8, 8, 8]
    channels = [32, 32, 64, 80, 192, 256, 288, 288, 768, 768, 768, 768, 768, 1280, 2048, 2048]
    assert list(seen.values()) == [(c, size, size) for c, size in zip(channels, sizes, strict=True)]


def test_features_depend_neither_on_the_batch_nor_on_the_layout(network):
    x = pictures(3, 33, 50)
    features = network(x)
    assert features.shape == (3, 2048)
    assert features.dtype == torch.float32
    scale = features.std(0).mean()
    assert scale > 0.01, "pictures are told apart"
    layout = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert not layout.is_contiguous()
    torch.testing.assert_close(network(layout), features, rtol=1e-4, atol=1e-4 * scale.item())
    torch.testing.assert_close(network(x[2:]), features[2:], rtol=1e-4, atol=1e-4 * scale.item())


def test_nothing_trains(network):
    x = pictures(2, 16, 16)
    features, before = network(x), {name: value.clone() for name, value in network.state_dict().items()}
    assert torch.equal(network.train()(x), features)
    assert not features.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_the_pools_of_the_blocks():
    """With the branch of the pool as an identity, a block passes its pool on: the mean without padding, or the max."""
    x = torch.rand(1, 1280, 8, 8, generator=torch.Generator().manual_seed(2))
    weight = torch.eye(1280)[:192].reshape(192, 1280, 1, 1)
    for name, kind in {"Mixed_7b": "mean", "Mixed_7c": "max"}.items():
        block = inception._Mixed(1280, *inception.BLOCKS[name])
        block.branch_pool.conv.weight.data = weight
        got = block(x)[0, -192:].detach() * math.sqrt(1 + 1e-3)
        corner, side, inner = x[0, :192, :2, :2], x[0, :192, :2, 2:5], x[0, :192, 2:5, 2:5]
        for (row, column), window in {(0, 0): corner, (0, 3): side, (3, 3): inner}.items():
            expected = window.flatten(1).mean(1) if kind == "mean" else window.flatten(1).amax(1)
            torch.testing.assert_close(got[:, row, column], expected)
    assert all(inception.BLOCKS[name][1] is inception.BLOCKS["Mixed_7b"][1] for name in ("Mixed_5b", "Mixed_6e"))


def tensorflow_1(picture: list[list[float]], size: int) -> list[list[float]]:
    """Bilinear interpolation pixel by pixel, as ResizeBilinear of TensorFlow 1 is defined without align_corners."""
    height, width = len(picture), len(picture[0])
    result = []
    for i in range(size):
        y = i * height / size
        top, down = int(y), min(int(y) + 1, height - 1)
        row = []
        for j in range(size):
            x = j * width / size
            left, right = int(x), min(int(x) + 1, width - 1)
            p, q = y - top, x - left
            upper = (1 - q) * picture[top][left] + q * picture[top][right]
            lower = (1 - q) * picture[down][left] + q * picture[down][right]
            row.append((1 - p) * upper + p * lower)
        result.append(row)
    return result


@pytest.mark.parametrize("shape", [(32, 32), (7, 45), (299, 299), (310, 400), (1, 3)])
def test_the_resize_is_tensorflows(shape):
    x = pictures(1, *shape).float()
    expected = torch.tensor([tensorflow_1(channel.tolist(), 299) for channel in x[0]])
    got = inception.resized(x)[0]
    assert (got - expected).abs().max() < 0.02, "of 255, at steep edges"
    torch.testing.assert_close(got.mean(), expected.mean(), rtol=1e-5, atol=0)
    if shape == (32, 32):
        usual = functional.interpolate(x, (299, 299), mode="bilinear")[0]
        assert (usual - expected).abs().max() > 10, "half-pixel centres are something else"


def test_pictures_are_scaled_after_the_resize(network):
    """128 is 0 for the network, and what the first layer gets reaches from -1 to almost 1."""
    seen = []
    hook = network.Conv2d_1a_3x3.register_forward_pre_hook(lambda _, x: seen.append(x[0]))
    network(torch.tensor([0, 128, 255], dtype=torch.uint8).reshape(1, 3, 1, 1))
    hook.remove()
    assert seen[0].amin((2, 3)).tolist() == seen[0].amax((2, 3)).tolist() == [[-1.0, 0.0, 127 / 128]]


@pytest.mark.parametrize("wrong", [torch.zeros(2, 3, 8, 8), pictures(2, 8, 8)[0], pictures(2, 8, 8)[:, :1]])
def test_other_pictures_are_refused(network, wrong):
    with pytest.raises(ValueError, match=re.escape(f"got {wrong.dtype} {tuple(wrong.shape)}; Inception takes")):
        network(wrong)


def test_counters_of_batches_in_the_file_do_not_matter(weights, tmp_path):
    torch.save(weights | {"Conv2d_1a_3x3.bn.num_batches_tracked": torch.tensor(0)}, tmp_path / "w.pth")
    assert torch.equal(inception.load(tmp_path / "w.pth").fc.weight, weights["fc.weight"])


def test_other_files_are_refused_by_name(weights, file, tmp_path):
    path = tmp_path / "other.pth"
    with pytest.raises(ValueError, match=r"there is no file .*other.pth .*fetch https"):
        inception.load(path)
    path.write_bytes(b"no weights at all")
    with pytest.raises(ValueError, match=r"other.pth is damaged or no file of weights .*fetch https"):
        inception.load(path)
    for kept in (5_000, 20_000, 1_000_000):
        path.write_bytes(file.read_bytes()[:kept])
        with pytest.raises(ValueError, match=r"other.pth is damaged or no file of weights"):
            inception.load(path)
    torch.save(list(weights.values())[:2], path)
    with pytest.raises(ValueError, match=r"other.pth holds a list, expected a dict"):
        inception.load(path)
    torch.save({name: value for name, value in weights.items() if name != "Mixed_7c.branch1x1.bn.bias"}, path)
    with pytest.raises(ValueError, match=r"other.pth is not the Inception .*branch1x1.bn.bias is missing, expected"):
        inception.load(path)
    torch.save(weights | {"fc.weight": torch.zeros(1000, 2048)}, path)
    with pytest.raises(ValueError, match=r"fc.weight is \(1000, 2048\), expected \(1008, 2048\)"):
        inception.load(path)
    torch.save(weights | {"AuxLogits.fc.bias": torch.zeros(1000)}, path)
    with pytest.raises(ValueError, match=r"AuxLogits.fc.bias is \(1000,\), expected none"):
        inception.load(path)


def test_the_cache_is_used_and_a_failed_download_says_what_to_do(weights, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))

    def no_network(url, *_, **__):
        raise URLError("no route to host")

    monkeypatch.setattr(torch.hub, "download_url_to_file", no_network)
    cached = tmp_path / "checkpoints" / inception.FILE
    with pytest.raises(OSError, match=rf"no route to host.*fetch {inception.URL} .* put it at {cached}"):
        inception.load()
    torch.save(weights, cached)
    assert torch.equal(inception.load().fc.weight, weights["fc.weight"])
    cached.unlink()

    def download(url, path, hash_prefix):
        assert (url, hash_prefix) == (inception.URL, "6726825d")
        torch.save(weights, path)

    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    assert torch.equal(inception.load().fc.weight, weights["fc.weight"])
