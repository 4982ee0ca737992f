"""The Ray engine on a cluster of its own on loopback: equal results, a killed worker, a lost machine."""

import os
import signal
import threading
from functools import partial

import pytest

from ecokv_cli.engines.ray_engine import RayEngine
from ecokv_cli.engines.workers import LocalWorkers, Tell
from ecokv_cli.errors import DumpError, ModelError, UsageError

pytest.importorskip("ray")
# Ray leaves the log files of the processes it starts to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback, whatever the machine's own address
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_timeout_ms": "300",
    "RAY_health_check_failure_threshold": "3",
    "OMP_NUM_THREADS": "1",
}
STORE = 80_000_000
"""Bytes of a machine's object store; little goes through it."""


@pytest.fixture(scope="module")
def head():
    """A cluster of one machine with one CPU."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        options = {"num_cpus": 1, "object_store_memory": STORE, "node_ip_address": "127.0.0.1"}
        cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
        yield cluster, options
        cluster.shutdown()


@pytest.fixture
def cluster(head):
    """The cluster with a second machine, which may be removed in the test."""
    found, options = head
    second = found.add_node(**options)
    found.wait_for_nodes()
    yield found
    if second in found.worker_nodes:
        found.remove_node(second)


def halved(context, item, tell):
    if item == 9:
        raise DumpError("9 is too much")
    if item == 13:
        raise ZeroDivisionError("13 is bad luck")
    tell.note(f"{context}: at {item}")
    return item // 2


def test_outcomes_notes_and_errors_come_back_from_the_workers(cluster):
    notes = []
    with RayEngine(cluster.address).workers(lambda: "told", Tell(note=notes.append)) as workers:
        assert workers.ask(len) == 4
        items = {f"n{i}": i for i in range(7, 12)}
        found = {outcome.name: outcome for outcome in workers.run(halved, items)}
        assert {name: outcome.value for name, outcome in found.items() if not outcome.error} == {
            "n7": 3, "n8": 4, "n10": 5, "n11": 5
        }  # fmt: skip
        assert isinstance(found["n9"].error, DumpError)
        assert sorted(notes) == ["told: at 10", "told: at 11", "told: at 7", "told: at 8"]
        assert list(workers.run(halved, {})) == []
        with pytest.raises(ZeroDivisionError, match="bad luck"):
            list(workers.run(halved, {"bad": 13}))


def test_a_setup_that_fails_ends_the_run(cluster):
    def setup():
        raise ModelError("no such model")

    with RayEngine(cluster.address).workers(setup, Tell()) as workers, pytest.raises(ModelError, match="no such model"):
        list(workers.run(halved, {"a": 2}))


def deadly(_, item, __):
    if item == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_an_item_that_kills_its_workers_fails_and_the_others_are_done(cluster):
    notes = []
    with RayEngine(cluster.address).workers(str, Tell(note=notes.append)) as workers:
        found = {outcome.name: outcome for outcome in workers.run(deadly, {str(i): i for i in range(1, 4)})}
    assert (found["1"].value, found["3"].value) == (1, 3)
    assert "was lost" in str(found["2"].error)
    assert "as were 2 before" in str(found["2"].error)
    assert [
        note for note in notes if note.startswith("2: its worker, process ") and "it is done again" in note
    ] == notes
    assert len(notes) == 2


def test_what_the_cluster_has_no_room_for_is_refused(cluster):
    with (
        pytest.raises(UsageError, match="no machine of the cluster has 3 CPUs and 0 GPUs for a worker"),
        RayEngine(cluster.address, cpus=3).workers(str, Tell()),
    ):
        pass


def mortal(context, item, *, work, doomed, folder):
    """Work that on the doomed machine reports its process and stands still, once; elsewhere it waits for that."""
    import ray

    if ray.get_runtime_context().get_node_id() == doomed:
        try:
            (folder / "first").touch(exist_ok=False)
        except FileExistsError:
            return work(context, item)
        (folder / "begun").write_text(f"{os.getpid()} {item.id}")
        (folder / "never").read_text()
    with (folder / "struck").open():
        return work(context, item)


@pytest.mark.parametrize("loss", ["a killed process", "a removed machine"])
def test_tables_are_the_same_when_a_worker_is_lost_in_mid_run(cluster, tmp_path, loss):
    from ecokv_cli.eviction.spec import parse_methods
    from ecokv_cli.models.source import ModelSource
    from ecokv_cli.studies.evaluate import EvaluateSettings, answer, arms_of
    from ecokv_cli.studies.parts import Parts, Task, tables_codec
    from ecokv_cli.studies.tasks import docqa

    settings = EvaluateSettings(arms_of(parse_methods(["full", "snapkv", "keydiff"], 8), [16]), steps=8)
    tasks = [Task(question.id, question.identity, question) for question in docqa(5)]
    work, source = (
        partial(answer, settings=settings),
        ModelSource(None, None, "cpu", "auto", "sdpa", trust_remote_code=False),
    )
    (second,) = cluster.worker_nodes
    for name in ("begun", "never", "struck"):
        os.mkfifo(tmp_path / name)
    told = []

    def strike():
        process, sample = (tmp_path / "begun").read_text().split()
        told.extend([process, sample])
        if loss == "a killed process":
            os.kill(int(process), signal.SIGKILL)
        else:
            cluster.remove_node(second, allow_graceful=False)
        told.append(os.open(tmp_path / "struck", os.O_RDWR))

    striking = threading.Thread(target=strike)
    striking.start()
    notes, codec = [], tables_codec(lambda tables: tables[0], lambda table: [table])
    doing = partial(mortal, work=work, doomed=second.node_id, folder=tmp_path)
    with RayEngine(cluster.address).workers(source, Tell(note=notes.append)) as workers:
        far = Parts(tmp_path / "far", {}, codec).gather(tasks, doing, workers)
    striking.join()
    process, sample, descriptor = told
    os.close(descriptor)
    near = Parts(tmp_path / "near", {}, codec).gather(tasks, work, LocalWorkers(source))
    assert [timeless(table.rows) for table in far.results] == [timeless(table.rows) for table in near.results]
    assert len(notes) == 1
    assert notes[0].startswith(f"{sample}: its worker, process {process} on ")
    assert notes[0].endswith("it is done again")


def timeless(rows):
    return [{name: value for name, value in row.items() if not name.endswith("seconds")} for row in rows]
