import pytest
import torch

from bespoke_solvers import Model, schedules
from bespoke_solvers.velocity import (
    PREDICTIONS,
    Counter,
    coefficients,
    ends,
    guided,
    map_condition,
    noise_seeds,
)
from problems import F64, SCHEDULES, mixture, points


def output(prediction, schedule, t, x, u):
    """What a perfect network of that prediction returns, from the velocity's own ends."""
    alpha, sigma, _, _ = schedule(t)
    x0, x1 = ends(schedule, t, x, u)
    return {
        "flow": u,
        "epsilon": x0,
        "x-start": x1,
        "score": -x0 / sigma,
        "v": alpha * x0 - sigma * x1,
    }[prediction]


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("per_sample", [False, True])
def test_every_prediction_gives_the_exact_velocity(schedule, prediction, per_sample):
    u = mixture(schedule)
    model = Model.from_network(
        lambda t, x: torch.stack(
            [output(prediction, schedule, s, y, v) for s, y, v in zip(t.expand(len(x)), x, u(t, x), strict=True)]
        ),
        prediction=prediction,
        schedule=schedule,
        shape=(3,),
        dtype=F64,
    )
    low, high = max(model.t_lo, 0.05), min(model.t_hi, 0.95)
    x = points()
    times = torch.linspace(low, high, len(x), dtype=F64)
    for t in [times] if per_sample else times:
        got, expected = model.bind()(t, x), u(t, x)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9 * expected.abs().max().item())


def test_ends_of_the_straight_path():
    schedule, t = schedules.CondOT(), torch.tensor(0.3, dtype=F64)
    x0, x1 = points(seed=1), points(seed=2)
    got = ends(schedule, t, 0.3 * x1 + 0.7 * x0, x1 - x0)
    torch.testing.assert_close(got.x0, x0)
    torch.testing.assert_close(got.x1, x1)


@pytest.mark.parametrize(
    ("schedule", "prediction", "t_lo", "t_hi"),
    [
        ("CondOT", "flow", 0, 1),
        ("Cosine", "v", 0, 1),
        ("CondOT", "epsilon", 1 / 1001, 1),
        ("CondOT", "x-start", 0, 1000 / 1001),
        ("VP", "epsilon", 0, 1 - 1e-4),
        ("discrete", "epsilon", 0, 0.999),
        ("EDM", "x-start", 0, schedules.EDM().domain[1]),
    ],
)
def test_default_domains(schedule, prediction, t_lo, t_hi):
    model = Model(velocity=lambda t, x: x, shape=(3,), schedule=SCHEDULES[schedule], prediction=prediction)
    assert model.domain == pytest.approx((t_lo, t_hi), abs=1e-7)
    assert t_lo <= model.t_lo
    assert model.t_hi <= t_hi
    assert torch.tensor(model.domain).double().tolist() == list(model.domain), "ends must be float32 numbers"


def test_zero_terminal_snr_leaves_the_last_index_to_v_but_not_to_epsilon():
    zero = SCHEDULES["zero-terminal"]
    assert Model(velocity=lambda t, x: x, shape=(3,), schedule=zero, prediction="v").t_lo == 0
    assert Model(velocity=lambda t, x: x, shape=(3,), schedule=zero, prediction="epsilon").t_lo > 0


def test_coefficients_stay_finite_on_the_default_domain():
    for schedule in SCHEDULES.values():
        for prediction in PREDICTIONS:
            model = Model(velocity=lambda t, x: x, shape=(3,), schedule=schedule, prediction=prediction)
            both = coefficients(prediction, schedule, torch.tensor(model.domain, dtype=F64))
            assert all(value.isfinite().all() for value in both), (schedule, prediction)


def test_the_network_gets_its_own_time():
    seen = []

    def network(k, x):
        seen.append(k)
        return x

    model = Model.from_network(
        network,
        prediction="epsilon",
        schedule=schedules.VP(),
        shape=(3,),
        network_time=lambda t: 1000 * (1 - t),
    )
    model.bind()(torch.tensor(0.25), torch.randn(2, 3))
    assert seen[0].item() == 750
    assert seen[0].dtype == torch.float32


def test_noise_depends_on_its_seed_alone():
    model = Model(
        velocity=lambda t, x, c: x,
        shape=(2, 2),
        schedule=schedules.CondOT(),
        draw_condition=lambda generator: torch.randint(10, (), generator=generator),
    )
    together, alone = model.noise([3, 4, 5]), model.noise([4])
    assert torch.equal(together.x0[1:2], alone.x0)
    assert torch.equal(together.condition[1:2], alone.condition)
    assert together.x0.dtype == torch.float32


def test_conditions_may_be_dicts_of_embeddings():
    def draw(generator):
        return {"text": torch.randn(4, generator=generator), "size": torch.tensor(32)}

    seen = []
    model = Model(
        velocity=lambda t, x, c: seen.append(c) or x, shape=(2,), schedule=schedules.CondOT(), draw_condition=draw
    )
    noise = model.noise([0, 1, 2])
    assert noise.condition["text"].shape == (3, 4)
    model.bind(noise.condition)(torch.tensor(0.5), noise.x0)
    assert seen[0] is noise.condition
    assert map_condition(lambda c: c[:1], noise.condition)["size"].shape == (1,)


def test_the_three_noise_sets_do_not_overlap():
    sets = [noise_seeds(name, seed, 0, 500) for name in ("fit", "choose", "report") for seed in (0, 1)]
    assert len(set().union(*sets)) == 3000
    assert noise_seeds("fit", 0, 10, 5) == noise_seeds("fit", 0, 0, 20)[10:15]


def labels_velocity(t, x, labels):
    return labels[:, None].to(x) * x + t.reshape(-1, 1)


@pytest.mark.parametrize("t", [torch.tensor(0.5), torch.linspace(0, 1, 3)])
def test_guidance_combines_both_halves_in_one_call(t):
    counter = Counter(labels_velocity)
    u = guided(counter, torch.tensor(10), scale=3.0)
    x, labels = torch.randn(3, 2), torch.tensor([1, 2, 3])
    without, with_label = labels_velocity(t, x, torch.tensor([10, 10, 10])), labels_velocity(t, x, labels)
    torch.testing.assert_close(u(t, x, labels), without + 3 * (with_label - without))
    assert (counter.calls, counter.evaluations) == (1, 6)


def test_guidance_of_dict_conditions():
    u = guided(lambda t, x, c: labels_velocity(t, x, c["label"]), {"label": torch.tensor(10)}, scale=1.0)
    x, labels = torch.randn(3, 2), torch.tensor([1, 2, 3])
    t = torch.tensor(0.5)
    torch.testing.assert_close(u(t, x, {"label": labels}), labels_velocity(t, x, labels))
    with pytest.raises(TypeError, match="alike"):
        u(t, x, labels)


@pytest.mark.parametrize("returned", [lambda x: x[:, :1], lambda x: x.double(), lambda x: x.half()])
def test_a_velocity_of_another_shape_or_dtype_is_refused(returned):
    model = Model(velocity=lambda t, x: returned(x), shape=(3,), schedule=schedules.CondOT())
    with pytest.raises(ValueError, match=r"returned torch.*\(2, .*and a t of \(\); it must return what x is"):
        model.bind()(torch.tensor(0.5), torch.randn(2, 3))


def test_wrong_models_are_named():
    def make(**fields):
        return Model(velocity=lambda t, x: x, shape=(3,), schedule=schedules.CondOT(), **fields)

    with pytest.raises(ValueError, match=r"'noise'.*epsilon"):
        Model(velocity=lambda t, x: x, shape=(3,), schedule=schedules.CondOT(), prediction="noise")
    with pytest.raises(ValueError, match=r"got \(0.5, 0.2\)"):
        make(domain=(0.5, 0.2))
    with pytest.raises(ValueError, match=r"dtype must be torch.float32 or torch.float64, got torch.bfloat16"):
        make(dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"epsilon is divided by alpha, which is 0 at t = 0"):
        make(prediction="epsilon", domain=(0.0, 1.0))
    with pytest.raises(ValueError, match=r"x-start is divided by sigma, which is 0 at t = 1"):
        make(prediction="x-start", domain=(0.0, 1.0))
    with pytest.raises(ValueError, match="the velocity returned a tuple"):
        Model(velocity=lambda t, x: (x,), shape=(3,), schedule=schedules.CondOT()).bind()(
            torch.tensor(0.5), torch.ones(2, 3)
        )
    with pytest.raises(ValueError, match="expects no condition"):
        make().bind(torch.tensor([1]))
    with pytest.raises(ValueError, match="expects a condition"):
        make(draw_condition=lambda g: torch.tensor(1)).bind()


@pytest.mark.parametrize("drawn", [lambda g: "cat", lambda g: torch.rand(int(torch.randint(1, 9, (), generator=g)))])
def test_conditions_that_do_not_go_together_are_named(drawn):
    model = Model(lambda t, x, c: -x, (2,), schedules.CondOT(), draw_condition=drawn)
    with pytest.raises(ValueError, match=r"the conditions of 4 samples: .*; draw a number, a tensor of one shape"):
        model.noise(range(4))
