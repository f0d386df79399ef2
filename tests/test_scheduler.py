"""BespokeScheduler on pipelines of one U-Net: what a pipeline may ask, and its steps."""

import diffusers
import pytest
import torch

from bespoke_solvers import BespokeScheduler, Model, Solver, Table, load
from bespoke_solvers.dedicated import along, baseline
from bespoke_solvers.schedules import CondOT
from bespoke_solvers.solver import save
from bespoke_solvers.table import sample
from pipelines import Calls, quiet, unet
from schedulers import DISCRETE, F64, KINDS, ddpm, make, noise, run, sign, thousandths, velocity


@pytest.fixture(scope="module")
def network():
    return unet()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "s.json"
    save([make(4), make(6)], path)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_pipeline_draws_what_the_plain_loop_draws(tmp_path, kind):
    scheduler, meaning = KINDS[kind]
    solver, network = make(5, **meaning), unet()
    solver.save(tmp_path / "s.json")
    pipe = quiet(diffusers.DDPMPipeline(network, BespokeScheduler.from_solver(tmp_path / "s.json", scheduler)))
    calls = Calls(network)
    images = pipe(2, torch.Generator().manual_seed(0), num_inference_steps=5, output_type="pt").images
    assert len(calls.times) == 5
    fit = velocity(network, **meaning, sign=sign(kind))
    with torch.no_grad():
        expected = sample(solver.table, fit, noise())
    assert 0.3 < expected.std() < 3, "pictures in which a difference can be seen"
    assert [time.item() for time in calls.times[:5]] == [time.item() for time in calls.times[5:]], "to the last bit"
    torch.testing.assert_close(images, (expected / 2 + 0.5).clamp(0, 1), rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("cut", [lambda time: int(time), lambda time: time.long()])
def test_a_time_that_was_cut_to_a_whole_number_is_warned_of(network, cut):
    scheduler, x = BespokeScheduler.from_solver(make(5), ddpm()), noise()
    scheduler.set_timesteps(5)
    assert scheduler.timesteps[1] % 1
    first, second = scheduler.timesteps[:2]
    x = scheduler.step(network(x, first).sample, first, x).prev_sample
    with pytest.warns(UserWarning, match="the network was told a time that was cut to a whole number"):
        scheduler.step(network(x, cut(second)).sample, cut(second), x)


def test_it_is_shown_in_a_line():
    scheduler = BespokeScheduler.from_solver(make(5), ddpm())
    assert repr(scheduler) == "BespokeScheduler(<a solver for 5 evaluations>, instead of DDPMScheduler)"
    assert "alphas_cumprod" not in str(scheduler)


@torch.no_grad()
def test_times_may_repeat(network):
    solver = make(5, repeated=True)
    scheduler = BespokeScheduler.from_solver(solver, ddpm())
    expected = sample(solver.table, velocity(network), noise())
    torch.testing.assert_close(run(scheduler, network, noise()), expected, rtol=0, atol=1e-5)
    assert scheduler.timesteps[1] == scheduler.timesteps[2]
    assert scheduler.step_index == 5


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_that_of_the_network_alone(dtype):
    """All else is carried in float32, so that with a network that is never off the result is rounded once."""

    def network(x, time):
        return diffusers.utils.BaseOutput(sample=torch.full_like(x, 0.3125))

    solver, x0 = make(20), noise().to(dtype)
    x = run(BespokeScheduler.from_solver(solver, ddpm()), network, x0)
    assert torch.equal(x, sample(solver.table, velocity(network), x0.float()).to(dtype))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_precision_network_agrees_to_its_own_rounding(dtype):
    solver, half, whole = make(6), unet().to(dtype), unet()
    x = run(BespokeScheduler.from_solver(solver, ddpm()), half, noise().to(dtype))
    expected = sample(solver.table, velocity(whole), noise())
    rounding = torch.finfo(dtype).eps * expected.abs().max()
    assert (x.float() - expected).abs().max() < 2 * rounding
    assert (x.float() - expected).square().mean().sqrt() < rounding / 2


def test_tables_are_chosen_by_the_number_of_steps(file):
    scheduler = BespokeScheduler.from_solver(file, ddpm())
    scheduler.set_timesteps(6, device="cpu")
    assert len(scheduler.timesteps) == 6
    assert scheduler.timesteps.dtype == torch.float32
    with pytest.raises(ValueError, match="tables for num_inference_steps = 4, 6, got 50; choose one"):
        scheduler.set_timesteps(50)
    with pytest.raises(ValueError, match="tables for num_inference_steps = 4, 6, got None"):
        scheduler.set_timesteps()
    with pytest.raises(ValueError, match="`timesteps` cannot be given"):
        scheduler.set_timesteps(timesteps=[999, 500, 250, 1])
    one = BespokeScheduler.from_solver(load(file, 4), ddpm())
    one.set_timesteps()
    assert one.num_inference_steps == 4


def test_sigmas_and_shifts_do_not_move_the_learned_times(file):
    scheduler = BespokeScheduler.from_solver(file, ddpm())
    scheduler.set_timesteps(4)
    learned = scheduler.timesteps
    scheduler.set_timesteps(sigmas=[1.0, 0.9, 0.8, 0.1], mu=1.15)
    assert torch.equal(scheduler.timesteps, learned)


def test_what_pipelines_ask(file, network):
    scheduler = BespokeScheduler.from_solver(file, ddpm())
    x = noise()
    assert scheduler.scale_model_input(x, 3) is x
    assert scheduler.order == 1
    scheduler.set_timesteps(4)
    assert scheduler.init_noise_sigma == 1.0
    assert (scheduler.begin_index, scheduler.step_index) == (None, None)
    scheduler.set_begin_index(0)
    assert scheduler.begin_index == 0
    (previous,) = scheduler.step(x, scheduler.timesteps[0], x, return_dict=False)
    assert scheduler.step_index == 1
    scheduler.set_timesteps(4)
    assert torch.equal(previous, scheduler.step(x, scheduler.timesteps[0], x).prev_sample)


@torch.no_grad()
def test_edited_latents_are_refused(file, network):
    def edited(edit):
        scheduler = BespokeScheduler.from_solver(file, ddpm())
        scheduler.set_timesteps(4)
        x = scheduler.step(noise(), scheduler.timesteps[0], noise()).prev_sample
        return scheduler.step(noise(), scheduler.timesteps[1], edit(x))

    edited(lambda x: x)
    edited(torch.clone)
    edited(torch.Tensor.double)
    for edit in (lambda x: x.mul_(1.001), lambda x: torch.where(x > 0, x, 0.0)):
        with pytest.raises(ValueError, match=r"latents were edited before step 1.*callback_on_step_end.*inpainting"):
            edited(edit)


def test_what_a_table_cannot_do_is_refused(file):
    scheduler = BespokeScheduler.from_solver(file, ddpm())
    x = noise()
    with pytest.raises(ValueError, match="call set_timesteps"):
        scheduler.step(x, 999.0, x)
    scheduler.set_timesteps(4)
    for asked in ({"eta": 0.5}, {"use_clipped_model_output": True}):
        with pytest.raises(ValueError, match="adds no noise on its way and clips nothing"):
            scheduler.step(x, 999.0, x, **asked)
    with pytest.raises(ValueError, match=r"output has the shape \(2, 6, 8, 8\).*variance"):
        scheduler.step(torch.cat([x, x], dim=1), 999.0, x)
    with pytest.raises(ValueError, match="timestep 3 is none of this scheduler's"):
        scheduler.step(x, 3, x)
    run(scheduler, lambda x, time: diffusers.utils.BaseOutput(sample=x), x)
    with pytest.raises(ValueError, match="all 4 steps are done"):
        scheduler.step(x, 0.0, x)
    scheduler.set_timesteps(4)
    scheduler.set_begin_index(4)
    with pytest.raises(ValueError, match="start at evaluation 4; expected one from 0 to 3"):
        scheduler.step(x, 0.0, x)


@torch.no_grad()
def test_a_first_input_that_is_scaled(tmp_path, network):
    """Pipelines that scale their noise by init_noise_sigma get the table's first input; others are told."""
    solver = make(4, a0=0.9)
    scheduler = BespokeScheduler.from_solver(solver, ddpm())
    x = noise() * scheduler.init_noise_sigma  # before set_timesteps, as some programs have it
    expected = sample(solver.table, velocity(network), noise())
    torch.testing.assert_close(run(scheduler, network, x), expected, rtol=0, atol=1e-5)
    with pytest.raises(
        ValueError, match=r"is 0\.9 times the noise \(init_noise_sigma\), but the pipeline did not scale"
    ):
        run(scheduler, network, noise())
    save([make(4, a0=0.9), make(6, a0=0.8)], tmp_path / "s.json")
    several = BespokeScheduler.from_solver(tmp_path / "s.json", ddpm())
    with pytest.raises(ValueError, match=r"is 0\.8 times the noise.*scaled its noise by 0\.9, before set_timesteps"):
        run(several, network, noise() * several.init_noise_sigma, 6)


def test_noise_is_added_as_the_network_was_trained():
    x, level = noise(4), noise(4, seed=1)
    times = torch.tensor([0, 10, 500, 999])
    ours = BespokeScheduler.from_solver(make(), ddpm())
    torch.testing.assert_close(ours.add_noise(x, level, times), ddpm().add_noise(x, level, times), rtol=0, atol=2e-6)
    stock = diffusers.FlowMatchEulerDiscreteScheduler()
    ours = BespokeScheduler.from_solver(make(4, **KINDS["flow"][1]), stock)
    times = stock.timesteps[[0, 10, 500, 999]]
    torch.testing.assert_close(ours.scale_noise(x, times, level), stock.scale_noise(x, times, level), rtol=0, atol=2e-6)
    assert ours.scale_noise(x.half(), times[:1], level.half()).dtype == torch.float16


@torch.no_grad()
def test_a_start_in_the_middle(tmp_path, network):
    """Without a table for it, DPM-Solver++(2M) along the learned times, whether the index or the time is told."""
    plain = make(5)
    x, k = noise(), 2
    scheduler = BespokeScheduler.from_solver(plain, ddpm())
    times = plain.table.t[k:].float().double()
    expected = sample(along("dpmpp-2m", times, DISCRETE), velocity(network), x)
    for tell in (True, False):
        with pytest.warns(UserWarning, match="no table that starts at evaluation 2 of 5; DPM-Solver"):
            found = run(scheduler, network, x, begin=k, tell=tell)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)

    table = Table(
        plain.table.t[k:], torch.tensor([1.0, 0.9, 0.8, 0.7], dtype=F64), 0.3 * torch.eye(4, 3, dtype=F64).roll(1, 0)
    )
    fitted = Solver(plain.table, model=plain.model, network_time=plain.network_time, starts={k: table})
    fitted.save(tmp_path / "s.json")
    scheduler = BespokeScheduler.from_solver(tmp_path / "s.json", ddpm())
    expected = sample(table, velocity(network), x)
    torch.testing.assert_close(run(scheduler, network, x, begin=k), expected, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("last", [0.75, 1.0])
def test_a_start_in_the_middle_where_times_repeat_or_end_at_the_data(network, last):
    t = torch.tensor([0.0, 0.25, 0.5, 0.5, last], dtype=F64)
    table = baseline("euler", 5, Model(velocity=lambda t, x: x, shape=(3,), schedule=CondOT()))
    scheduler = BespokeScheduler.from_solver(
        Solver(Table(t, table.a, table.b)), diffusers.FlowMatchEulerDiscreteScheduler()
    )
    used = t[[1, 2, 4]] if last < 1 else t[[1, 2]]
    u = velocity(network, "flow", CondOT(), thousandths, -1.0)
    expected = sample(along("dpmpp-2m", used, CondOT()), u, noise())
    with pytest.warns(UserWarning, match="no table that starts at evaluation 1 of 5"):
        found = run(scheduler, network, noise(), begin=1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
