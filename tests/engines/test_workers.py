"""The local engine: what every engine promises, in one process."""

import pytest

from ecokv_cli.engines.ray_engine import RayEngine, _room
from ecokv_cli.engines.workers import LocalEngine, LocalWorkers, Outcome, Tell
from ecokv_cli.errors import DumpError, ModelError, UsageError


def halved(context, item, tell):
    context.append(item)
    tell.note(f"at {item}")
    if item % 2:
        raise DumpError(f"{item} is odd")
    return item // 2


def test_items_are_worked_on_in_order_and_errors_of_ours_are_outcomes():
    notes, context = [], []
    with LocalEngine().workers(lambda: context, Tell(note=notes.append)) as workers:
        outcomes = list(workers.run(halved, {"x": 14, "y": 7, "z": 22}))
    assert [(o.name, o.value, str(o.error or "")) for o in outcomes] == [
        ("x", 7, ""), ("y", None, "7 is odd"), ("z", 11, "")
    ]  # fmt: skip
    assert context == [14, 7, 22]
    assert notes == ["at 14", "at 7", "at 22"]


def test_an_outcome_is_there_before_the_next_item_is_begun():
    context = []
    stream = LocalWorkers(lambda: context).run(halved, {"x": 2, "y": 4})
    assert next(stream).value == 1
    assert context == [2]


def test_the_setup_is_done_once_and_only_if_something_is_left_to_do():
    made = []

    def setup():
        made.append(1)
        return []

    workers = LocalWorkers(setup)
    assert list(workers.run(halved, {})) == []
    assert made == []
    assert workers.ask(len) == 0
    list(workers.run(halved, {"x": 2}))
    assert workers.ask(len) == 1
    assert made == [1]


def test_an_error_of_the_setup_ends_the_run_and_is_no_failure_of_an_item():
    def setup():
        raise ModelError("no such model")

    with pytest.raises(ModelError, match="no such model"):
        list(LocalWorkers(setup).run(halved, {"x": 2}))
    with pytest.raises(ModelError, match="no such model"):
        LocalWorkers(setup).ask(len)


def test_errors_that_are_not_ours_end_the_run():
    with pytest.raises(TypeError):
        list(LocalWorkers(list).run(halved, {"x": "text"}))


def test_an_outcome_gives_its_value_or_raises():
    assert Outcome("x", None, None).get() is None
    with pytest.raises(DumpError, match="odd"):
        Outcome("x", None, DumpError("odd")).get()


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"--engine ray: needs Ray; pip install 'ecokv-cli\[ray\]'"):
        RayEngine().workers(list, Tell()).__enter__()


def node(alive=True, **resources):
    return {"Alive": alive, "Resources": resources}


@pytest.mark.parametrize(("cpus", "gpus", "room"), [
    (1, 0, 16 + 3 + 5), (2, 0, 8 + 1 + 2), (1, 1, 4 + 0 + 2), (5, 1, 3 + 0 + 1), (1, 0.5, 8 + 0 + 4), (0, 0, 3),
    (0, 1, 4 + 2), (17, 0, 0),
])  # fmt: skip
def test_workers_fit_on_machines_one_by_one(cpus, gpus, room):
    nodes = [node(CPU=16, GPU=4), node(CPU=3), node(CPU=5, GPU=2), node(alive=False, CPU=99, GPU=99)]
    assert _room(nodes, cpus, gpus) == room
