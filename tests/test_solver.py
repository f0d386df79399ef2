import dataclasses
import json
import math

import pytest
import torch

from bespoke_solvers import Solver, Table, load, schedules
from bespoke_solvers.description import describe, network_time
from bespoke_solvers.generic import baseline
from bespoke_solvers.solver import save
from bespoke_solvers.table import sample
from bespoke_solvers.velocity import Counter, Model
from problems import F64, SCHEDULES, mixture, points


def make(nfe: int = 4, schedule: schedules.Schedule | None = None) -> Solver:
    model = Model(velocity=lambda t, x: x, shape=(3,), schedule=schedule or schedules.VP(), domain=(0.0, 0.999))
    return Solver(
        table=baseline("midpoint", nfe).on(model),
        family="rk2",
        theta={"theta_t": [1.0, 0.1, 1 / 3]},
        model=describe(model),
        fit={"objective": "bound", "seed": 0},
        validation={"rmse": 0.01},
        network_time=[750.0, 500.0, 250.0, 0.1],
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.json"


def same(one: Table, other: Table) -> bool:
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("t", "a", "b"))


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.CondOT(),
        schedules.Cosine(),
        schedules.VP(B=12.0),
        schedules.EDM(rho=5.0),
        schedules.DiscreteVP((0.9, 0.5, 0.1)),
    ],
)
def test_a_file_gives_back_what_was_saved(path, schedule):
    solver = make(schedule=schedule)
    solver.save(path)
    again = load(path)
    assert same(again.table, solver.table), "to the last bit"
    for name in ("family", "theta", "fit", "validation", "network_time"):
        assert getattr(again, name) == getattr(solver, name)
    assert again.model == json.loads(json.dumps(solver.model))


def test_a_solver_samples_with_nfe_calls(path):
    solver, counter, x0 = make(), Counter(mixture(schedules.VP())), points()
    x1 = solver.sample(counter, x0)
    assert counter.calls == solver.nfe == 4
    torch.testing.assert_close(x1, sample(solver.table, mixture(schedules.VP()), x0))


def test_a_file_of_several_tables(path):
    save([make(8), make(4), make(6)], path)
    assert load(path, nfe=6).nfe == 6
    with pytest.raises(ValueError, match=r"holds tables for nfe = 4, 6, 8; no nfe was given"):
        load(path)
    with pytest.raises(ValueError, match=r"holds tables for nfe = 4, 6, 8; nfe = 5 was asked for"):
        load(path, nfe=5)


def test_the_file_is_json_that_a_person_can_read(path):
    make().save(path)
    content = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert content["format"] == "bespoke-solver"
    assert content["model"]["schedule"] == {"name": "VP", "B": 20.0, "b": 0.1}
    assert max(map(len, path.read_text().splitlines())) < 300
    assert [line for line in path.read_text().splitlines() if line.strip().startswith('"a": [1.0, 1.0')]


def test_infinite_log_snr_is_kept_as_null(path):
    solver = make(schedule=schedules.CondOT())
    Solver(baseline("euler", 2), model=solver.model).save(path)
    assert json.loads(path.read_text())["tables"]["2"]["log_snr"] == [None, 0.0]
    assert load(path).nfe == 2


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def table_of(content):
    return content["tables"]["4"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: c.update(format="safetensors"), "field 'format' is 'safetensors', expected 'bespoke-solver'"),
        (lambda c: c.update(version=99), "field 'version' is 99, expected 1; update"),
        (lambda c: c.pop("model"), "field 'model' is missing"),
        (lambda c: c.update(tables=[]), "field 'tables' is list, expected dict"),
        (lambda c: table_of(c).pop("b"), "table 4: field 'b' is missing"),
        (lambda c: table_of(c).update(t="0, 1"), "table 4: field 't' is str, expected list"),
        (lambda c: table_of(c)["t"].append(0.5), "table 4: a has the shape"),
        (lambda c: table_of(c)["t"].__setitem__(1, "0.5"), "table 4: "),
        (lambda c: table_of(c)["b"][0].__setitem__(3, 1.0), "table 4: b must be zero on and above"),
        (lambda c: table_of(c)["b"][2].pop(), "table 4: "),
        (lambda c: table_of(c)["t"].__setitem__(1, 0.31), "field 'log_snr' does not belong to the times"),
        (lambda c: c["model"]["schedule"].update(B=10.0), "field 'log_snr' does not belong"),
        (lambda c: table_of(c)["a"].__setitem__(1, math.nan), "a holds a number that is not finite"),
        (lambda c: c["tables"].update({"6": c["tables"].pop("4")}), "has 4 evaluations .*expected 6"),
        (lambda c: table_of(c)["a"].__setitem__(4, 7.0), "field 'digest' does not belong to the numbers"),
        (lambda c: table_of(c)["theta"].update(theta_t=[2.0]), "field 'digest' does not belong to the numbers"),
        (lambda c: table_of(c).pop("digest"), "field 'digest' does not belong"),
        (lambda c: c["model"].update(schedule=[1]), "'schedule' of the model is no schedule"),
        (lambda c: c["model"].update(schedule="CondOT"), "'schedule' of the model is no schedule"),
        (lambda c: c["model"]["schedule"].update(C=1), "'schedule' of the model is no schedule"),
        (
            lambda c: c["model"].update(shape=None),
            "field 'shape' of the model is None, expected a list of whole numbers",
        ),
        (lambda c: c["model"].update(shape=["3"]), "field 'shape' of the model is .'3'., expected a list"),
        (
            lambda c: c["model"].update(domain=["a", 1]),
            "field 'domain' of the model is .'a', 1., expected a list of two",
        ),
        (lambda c: c["model"].update(domain=[0.5]), "field 'domain' of the model is .0.5., expected a list of two"),
        (lambda c: table_of(c)["t"].__setitem__(1, 10**400), "table 4: "),
        (lambda c: table_of(c).update(theta=3.0), "field 'theta' is float, expected dict"),
        (lambda c: c.update(tables={"four": table_of(c)}), "'four' is not a number of evaluations"),
    ],
)
def test_an_edited_file_is_refused_and_the_field_named(path, change, named):
    make().save(path)
    edit(path, change)
    with pytest.raises(ValueError, match=named) as error:
        load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_file_belongs_to_its_model_whatever_the_schedule(path, name):
    model = Model(velocity=lambda t, x: -x, shape=(3,), schedule=SCHEDULES[name])
    Solver(baseline("midpoint", 4).on(model), model=describe(model)).save(path)
    load(path).check(model)
    for other in SCHEDULES:
        if other != name:
            stranger = dataclasses.replace(model, schedule=SCHEDULES[other], domain=None)
            with pytest.raises(ValueError, match="was made for a model with schedule"):
                load(path).check(stranger)


def test_other_weights_or_another_network_time_are_warned_of(path):
    def model(factor, own_time):
        return Model.from_network(
            lambda t, x: factor * x, prediction="flow", schedule=schedules.CondOT(), shape=(3,), network_time=own_time
        )

    made_for = model(-1.0, lambda t: 1000 * (1 - t))
    table = baseline("midpoint", 4)
    Solver(table, model=describe(made_for), network_time=network_time(made_for, table)).save(path)
    load(path).check(made_for)
    with pytest.warns(UserWarning, match="with other weights"):
        load(path).check(model(-1.2, lambda t: 1000 * (1 - t)))
    with pytest.warns(UserWarning, match="with network time"):
        load(path).check(model(-1.0, lambda t: 1 - t))


def test_sampling_checks_a_model_and_what_a_velocity_returns():
    made_for = Model(velocity=lambda t, x: -x, shape=(3,), schedule=schedules.CondOT())
    solver, x0 = Solver(baseline("midpoint", 4).on(made_for), model=describe(made_for)), torch.randn(5, 3)
    torch.testing.assert_close(solver.sample(made_for, x0), solver.sample(made_for.velocity, x0))
    with pytest.raises(ValueError, match="was made for a model with schedule"):
        solver.sample(dataclasses.replace(made_for, schedule=schedules.VP(), domain=None), x0)
    with pytest.raises(ValueError, match=r"the velocity returned \S+ \(1, 3\) for an x of \S+ \(5, 3\)"):
        solver.sample(lambda t, x: -x[:1], x0)
    with pytest.raises(ValueError, match="returned a tuple"):
        solver.sample(lambda t, x: (-x,), x0)
    pictures = dataclasses.replace(made_for, shape=(1, 8, 8))
    with pytest.warns(UserWarning, match=r"shape \(1, 8, 8\) \(here \(1, 16, 16\)\); it may serve worse"):
        Solver(solver.table, model=describe(pictures)).sample(pictures.velocity, torch.randn(2, 1, 16, 16))


def test_what_differs_in_a_schedule_is_named(path):
    alphas = (1 - torch.linspace(1e-4, 0.02, 1000)).cumprod(0)
    paths = (schedules.DiscreteVP(each) for each in (alphas, torch.cat([alphas[:-1], alphas[-1:] / 2])))
    one, other = (Model(lambda t, x: -x, (3,), path) for path in paths)
    with pytest.raises(ValueError, match=r"schedule with alphas_cumprod\[999\] 4\.03\S*e-05 \(here 2\.01\S*e-05\)"):
        Solver(baseline("midpoint", 4).on(one), model=describe(one)).check(other)


def test_a_folder_of_the_hub_is_a_file_too(tmp_path):
    make().save_pretrained(tmp_path / "mine")
    assert same(load(tmp_path / "mine").table, make().table)


def test_where_a_file_cannot_be_written_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"directory: s.json cannot be written there: .*missing'"):
        make().save(tmp_path / "missing" / "s.json")


def test_a_truncated_or_foreign_file_is_refused(path):
    make().save(path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"\x89PNG\r\n\x1a\n\xff\xfe", b"[1, 2]", b"3"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a solver file"):
            load(path)


def test_solvers_of_a_model_that_was_rounded_otherwise_go_into_one_file(path):
    """As on another machine: the marks of one and the same model differ in their last digits there."""
    one, other = make(4), make(6)
    marks = [mark * (1 + 1e-6) for mark in other.model["fingerprint"]]
    save([one, dataclasses.replace(other, model=other.model | {"fingerprint": marks})], path)
    assert load(path, nfe=6).model == one.model


def test_a_failed_save_leaves_the_old_file(path):
    make().save(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="Out of range float"):
        Solver(baseline("euler", 4), model=make().model, fit={"loss": math.nan}).save(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["s.json"]


def test_solvers_of_different_models_do_not_share_a_file(path):
    with pytest.raises(ValueError, match="one model"):
        save([make(4), make(6, schedules.CondOT())], path)
    with pytest.raises(ValueError, match="differ in nfe"):
        save([make(4), make(4)], path)
    with pytest.raises(ValueError, match="no solver"):
        save([], path)


def test_a_schedule_from_elsewhere_is_described_but_not_checked(path):
    class Own(schedules.CondOT):
        pass

    make(schedule=Own()).save(path)
    assert load(path).model["schedule"] == {"name": "Own"}
    assert load(path).table.t.dtype == F64


def started(start: Table) -> Solver:
    solver = make()
    return dataclasses.replace(solver, starts={2: start})


def test_tables_for_a_start_in_the_middle_are_kept(path):
    t = make().table.t[2:]
    start = Table(
        t, torch.tensor([1.0, 0.5, 0.25], dtype=F64), torch.tensor([[0, 0], [0.5, 0], [0.5, 0.25]], dtype=F64)
    )
    started(start).save(path)
    assert same(load(path).starts[2], start)
    edit(path, lambda content: table_of(content)["starts"]["2"]["a"].__setitem__(1, 0.6))
    with pytest.raises(ValueError, match="field 'digest' does not belong"):
        load(path)
    edit(path, lambda content: table_of(content).update(starts={"two": {}}))
    with pytest.raises(ValueError, match=r"field 'starts' has the keys \['two'\]"):
        load(path)
    with pytest.raises(ValueError, match=r"starts at evaluation 2 has the times .*; expected those of the solver"):
        started(Table(t / 2, start.a, start.b))
