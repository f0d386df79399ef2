import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bespoke_solvers import Model, Table, reference
from bespoke_solvers.generic import baseline
from bespoke_solvers.schedules import EDM, VP, CondOT
from bespoke_solvers.table import sample, states, trace
from bespoke_solvers.velocity import Counter
from problems import F64, mixture, points


def random_table(n: int, seed: int = 0) -> Table:
    generator = torch.Generator().manual_seed(seed)
    t, a = torch.rand(n, generator=generator, dtype=F64), torch.randn(n + 1, generator=generator, dtype=F64)
    return Table(t, a, torch.randn(n + 1, n, generator=generator, dtype=F64).tril(-1))


@given(st.integers(1, 12), st.integers(0, 1000))
def test_the_loop_is_the_definition(n, seed):
    table, u, x0 = random_table(n, seed), mixture(CondOT()), points(4)
    us = []
    for k in range(n):
        us.append(u(table.t[k], table.a[k] * x0 + sum(table.b[k, j] * us[j] for j in range(k))))
    expected = table.a[n] * x0 + sum(table.b[n, j] * us[j] for j in range(n))
    torch.testing.assert_close(sample(table, u, x0), expected, rtol=1e-10, atol=1e-10)


@given(st.integers(1, 12), st.integers(0, 1000))
def test_tracing_a_run_of_a_table_gives_the_table_back(n, seed):
    table = random_table(n, seed)

    def method(u, x0):
        return sample(table, lambda t, y: u(t, y[0])[None], x0[None])[0]

    again = trace(method, n)
    for name in ("t", "a", "b"):
        torch.testing.assert_close(getattr(again, name), getattr(table, name), rtol=0, atol=1e-14)


def test_u_is_called_nfe_times_where_the_table_says():
    seen = []
    table = random_table(7)
    counter = Counter(lambda t, x: seen.append(t.item()) or x)
    sample(table, counter, points(5))
    assert (counter.calls, counter.evaluations) == (7, 35)
    assert seen == table.t.tolist()


def test_a_network_may_write_into_the_same_memory_each_time():
    """As one does that was recorded as a CUDA graph."""
    table, u, x0 = random_table(4), mixture(CondOT()), points(3)
    memory = torch.empty_like(x0)
    expected = sample(table, u, x0)
    assert torch.equal(sample(table, lambda t, x: memory.copy_(u(t, x)), x0), expected)
    model = Model(velocity=lambda t, x: memory.copy_(u(t, x)), shape=(3,), schedule=CondOT(), dtype=F64)
    bound = model.bind()
    kept = [bound(torch.tensor(t, dtype=F64), x0) for t in (0.1, 0.9)]
    assert not torch.equal(*kept)


def test_states_are_the_inputs_and_the_result():
    table, u, x0 = random_table(4), mixture(CondOT()), points(3)
    inputs = []
    *before, last = states(table, lambda t, x: inputs.append(x) or u(t, x), x0)
    assert all(torch.equal(x, y) for x, y in zip(before, inputs, strict=True))
    assert torch.equal(last, sample(table, u, x0))


def test_half_precision_is_carried_in_float32():
    """The network sees x0's dtype and a float32 time; the sums are float32."""
    seen = set()

    def u(t, x):
        seen.add((t.dtype, x.dtype))
        return torch.full_like(x, 1.0)

    table, x0 = baseline("euler", 20), torch.full((2, 3), 1000.0, dtype=torch.float16)
    result = sample(table, u, x0)
    assert seen == {(torch.float32, torch.float16)}
    assert result.dtype == torch.float16
    assert (result == 1001).all(), "twenty sums of 0.05 to 1000 in float16 would have stayed at 1000"


def test_float32_agrees_with_float64():
    u, x0, table = mixture(CondOT()), points(16), baseline("midpoint", 20)
    torch.testing.assert_close(sample(table, u, x0.float()).double(), sample(table, u, x0), rtol=0, atol=2e-6)


def test_one_solver_for_each_sample():
    tables, u, x0 = [random_table(5, seed) for seed in range(3)], mixture(CondOT()), points(6)
    together = sample(Table.stack(tables).repeat_interleave(2), u, x0)
    alone = torch.cat([sample(table, u, x) for table, x in zip(tables, x0.split(2), strict=True)])
    torch.testing.assert_close(together, alone)


def test_on_a_model_the_start_is_scaled_and_the_times_stay_in_the_domain():
    edm = Model(velocity=lambda t, x: x, shape=(3,), schedule=EDM(), prediction="x-start")
    table = baseline("heun", 8)
    on_edm = table.on(edm)
    assert on_edm.t.max().item() == edm.t_hi < 1
    torch.testing.assert_close(on_edm.a, 80 * table.a)
    assert torch.equal(on_edm.b, table.b)
    vp = Model(velocity=lambda t, x: x, shape=(3,), schedule=VP(), prediction="epsilon")
    assert torch.equal(table.on(vp).a, table.a)
    later = Model(velocity=lambda t, x: x, shape=(3,), schedule=CondOT(), prediction="epsilon")
    assert table.on(later).t.min().item() == later.t_lo > 0
    torch.testing.assert_close(table.on(later).a, (1 - later.t_lo) * table.a)
    torch.testing.assert_close(table.on(later).b, (1 - later.t_lo) * table.b)


@pytest.mark.parametrize("domain", [(0.0, 1.0), (0.05, 1.0), (0.001, 0.999)])
def test_tables_converge_to_the_reference_from_the_start_of_the_domain(domain):
    model = Model(velocity=mixture(CondOT()), shape=(3,), schedule=CondOT(), domain=domain, dtype=F64)
    exact = reference.solve(model, model.noise(range(8)), rtol=1e-10, atol=1e-10)
    errors = [
        (sample(baseline("midpoint", nfe).on(model), model.bind(), exact.noise.x0) - exact.x1).abs().max()
        for nfe in (80, 160)
    ]
    assert errors[1] < 2e-3
    assert errors[1] < errors[0] / (3.5 if domain[1] == 1 else 1.5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"a": torch.ones(3, dtype=F64)}, r"a has the shape \(3,\).*needs \(4,\)"),
        ({"b": torch.zeros(3, 3, dtype=F64)}, r"b has the shape \(3, 3\).*needs \(4, 3\)"),
        ({"t": torch.tensor([0, 0.5, 1.2], dtype=F64)}, r"times must lie in \[0, 1\], got.*1.2"),
        ({"a": torch.tensor([1, 1, torch.nan, 1], dtype=F64)}, "a holds a number that is not finite"),
        ({"b": torch.ones(4, 3, dtype=F64)}, "zero on and above the diagonal"),
        ({"t": torch.tensor([0, 0.5, 0.9])}, "t is torch.float32"),
    ],
)
def test_a_wrong_table_says_what_is_wrong(change, named):
    table = baseline("euler", 3)
    with pytest.raises(ValueError, match=named):
        Table(**({"t": table.t, "a": table.a, "b": table.b} | change))


def test_an_empty_table_is_refused():
    with pytest.raises(ValueError, match="at least one evaluation"):
        Table(torch.zeros(0, dtype=F64), torch.zeros(1, dtype=F64), torch.zeros(1, 0, dtype=F64))


@pytest.mark.parametrize("nfe", [3, 5])
def test_tracing_counts_the_evaluations(nfe):
    def four_evaluations(u, x):
        for i in range(4):
            x = x + u(torch.tensor(i / 4, dtype=F64), x)
        return x

    with pytest.raises(ValueError, match=f"evaluates u .*{nfe} times"):
        trace(four_evaluations, nfe)
