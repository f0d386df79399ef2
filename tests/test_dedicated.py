import math
from functools import cache
from itertools import cycle, pairwise

import pytest
import torch

from bespoke_solvers import dedicated
from bespoke_solvers.dedicated import METHODS, NAMES, at_times, baseline, possible
from bespoke_solvers.grids import grid
from bespoke_solvers.schedules import EDM, VP, CondOT, DiscreteVP
from bespoke_solvers.table import sample, states
from bespoke_solvers.velocity import Counter, Model, ends
from problems import F64, SCHEDULES, mixture, points, solve_finely, stable_diffusion_alphas

pytestmark = [  # inside diffusers
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]

ALPHAS = stable_diffusion_alphas()
DISCRETE = DiscreteVP(ALPHAS)


def model_on(schedule, domain=None, prediction="flow"):
    """The exact mixture, which is smooth enough to be a network of any prediction."""
    return Model(mixture(schedule), (3,), schedule, prediction=prediction, domain=domain, dtype=F64)


def first_nfe(name, at_least):
    return next(nfe for nfe in NAMES[name] if nfe >= at_least)


# Against the implementations that are in use. Both get the same noise levels in float64; DPMSolverMultistepScheduler
# keeps its sample in float32 all the same.


@pytest.fixture(scope="module")
def diffusers():
    return pytest.importorskip("diffusers")


def discrete_scheduler(of, **options):
    """A scheduler on the alphas above in float64."""
    alphas = torch.tensor(ALPHAS, dtype=F64)
    betas = 1 - alphas / torch.cat([torch.ones(1, dtype=F64), alphas[:-1]])
    scheduler = of(trained_betas=betas.tolist(), **options)
    scheduler.alphas_cumprod = alphas
    return scheduler


def index_times(scheduler):
    """The times of a scheduler's integer timesteps."""
    return 1 - (scheduler.timesteps.double() + 1) / len(ALPHAS)


def set_levels(scheduler, levels):
    """The given float64 noise levels in place of the scheduler's float32 ones, which they must agree with."""
    torch.testing.assert_close(scheduler.sigmas[:-1].double(), levels, rtol=3e-5, atol=0)
    scheduler.sigmas = torch.cat([levels, scheduler.sigmas[-1:].double()])


def steps_of(scheduler, output, x):
    """What goes into the network at each step, and the result; `output(k, x)` is the network at step k."""
    found = [x]
    scheduler.set_begin_index(0)
    for k, timestep in enumerate(scheduler.timesteps):
        found.append(scheduler.step(output(k, found[-1]), timestep, found[-1]).prev_sample)
    return torch.stack(found)


def compare(scheduler, name, times, rtol, ends_at_zero=True):
    """The table's states and the scheduler's are the same; the result too where the scheduler ends at sigma = 0."""
    model = model_on(DISCRETE)
    x, u = points(), model.velocity
    expected = steps_of(scheduler, lambda k, x: ends(DISCRETE, times[k], x, u(times[k], x)).x0, x)
    got = torch.stack(list(states(at_times(name, times, model), u, x)))
    last = None if ends_at_zero else -1
    error = ((got - expected).abs().amax((1, 2)) / expected.abs().amax((1, 2)))[:last].max()
    print(f"{name} on {len(times)} times: {error:.1e}")
    assert error < rtol


def levels_at(times):
    return (-DISCRETE.log_snr(times)).exp()


@pytest.mark.parametrize("n", [1, 4, 10])
def test_ddim_is_diffusers(diffusers, n):
    options = {"clip_sample": False, "set_alpha_to_one": True, "timestep_spacing": "trailing"}
    scheduler = discrete_scheduler(diffusers.DDIMScheduler, **options)
    scheduler.set_timesteps(n)
    scheduler.set_begin_index = lambda k: None
    times = index_times(scheduler)
    torch.testing.assert_close(grid("trailing", model_on(DISCRETE), n), times, rtol=0, atol=1e-7)
    compare(scheduler, "ddim", times, 1e-13)


MULTISTEP = [
    ("dpmpp-2m", "DPMSolverMultistepScheduler", {"solver_order": 2}, 1e-6),
    ("dpmpp-3m", "DPMSolverMultistepScheduler", {"solver_order": 3}, 1e-6),
    ("unipc", "UniPCMultistepScheduler", {"solver_order": 3}, 1e-12),
    ("deis", "DEISMultistepScheduler", {"solver_order": 3}, 1e-12),
]


@pytest.mark.parametrize("n", [2, 3, 5, 10, 14, 15, 20])
@pytest.mark.parametrize(("name", "scheduler", "options", "rtol"), MULTISTEP, ids=[row[0] for row in MULTISTEP])
def test_multistep_methods_are_diffusers(diffusers, name, scheduler, options, rtol, n):
    """On its default times. DEIS has no end at sigma = 0 there, and stops at index 0 instead."""
    scheduler = discrete_scheduler(getattr(diffusers, scheduler), **options)
    scheduler.set_timesteps(n)
    times = index_times(scheduler)
    set_levels(scheduler, levels_at(times))
    compare(scheduler, name, times, rtol, ends_at_zero=name != "deis")


@pytest.mark.parametrize(
    ("on", "options"),
    [("karras", {"use_karras_sigmas": True}), ("log-snr", {"use_lu_lambdas": True})],
)
@pytest.mark.parametrize("order", [2, 3])
def test_dpm_solver_on_other_grids_is_diffusers(diffusers, order, on, options):
    of = diffusers.DPMSolverMultistepScheduler
    scheduler = discrete_scheduler(of, solver_order=order, **options)
    scheduler.set_timesteps(8)
    times = grid(on, model_on(DISCRETE), 8)
    set_levels(scheduler, levels_at(times))
    compare(scheduler, f"dpmpp-{order}m", times, 1e-6)


@pytest.mark.filterwarnings("ignore:.*dpmsolver:FutureWarning")
@pytest.mark.parametrize("n", [2, 6, 10])
def test_dpm_2_is_diffusers(diffusers, n):
    of = diffusers.DPMSolverSinglestepScheduler
    options = {"algorithm_type": "dpmsolver", "lower_order_final": True, "final_sigmas_type": "sigma_min"}
    scheduler = discrete_scheduler(of, solver_order=2, **options)
    scheduler.set_timesteps(n)
    times = index_times(scheduler)
    set_levels(scheduler, levels_at(times))
    compare(scheduler, "dpm-2", times, 1e-12, ends_at_zero=False)


def test_dpm_2_on_a_log_snr_grid_is_the_papers():
    """Lu et al. 2022, Algorithm 1, with the middle of lambda between s and t."""
    model, n = model_on(DISCRETE), 8
    lam = torch.linspace(*DISCRETE.log_snr(torch.tensor(model.domain, dtype=F64)).tolist(), n, dtype=F64)
    times = DISCRETE.time(lam)
    times[0] = model.t_lo
    torch.testing.assert_close(grid("log-snr", model, n), times, rtol=0, atol=1e-7)
    alpha, sigma, _, _ = DISCRETE(times)
    u = model.velocity
    x, *_ = seen = list(states(at_times("dpm-2", times, model), u, points()))
    h = lam[1] - lam[0]
    for s in range(0, n - 2, 2):
        m, t = s + 1, s + 2
        y = alpha[m] / alpha[s] * x - sigma[m] * torch.expm1(h) * ends(DISCRETE, times[s], x, u(times[s], x)).x0
        x = alpha[t] / alpha[s] * x - sigma[t] * torch.expm1(2 * h) * ends(DISCRETE, times[m], y, u(times[m], y)).x0
        torch.testing.assert_close(seen[t], x, rtol=0, atol=1e-10)


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_ipndm_is_diffusers(diffusers, n):
    """Which takes v-prediction and any sigmas as `trained_betas`; `ipndm` differs in the last step alone."""
    times = grid("uniform", model_on(DISCRETE), n)
    alpha, sigma, _, _ = DISCRETE(times)
    scheduler = diffusers.IPNDMScheduler(trained_betas=[*sigma.tolist(), 0.0])
    scheduler.set_timesteps(n)
    scheduler.betas = torch.cat([sigma, torch.zeros(1, dtype=F64)])
    scheduler.alphas = torch.cat([alpha, torch.ones(1, dtype=F64)])
    model = model_on(DISCRETE)

    def v(k, x):
        x0, x1 = ends(DISCRETE, times[k], x, model.velocity(times[k], x))
        return alpha[k] * x0 - sigma[k] * x1

    expected = steps_of(scheduler, v, points())
    whole, plain = (
        torch.stack(list(states(at_times(name, times, model), model.velocity, points())))
        for name in ("ipndm-ab", "ipndm")
    )
    torch.testing.assert_close(whole, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(plain[:-1], expected[:-1], rtol=0, atol=1e-12)
    assert (plain[-1] - expected[-1]).abs().max() > 0.05 or n == 1


@pytest.mark.parametrize("n", [1, 4, 8])
def test_edm_heun_is_diffusers(diffusers, n):
    """Whose sample is x / alpha."""
    times = grid("karras", model_on(DISCRETE), n)
    model, levels = model_on(DISCRETE), levels_at(times)
    scheduler = discrete_scheduler(diffusers.HeunDiscreteScheduler, use_karras_sigmas=True)
    scheduler.set_timesteps(n)
    at = torch.cat([torch.arange(1), torch.arange(1, n).repeat_interleave(2)])
    if n > 1:  # with one step diffusers starts at index 0
        set_levels(scheduler, levels[at])
    scheduler.sigmas = torch.cat([levels[at], torch.zeros(1, dtype=F64)])
    alpha = DISCRETE(times).alpha[at]

    def epsilon(k, x):
        t, x = times[at[k]], x * alpha[k]
        return ends(DISCRETE, t, x, model.velocity(t, x)).x0

    expected = steps_of(scheduler, epsilon, points() / alpha[0])[-1]
    table = baseline("edm-heun", 2 * n - 1, model)
    torch.testing.assert_close(sample(table, model.velocity, points()), expected, rtol=0, atol=1e-12)


def test_edm_heun_is_algorithm_1():
    """On EDM's own path, sigma(t) = t and s(t) = 1, with the denoiser of the mixture and Karras' sigmas."""
    model, n = model_on(EDM()), 6
    sigmas = [*((80 ** (1 / 7) + i / (n - 1) * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7 for i in range(n)), 0.0]

    def direction(x, sigma):
        t = EDM().time(torch.tensor(-math.log(sigma), dtype=F64)).clamp(max=model.t_hi)
        return (x - ends(EDM(), t, x, model.velocity(t, x)).x1) / sigma

    x = 80 * points()
    for sigma, after in pairwise(sigmas):
        d = direction(x, sigma)
        x_next = x + (after - sigma) * d
        x = x_next if after == 0 else x + (after - sigma) * (d + direction(x_next, after)) / 2
    got = sample(baseline("edm-heun", 2 * n - 1, model), model.velocity, points())
    torch.testing.assert_close(got, x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("n", [3, 10, 20])
@pytest.mark.parametrize(("name", "scheduler", "options", "rtol"), MULTISTEP, ids=[row[0] for row in MULTISTEP])
def test_multistep_methods_on_flows_are_diffusers(diffusers, name, scheduler, options, rtol, n):
    """At its own flow sigmas, the first of which is not quite 1."""
    scheduler = getattr(diffusers, scheduler)(prediction_type="flow_prediction", use_flow_sigmas=True, **options)
    scheduler.set_timesteps(n)
    times = 1 - scheduler.sigmas[:-1].double()
    model = model_on(CondOT(), domain=(times[0].item(), 1.0))
    times[0] = model.t_lo
    set_levels(scheduler, 1 - times)
    x = model.start_scale * points()
    expected = steps_of(scheduler, lambda k, x: -model.velocity(times[k], x), x)
    got = torch.stack(list(states(at_times(name, times, model), model.velocity, points())))
    last = -1 if name == "deis" else None
    print(f"{name} on {n} flow times: {(got - expected)[:last].abs().max():.1e}")
    torch.testing.assert_close(got[:last], expected[:last], rtol=rtol, atol=10 * rtol)


# In their own right.


@cache
def solved(schedule, t_lo, t_last):
    """A model on these times, and what x1_hat is at the end of them."""
    model, last = model_on(schedule, domain=(t_lo, t_last)), torch.tensor(t_last, dtype=F64)
    x = solve_finely(model.velocity, torch.linspace(t_lo, t_last, 201, dtype=F64), model.start_scale * points())
    return model, ends(schedule, last, x, model.velocity(last, x)).x1


@pytest.mark.parametrize("schedule", [VP(), CondOT()], ids=["VP", "CondOT"])
@pytest.mark.parametrize("name", METHODS)
def test_the_measured_order_is_the_declared_one(name, schedule):
    """Between two fixed times, with short first steps: a multistep method begins with DDIM, which is of order 1."""
    t_lo, t_last = 0.25, 0.8125
    model, exact = solved(schedule, t_lo, t_last)

    def error(n):
        times = t_lo + (t_last - t_lo) * torch.linspace(0, 1, n, dtype=F64) ** 1.5
        return (sample(at_times(name, times, model), model.velocity, points()) - exact).norm()

    n, less = {"edm-heun": (20, 0.15), "deis-tab": (80, 0.3)}.get(name, (40, 0.15))
    order = math.log2(error(n) / error(2 * n))
    print(f"{name}: {order:.2f}")
    assert -less < order - METHODS[name].order < 0.4  # the third-order part of dpmpp-3m and ipndm is large


@pytest.mark.parametrize("prediction", ["flow", "epsilon", "x-start", "score"])  # v has flow's domain
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_every_method_runs_on_every_schedule_and_inside_every_domain(schedule, prediction):
    model = model_on(schedule, prediction=prediction)
    grids = ["uniform", "quadratic", "log-snr", "karras:0.03"] + ["trailing"] * isinstance(schedule, DiscreteVP)
    for name in [*NAMES, *(f"{name}@{on}" for name, on in zip(METHODS, cycle(grids), strict=False))]:
        nfe = first_nfe(name.partition("@")[0], 5)
        table = baseline(name, nfe, model)
        assert table.nfe == nfe
        assert table.t[0] == model.t_lo
        assert table.a[0] == pytest.approx(model.start_scale, rel=1e-14)
        assert (table.t >= model.t_lo).all()
        assert (table.t.float() <= model.t_hi).all()
        counter = Counter(model.velocity)
        assert sample(table, counter, points(4)).isfinite().all()
        assert counter.calls == nfe


@pytest.mark.parametrize("schedule", [CondOT(), SCHEDULES["zero-terminal"]], ids=["CondOT", "zero-terminal"])
def test_a_start_at_zero_snr_does_no_harm(schedule):
    """alpha = 0 at the start divides by nothing: the numbers stay small, and the other methods beat DDIM."""
    model = model_on(schedule, domain=(0.0, 1.0))
    exact = solve_finely(model.velocity, torch.linspace(0, 0.9999, 150, dtype=F64), points())

    def error(name):
        table = baseline(f"{name}@quadratic", first_nfe(name, 30), model)
        assert table.b.abs().max() < 5
        return (sample(table, model.velocity, points()) - exact).norm().item()

    errors = {name: error(name) for name in METHODS}
    print({name: f"{error:.1e}" for name, error in errors.items()})
    ddim = errors.pop("ddim")
    assert ddim < 0.3
    assert max(errors.values()) < ddim / 2


@pytest.mark.parametrize("on", ["trailing", "uniform"])
def test_float32_is_enough_on_a_discrete_schedule(on):
    """Where the velocity jumps at every index, so that a time must lie on the same side of it in both precisions."""
    model = model_on(DISCRETE)
    for name in METHODS:
        table = baseline(f"{name}@{on}", first_nfe(name, 10), model)
        expected = sample(table, model.velocity, points())
        got = sample(table, model.velocity, points().float())
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=1e-5)


def test_ddim_on_condot_is_euler():
    """Both follow the straight line from x0_hat to x1_hat."""
    model = model_on(CondOT())
    ddim, euler = baseline("ddim", 7, model), baseline("euler", 7, model)
    for name in ("t", "a", "b"):
        torch.testing.assert_close(getattr(ddim, name), getattr(euler, name), rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", METHODS)
def test_one_evaluation_is_x1_hat(name):
    if not possible(name, 1):
        pytest.skip(f"{name} needs more")
    model, t = model_on(VP()), torch.tensor(0.0, dtype=F64)
    x = model.start_scale * points()
    expected = ends(model.schedule, t, x, model.velocity(t, x)).x1
    torch.testing.assert_close(sample(baseline(name, 1, model), model.velocity, points()), expected)


@pytest.mark.parametrize("h", [0.3, -0.3, 4.0])
def test_moments_are_the_integrals(h):
    tau = torch.linspace(0, h, 20001, dtype=F64)
    for i, moment in enumerate(dedicated.moments(torch.tensor(h, dtype=F64), 3)):
        assert moment == pytest.approx(torch.trapezoid((tau - h).exp() * tau**i, tau).item(), rel=1e-6)
