"""FID and KID on features that are given: closed forms, torchmetrics as the oracle, files, and samples of models."""

import dataclasses
import math
import time

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.kid import KernelInceptionDistance

from bespoke_solvers import fid as module
from bespoke_solvers import toy
from bespoke_solvers.fid import Statistics, fid, kid, load, samples, statistics
from bespoke_solvers.generic import baseline
from bespoke_solvers.pictures import to_uint8
from bespoke_solvers.table import sample
from bespoke_solvers.velocity import noise_seeds

D = 24
EULER = baseline("euler", 3)


class Projected(nn.Module):
    """D features of pictures of 4 x 4, some of them curved."""

    num_features = D

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(48, D, generator=torch.Generator().manual_seed(5)) / 7)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return ((pictures.flatten(1).float() - 128) / 64 @ self.weight).tanh() + 0.3


FEATURES = Projected()


def pictures(count: int, seed: int, brightness: int = 256) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(brightness, (count, 3, 4, 4), generator=generator, dtype=torch.uint8)


def of(features: torch.Tensor) -> Statistics:
    """Statistics of features that are there already, computed all at once."""
    x = features.double()
    return Statistics(x.mean(0), torch.cov(x.T), torch.empty(0, x.shape[1]), len(x))


@pytest.fixture
def two():
    return pictures(300, 1), pictures(400, 2, brightness=220)


@pytest.mark.parametrize("count", [400, 12], ids=["full rank", "fewer pictures than features"])
def test_fid_is_that_of_torchmetrics(two, count):
    a, b = (x[:count] for x in two)
    oracle = FrechetInceptionDistance(FEATURES)
    oracle.update(a, real=True)
    oracle.update(b, real=False)
    got = fid(statistics([a], FEATURES), statistics([b], FEATURES))
    assert got > 0.05
    assert got == pytest.approx(oracle.compute().item(), rel=1e-5)


@pytest.mark.filterwarnings("ignore:Metric `Kernel Inception Distance` will save all:UserWarning")
def test_kid_is_that_of_torchmetrics(two):
    oracle = KernelInceptionDistance(FEATURES, subsets=7, subset_size=150)
    for x, real in zip(two, (True, False), strict=True):
        oracle.update(x, real=real)
    torch.manual_seed(3)
    mean, std = (value.item() for value in oracle.compute())
    got = kid(*(statistics([x], FEATURES, keep=1000).features for x in two), subsets=7, subset_size=150, seed=3)
    assert got.std > 0
    assert got.mean == pytest.approx(mean, rel=1e-4)
    assert got.std == pytest.approx(std, rel=1e-3)


def test_kid_is_unbiased():
    """Of two halves of one distribution it is 0 within its error, and not for another distribution."""
    a, b = (FEATURES(pictures(600, seed)) for seed in (1, 2))
    error = 4 * torch.tensor([kid(a, b, 40, 60, seed).std for seed in range(3)]).mean().item() / math.sqrt(10)
    assert abs(kid(a, b, 40, 60).mean) < error
    assert kid(a, FEATURES(pictures(600, 3, 200)), 40, 60).mean > error


def test_the_distance_of_gaussians_in_closed_form():
    """With covariances that commute: the sum over axes of (m - m')^2 + (s - s')^2, in a frame that is turned."""
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64)).Q
    m, n, s, z = torch.rand(4, D, generator=generator, dtype=torch.float64)
    s[:5], z[3:9] = 0, 0
    a, b = (
        Statistics(turn @ mean, turn @ torch.diag(s**2) @ turn.T, torch.empty(0, D), 9) for mean, s in ((m, s), (n, z))
    )
    expected = ((m - n) ** 2 + (s - z) ** 2).sum().item()
    assert fid(a, b) == pytest.approx(expected, rel=1e-12)
    assert fid(b, a) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("count", [1000, 10])
def test_a_set_is_at_no_distance_from_itself(count):
    """To the last digits, also with covariances that are singular or span many scales."""
    x = torch.randn(count, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    same = of(x * torch.logspace(2, -3, D))
    assert abs(fid(same, same)) < 1e-12 * same.covariance.trace()


@pytest.mark.parametrize("sizes", [[300], [100] * 3, [1, 7, 200, 92], [299, 1]])
def test_streaming_equals_all_at_once(two, sizes):
    shifted = lambda x: FEATURES(x) + 1000  # noqa: E731, a mean far from 0, where sums of squares cancel
    got = statistics(two[0].split(sizes), lambda x: shifted(x.cpu()), keep=50)
    expected = of(shifted(two[0]))
    torch.testing.assert_close(got.mean, expected.mean, rtol=1e-13, atol=0)
    torch.testing.assert_close(got.covariance, expected.covariance, rtol=0, atol=1e-13)
    assert got.count == 300
    once = statistics([two[0]], shifted, keep=50)
    assert torch.equal(got.features, once.features), "the same choice, however the pictures come"


def test_kept_features_are_a_random_choice_of_the_whole():
    numbers = torch.arange(1000.0)[:, None]
    kept = statistics(numbers.split(64), lambda x: x, keep=200).features.flatten()
    assert kept.unique().numel() == 200
    assert abs(kept.mean() - 500) < 70, "3.4 standard deviations; of the first ones it were 100"
    every = statistics(numbers.split(64), lambda x: x, keep=5000).features
    assert torch.equal(every, numbers)
    assert statistics(numbers.split(64), lambda x: x).features.shape == (0, 1)


def test_a_file_gives_back_what_was_saved(two, tmp_path):
    saved = statistics([two[0]], FEATURES, keep=20)
    saved.save(tmp_path / "a.npz")
    again = load(tmp_path / "a.npz")
    for name in ("mean", "covariance", "features"):
        assert torch.equal(getattr(again, name), getattr(saved, name))
    assert again.count == 300
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_files_of_others_are_read(two, tmp_path):
    own = statistics([two[0]], FEATURES)
    np.savez(tmp_path / "theirs.npz", mu=own.mean.numpy(), sigma=own.covariance.numpy().astype(np.float32))
    theirs = load(tmp_path / "theirs.npz")
    assert theirs.covariance.dtype == torch.float64
    assert theirs.count == 0
    assert abs(fid(own, theirs)) < 1e-4


def test_damaged_and_foreign_files_are_refused_by_name(two, tmp_path):
    path = tmp_path / "s.npz"
    with pytest.raises(ValueError, match=r"there is no file .*s.npz"):
        load(path)
    statistics([two[0]], FEATURES).save(path)
    whole = path.read_bytes()
    middle = len(whole) // 2
    for damaged in (whole[:middle], whole[:middle] + b"\x55" * 8 + whole[middle + 8 :], b"", b"text"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"s.npz is damaged or no file of statistics"):
            load(path)
    np.savez(path, mean=np.zeros(3))
    with pytest.raises(ValueError, match=r"s.npz is no file of statistics: it has \['mean'\], but no 'mu'"):
        load(path)
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ValueError, match=r"s.npz is damaged or no file of statistics"):
        load(path)
    sigmas = (
        (np.eye(4), r"covariance has the shape \(4, 4\)"),
        (np.full((3, 3), np.nan), "not finite"),
        (np.triu(np.ones((3, 3))), "is not symmetric, or has a variance below 0"),
        (-np.eye(3), "is not symmetric, or has a variance below 0"),
    )
    for sigma, said in sigmas:
        np.savez(path, mu=np.zeros(3), sigma=sigma)
        with pytest.raises(ValueError, match=rf"s.npz .*{said}"):
            load(path)


def test_a_covariance_has_no_negative_eigenvalues_but_by_rounding(two):
    found = statistics([two[0]], FEATURES)
    half = dataclasses.replace(found, covariance=found.covariance.half().double())
    assert fid(half, found) == pytest.approx(0, abs=1e-3 * found.covariance.trace().item())
    mixed = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    broken = Statistics(torch.zeros(2, dtype=torch.float64), mixed, torch.zeros(0, 2), 2)
    with pytest.raises(ValueError, match="has the eigenvalue -1, and 3 as the largest; expected none below 0"):
        fid(broken, broken)


def test_useless_features_are_refused(two):
    with pytest.raises(ValueError, match=r"of 300 pictures are \(1, 300\); expected 300 finite"):
        statistics([two[0]], lambda x: torch.zeros(1, len(x)))
    with pytest.raises(ValueError, match="numbers that are not finite; expected 2 finite"):
        statistics([two[0]], lambda x: torch.full((len(x), 2), torch.nan))
    with pytest.raises(ValueError, match="got 1 pictures; a covariance takes two"):
        statistics([two[0][:1]], FEATURES)
    with pytest.raises(ValueError, match="got 0 pictures"):
        statistics([], FEATURES)
    with pytest.raises(ValueError, match="the sets have 24 and 23 features"):
        fid(of(FEATURES(two[0])), of(FEATURES(two[1])[:, 1:]))
    with pytest.raises(ValueError, match=r"subset_size is 1000, expected 2 to 300.*keep more"):
        kid(FEATURES(two[0]), FEATURES(two[1]))


def test_inception_is_the_default(two, monkeypatch):
    monkeypatch.setattr(module.inception, "load", lambda: FEATURES)
    assert torch.equal(statistics([two[0]]).mean, statistics([two[0]], FEATURES).mean)


@pytest.fixture(scope="module")
def digits():
    return toy.digits(centres=20)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_samples_are_those_of_the_reporting_noise(digits, devices):
    """The same pictures in the same order, whatever the number of devices; nobody draws while features are made."""
    busy = []

    def device(delay):
        def velocity(t, x):
            busy.append(1)
            time.sleep(delay)
            u = digits.velocity(t, x)
            busy.pop()
            return u

        return dataclasses.replace(digits, velocity=velocity)

    models = [device(0.01 * i) for i in range(devices)]
    got = []
    for batch in samples(EULER, models, 22, batch_size=5, seed=4):
        assert not busy
        got.append(batch)
    assert [len(batch) for batch in got] == [5, 5, 5, 5, 2]
    x0 = digits.noise(noise_seeds("report", 4, 0, 22)).x0
    expected = to_uint8(sample(EULER, digits.bind(), x0)).permute(0, 3, 1, 2)
    difference = (torch.cat(got).int() - expected.int()).abs()
    assert difference.max() <= 1, "but for rounding in another batch"


def test_samples_of_another_set_are_others(digits):
    report, fit = (torch.cat([*samples(EULER, [digits], 8, noise_set=name)]) for name in ("report", "fit"))
    assert not torch.equal(report, fit)


def test_every_device_works(digits):
    counts = [0, 0]

    def counted(i):
        def velocity(t, x):
            counts[i] += len(x)
            return digits.velocity(t, x)

        return dataclasses.replace(digits, velocity=velocity)

    models = [counted(0), counted(1)]
    stream = samples(EULER, models, 16, batch_size=4)
    next(stream)
    checks = list(counts)
    list(stream)
    assert [after - before for after, before in zip(counts, checks, strict=True)] == [4 * EULER.nfe] * 2


def test_unfit_models_are_refused(digits):
    other = dataclasses.replace(digits, velocity=lambda t, x: 1.01 * digits.velocity(t, x))
    with pytest.raises(ValueError, match=r"models\[1\] is another model than models\[0\]: other weights"):
        next(samples(EULER, [digits, other], 8))
    with pytest.raises(ValueError, match=r"\(2,\) are no pictures"):
        next(samples(EULER, [toy.checkerboard()], 8))
    with pytest.raises(ValueError, match="got no model"):
        next(samples(EULER, [], 8))
    broken = dataclasses.replace(digits, velocity=lambda t, x: x * torch.nan)
    with pytest.raises(ValueError, match="samples from 0 on are not finite"):
        next(samples(EULER, [broken], 8))
    undecodable = dataclasses.replace(digits, decode=lambda x: x.half() * 1e6 * 0)
    with pytest.raises(ValueError, match=r"samples from 0 on are not finite; .* its decoder"):
        next(samples(EULER, [undecodable], 8))


def test_more_evaluations_come_closer_to_the_model(digits):
    """The whole way: samples, features, FID; all with random features of the digits."""
    weight = torch.randn(192, 16, generator=torch.Generator().manual_seed(0)) / 14

    def measured(nfe, noise_set):
        stream = samples(baseline("midpoint", nfe), [digits], 300, noise_set=noise_set)
        return statistics(stream, lambda x: x.flatten(1).float() / 128 @ weight)

    exact = measured(40, "fit")
    coarse, fine = (fid(measured(nfe, "report"), exact) for nfe in (2, 20))
    assert fine < coarse / 3
