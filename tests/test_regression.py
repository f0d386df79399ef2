import dataclasses
import tempfile
from pathlib import Path

import pytest
import torch

from bespoke_solvers import regression, toy
from bespoke_solvers.bank import Bank
from bespoke_solvers.evaluation import held_out
from bespoke_solvers.families import NonStationary
from bespoke_solvers.generic import baseline
from bespoke_solvers.grids import WARPS, warp
from bespoke_solvers.reference import Paths, solve
from bespoke_solvers.regression import PASSES, closed_form, errors, fit_rows, log_mean, on_disk, sample_weights, scratch
from bespoke_solvers.schedules import EDM, CondOT, Cosine
from bespoke_solvers.screening import screen
from bespoke_solvers.stages import TRIED, ClosedForm
from bespoke_solvers.table import sample, states
from bespoke_solvers.velocity import Counter, Ends, Model, Noise, map_condition
from problems import CENTRES, F64, STD, mixture, model_of, ones


def exactly(model: Model, count: int = 16, first: int = 0, tolerance: float = 1e-9) -> Paths:
    return solve(model, model.noise(range(first, first + count)), rtol=tolerance, atol=tolerance)


def part(paths: Paths, rows: slice) -> Paths:
    """Some of the paths of a batch."""
    noise = Noise(paths.noise.x0[rows], map_condition(lambda c: c[rows], paths.noise.condition))
    x, dx, middle = (value[:, rows] for value in (paths.x, paths.dx, paths.middle))
    ends = Ends(paths.ends.x0[rows], paths.ends.x1[rows])
    return dataclasses.replace(paths, noise=noise, x=x, dx=dx, middle=middle, ends=ends)


def numbers(rows):
    return torch.cat([rows.table.t, rows.table.a, rows.table.b.flatten()])


@pytest.fixture(scope="module")
def paths():
    return exactly(model_of(mixture(CondOT())), tolerance=1e-6)


T = torch.tensor([0.0, 0.2, 0.5, 0.8], dtype=F64)


def test_a_polynomial_velocity_gives_simpsons_rule():
    """u(t) = c_0 + c_1 t + c_2 t^2 has one exact quadrature for three times, and the last row must be it."""
    c = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=F64)
    model = model_of(lambda t, x: (t.reshape(-1, 1) ** torch.arange(3)) @ c + 0 * x, dim=5)
    rows = closed_form(torch.tensor([0.0, 0.5, 1.0], dtype=F64), [exactly(model)])
    assert rows.table.a[-1].item() == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(rows.table.b[-1], torch.tensor([1, 4, 1], dtype=F64) / 6, rtol=0, atol=1e-5)


def test_one_evaluation_solves_a_rotation():
    """dx/dt = A x with A^2 = -1: x(1) = cos(1) x0 + sin(1) u_0."""
    A = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=F64)
    rows = closed_form(torch.zeros(1, dtype=F64), [exactly(model_of(lambda t, x: x @ A.T, dim=2))])
    expected = torch.tensor([0.0, 1.0, torch.cos(torch.ones(())), 0.0, torch.sin(torch.ones(()))], dtype=F64)
    torch.testing.assert_close(numbers(rows), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_nilpotent_field_is_solved_exactly(n):
    """A^(n+1) = 0: x(1) = sum_i A^i x0 / i! lies in the span of x0 and n velocities, though no inner row is exact."""
    A = torch.randn(n + 1, n + 1, generator=torch.Generator().manual_seed(n), dtype=F64).triu(1)
    batch = exactly(model_of(lambda t, x: x @ A.T, dim=n + 1), 32)
    rows = closed_form(torch.linspace(0, 0.8, n, dtype=F64), [batch])
    torch.testing.assert_close(rows.samples[0], batch.x1, rtol=0, atol=1e-5)
    if n > 1:
        euler = sample(baseline("euler", n), batch.model.bind(), batch.noise.x0)
        assert (euler - batch.x1).abs().max() > 1e-3


def test_each_row_is_the_regression_on_what_the_rows_before_met(paths):
    """Against numpy's way to do it: least squares on the stacked numbers of all samples."""
    rows = fit_rows(T, [paths], ones([paths]))
    ys = list(states(rows.table, paths.model.bind(), paths.noise.x0))
    us = [paths.model.bind()(t, y) for t, y in zip(T, ys[:-1], strict=True)]
    torch.testing.assert_close(rows.velocities[0], torch.stack(us))
    torch.testing.assert_close(rows.samples[0], ys[-1])
    for k in range(len(T) + 1):
        target = paths.x1 if k == len(T) else paths.at(T[k : k + 1]).x[0]
        basis = torch.stack([paths.noise.x0, *us[:k]]).flatten(1).T
        expected = torch.linalg.lstsq(basis, target.flatten()[:, None]).solution[:, 0]
        got = torch.cat([rows.table.a[k : k + 1], rows.table.b[k, :k]])
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [4, 8])
def test_batches_add_up(paths, size):
    batches = [part(paths, slice(i, i + size)) for i in range(0, 16, size)]
    weight = torch.rand(16, generator=torch.Generator().manual_seed(0), dtype=F64)
    together = fit_rows(T, [paths], [weight])
    apart = fit_rows(T, batches, list(weight.split(size)))
    torch.testing.assert_close(numbers(apart), numbers(together), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(torch.cat(apart.samples), together.samples[0], rtol=1e-7, atol=1e-8)
    passes = closed_form(T, batches)
    torch.testing.assert_close(numbers(passes), numbers(closed_form(T, [paths])), rtol=1e-5, atol=1e-6)


def test_a_batch_without_weight_has_no_influence(paths):
    good, other = part(paths, slice(0, 8)), part(paths, slice(8, 16))
    wrong = dataclasses.replace(other, x=-other.x, ends=Ends(other.ends.x0, -3 * other.x1))
    alone = fit_rows(T, [good], ones([good]))
    ignored, heard = (fit_rows(T, [good, wrong], [torch.ones(8, dtype=F64), torch.full((8,), w)]) for w in (1e-12, 1.0))
    torch.testing.assert_close(numbers(ignored), numbers(alone), rtol=0, atol=1e-6)
    assert (numbers(heard) - numbers(alone)).abs().max() > 0.1


def test_weights_are_relative(paths):
    one, thousand = (fit_rows(T, [paths], [torch.full((16,), w, dtype=F64)]) for w in (1, 1e3))
    torch.testing.assert_close(numbers(one), numbers(thousand), rtol=1e-8, atol=1e-8)


def test_a_weight_of_two_is_the_sample_twice(paths):
    one, other = part(paths, slice(0, 8)), part(paths, slice(8, 16))
    weighted = fit_rows(T, [one, other], [2 * torch.ones(8, dtype=F64), torch.ones(8, dtype=F64)])
    twice = fit_rows(T, [one, one, other], ones([one, one, other]))
    torch.testing.assert_close(numbers(weighted), numbers(twice), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("first", range(5))
def test_later_rows_are_fitted_again_alone(paths, first):
    """With other times from `first` on: what comes out is a fresh fit, for n - first evaluations of each sample."""
    counter = Counter(paths.model.velocity)
    counted = dataclasses.replace(paths, model=dataclasses.replace(paths.model, velocity=counter))
    batches = [part(counted, slice(0, 8)), part(counted, slice(8, 16))]
    weights = list(torch.rand(16, generator=torch.Generator().manual_seed(0), dtype=F64).split(8))
    known = fit_rows(T, batches, weights)
    moved = torch.cat([T[:first], T[first:] + 0.03])
    fresh = fit_rows(moved, batches, weights)
    before = counter.evaluations
    again = fit_rows(moved, batches, weights, known, first)
    assert counter.evaluations - before == (4 - first) * 16
    torch.testing.assert_close(numbers(again), numbers(fresh), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.cat(again.samples), torch.cat(fresh.samples))
    torch.testing.assert_close(torch.cat(again.velocities, 1), torch.cat(fresh.velocities, 1))
    assert torch.equal(torch.cat(known.velocities, 1), torch.cat(fit_rows(T, batches, weights).velocities, 1)), "intact"


@pytest.mark.parametrize("passes", [1, 3])
def test_a_pass_takes_n_evaluations_of_each_sample(paths, passes):
    counter = Counter(paths.model.velocity)
    counted = dataclasses.replace(paths, model=dataclasses.replace(paths.model, velocity=counter))
    closed_form(T, [part(counted, slice(0, 8)), part(counted, slice(8, 16))], passes)
    assert counter.evaluations == passes * 4 * 16
    assert counter.calls == passes * 4 * 2


def test_weighted_passes_serve_most_samples_better():
    """A few samples of the digits go astray whatever the solver; they must not decide for the others."""
    model = toy.digits()
    bank = Bank(model, batch_size=32)
    batches, held = [bank.paths(0, 0)], held_out(bank, "choose", 0, 64)
    t = warp(model, 8, 8 * 0.07, 1.0, 0.8)
    tables = [closed_form(t, batches, passes).table for passes in (1, 3)]
    psnr = [held.quality(table, model).psnr for table in tables]
    median = [(held.sample(table, model) - held.x1).square().flatten(1).mean(1).median() for table in tables]
    assert psnr[1] > psnr[0] + 5
    assert median[1] < median[0] / 4


def test_weights_fall_with_the_error():
    found = sample_weights([torch.tensor([error], dtype=F64) for error in (1.0, 2.0, 6.0)])
    torch.testing.assert_close(torch.cat(found), torch.tensor([2 / 3, 1 / 2, 1 / 4], dtype=F64))


def test_errors_have_finite_logarithms(paths):
    found = errors([paths.x1, paths.x1 + 2], [paths, paths])
    assert all(error.dtype == F64 for error in found)
    torch.testing.assert_close(found[1], torch.full((16,), 4.0, dtype=F64))
    assert -100 < log_mean(found[:1]) < -80
    assert log_mean(found[1:]) == pytest.approx(torch.tensor(4.0).log().item())
    assert log_mean(errors([paths.x1 * torch.nan], [paths])) == torch.inf
    assert log_mean(errors([paths.x1 / 0], [paths])) == torch.inf


def conditional() -> Model:
    """One Gaussian around each of four centres, which the condition names."""
    at_zero = toy.mixture_velocity(torch.zeros(1, 3, dtype=F64), STD, CondOT())

    def velocity(t, x, label):
        s = t.reshape(-1, 1) if t.ndim else t
        mean = CENTRES[label]
        return at_zero(t, x - s * mean) + mean

    return Model(
        velocity=velocity,
        shape=(3,),
        schedule=CondOT(),
        draw_condition=lambda generator: torch.randint(4, (), generator=generator),
        dtype=F64,
    )


def test_conditional_models():
    """Alone each path is straight in x - t mu, so few numbers do; with another's condition it would be far off."""
    model = conditional()
    batch = exactly(model, tolerance=1e-6)
    assert batch.noise.condition.unique().numel() > 1
    rows = closed_form(T, [part(batch, slice(0, 8)), part(batch, slice(8, 16))])
    assert (torch.cat(rows.samples) - batch.x1).abs().max() < 1e-3
    fresh = exactly(model, first=100, tolerance=1e-6)
    torch.testing.assert_close(
        sample(rows.table, model.bind(fresh.noise.condition), fresh.noise.x0), fresh.x1, rtol=0, atol=3e-3
    )


LATE = {
    "epsilon on cosine": (Cosine(), "epsilon", None),
    "EDM": (EDM(), "x-start", None),
    "score on CondOT": (CondOT(), "score", (0.1, 0.9)),
}


@pytest.mark.parametrize(("schedule", "prediction", "domain"), LATE.values(), ids=LATE)
def test_other_domains_and_scales(schedule, prediction, domain):
    u, seen = mixture(schedule), []

    def velocity(t, x):
        seen.append(t.item())
        return u(t, x)

    model = Model(
        velocity=velocity, shape=(3,), schedule=schedule, prediction=prediction, domain=domain, dtype=torch.float32
    )
    batch = exactly(dataclasses.replace(model, velocity=u), tolerance=1e-5)
    batch = dataclasses.replace(batch, model=model)
    t = warp(model, 6, 0.0, 1.0, 0.8)
    rows = closed_form(t, [batch])
    assert min(seen) >= model.t_lo
    assert max(seen) <= model.t_hi
    assert rows.table.a[0].item() == pytest.approx(model.start_scale, rel=1e-5)
    euler = sample(baseline("euler", 6).on(model), u, batch.noise.x0)
    assert log_mean(errors(rows.samples, [batch])) < log_mean(errors([euler], [batch])) - 2
    again = sample(rows.table.off(model).on(model), u, batch.noise.x0)
    torch.testing.assert_close(again, rows.samples[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_models_dtype_is_kept(dtype):
    model = dataclasses.replace(model_of(mixture(CondOT())), dtype=dtype)
    rows = closed_form(T, [solve(model, model.noise(range(8)))])
    assert rows.table.a.dtype == F64
    assert rows.velocities[0].dtype == rows.samples[0].dtype == dtype


def test_no_graph_is_kept():
    """A network's parameters require gradients; with the graph of n evaluations of all paths memory would run out."""
    net = torch.nn.Linear(3, 3, dtype=F64)
    rows = closed_form(T, [exactly(model_of(lambda t, x: net(x)))])
    assert not rows.samples[0].requires_grad
    assert not rows.table.a.requires_grad


@pytest.mark.skipif(not torch.cuda.is_available(), reason="about the memory of a GPU")
def test_what_a_fit_keeps_stays_on_a_gpu_that_has_room(monkeypatch):
    like = [torch.zeros(2, device="cuda")] * 4
    assert [x.device for x in scratch(3, like)] == [x.device for x in like]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 * 4 * 24, 10**9))
    assert [(x.device.type, x.shape) for x in scratch(3, like)] == [("cpu", (3, 2))] * 4, "all together"


def test_what_a_fit_keeps_stays_in_memory_where_it_is_little(monkeypatch):
    """All batches together count."""
    files, like = [], [torch.zeros(2)] * 4
    monkeypatch.setattr(regression, "on_disk", lambda shape, dtype: files.append(shape) or torch.empty(shape))
    monkeypatch.setattr(regression, "SMALL", 4 * 24 + 1)
    assert [x.shape for x in scratch(3, like)] == [(3, 2)] * 4
    assert not files
    monkeypatch.setattr(regression, "SMALL", 4 * 24)
    scratch(3, like)
    assert files == [(3, 2)] * 4


def test_a_tensor_on_disk_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    x = on_disk((2, 3, 4), torch.float32)
    assert x.shape == (2, 3, 4)
    assert x.dtype == torch.float32
    x[1] = 2.0
    x[0] = torch.arange(12.0).reshape(3, 4)
    assert x.sum() == 24 + 66
    assert not list(tmp_path.iterdir())
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(tmp_path) in maps.read_text(), "the numbers lie in the file, not in memory"


@pytest.mark.parametrize(("learned", "least"), [("all", 0.1), ("no scale", 0.7), ("no start", 1.0)])
def test_the_stage_keeps_the_best_grid(learned, least):
    """Of the most promising grids, all that begin below `least` at 0, each on half of the batches with the best weights
    so far."""
    model = model_of(mixture(CondOT()))
    batches = [exactly(model, 8, first) for first in (0, 8, 16)]
    family = NonStationary(baseline("euler", 3), learned != "no start", learned != "no scale")
    scale = 1.0 if learned == "no scale" else None
    stage = ClosedForm(family, batches)
    losses = []
    while not stage.finished:
        losses.append(stage.step())
    warps = dict.fromkeys((c if c >= least else 0.0, p, q) for c, p, q in WARPS)
    grids = [warp(model, 3, *each) for each in warps]
    scores = screen(grids, batches[:2], scale)
    promising = [grids[i] for i in sorted(range(len(grids)), key=scores.__getitem__)][:TRIED]
    tried, weights = [], ()
    for t in promising:
        found = closed_form(t, batches[:2], 1 if weights else 2, scale, weights).samples
        tried.append(log_mean(errors(found, batches[:2])))
        if tried[-1] == min(tried):
            weights = sample_weights(errors(found, batches[:2]))
    assert losses[:-1] == pytest.approx(tried)
    t = promising[tried.index(min(tried))]
    assert losses[-1] == pytest.approx(log_mean(errors(closed_form(t, batches, PASSES, scale).samples, batches)))
    torch.testing.assert_close(family().on(model).t, t)
    assert (family().a[0] == 1) == (learned != "all")


def test_few_samples_do_not_decide_which_grid_is_best():
    """Samples near the border between two modes are far harder than the others. With equal weights they would decide,
    and a grid would seem the best that is worse by 2 dB and more."""
    bank = Bank(toy.load("toy:digits-vp"))
    batches = [bank.paths(0, index) for index in range(2)]

    def loss(grid, passes, batches):
        return log_mean(errors(closed_form(warp(bank.model, 5, *grid), batches, passes).samples, batches))

    misled = min(WARPS, key=lambda grid: loss(grid, 1, batches[:1]))
    stage = ClosedForm(NonStationary(baseline("euler", 5)), batches)
    while not stage.finished:
        reached = stage.step()
    assert reached < loss(misled, PASSES, batches) - 0.5
