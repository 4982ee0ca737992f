"""The Ray engine on a cluster of its own on loopback: equal results, a killed worker, a lost machine."""

import csv
import importlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from ecokv_cli.engines.ray_engine import RayEngine
from ecokv_cli.engines.workers import LocalWorkers, Tell
from ecokv_cli.errors import DumpError, EcokvError, ModelError, UsageError

pytestmark = [
    # Ray is imported only once its environment is set.
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
    # It leaves the log files of the processes that it starts to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]

ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback, whatever the machine's own address
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_timeout_ms": "300",
    "RAY_health_check_failure_threshold": "3",
    "OMP_NUM_THREADS": "1",
}
SAMPLES = Path(__file__).parents[2] / "sample_inputs" / "samples.jsonl"
STORE = 80_000_000
"""Bytes of a machine's object store; little goes through it."""


MACHINE = {"num_cpus": 1, "object_store_memory": STORE, "node_ip_address": "127.0.0.1"}


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two machines with one CPU each, the first of which says that it has two GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        from ray import cloudpickle
        from ray.cluster_utils import Cluster

        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file
        made = Cluster(initialize_head=True, head_node_args={**MACHINE, "num_gpus": 2, "include_dashboard": False})
        made.add_node(**MACHINE)
        made.wait_for_nodes()
        yield made
        made.shutdown()


@pytest.fixture(scope="module")
def source():
    from ecokv_cli.models.source import ModelSource

    return ModelSource(None, None, "cpu", "auto", "sdpa", trust_remote_code=False)


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


def test_an_address_where_nobody_listens_is_refused(monkeypatch):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(UsageError, match=f"--address {address}: no Ray cluster .* refused"):
            RayEngine(address).workers(str, Tell()).__enter__()
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(UsageError, match=f"--address {address}: no Ray cluster .* refused"):
            RayEngine().workers(str, Tell()).__enter__()


def met(context, meet, tell):
    return context, meet()


def test_every_worker_has_a_device_of_its_own(cluster, tmp_path):
    os.mkfifo(tmp_path / "door")
    # Neither gets through before the other is there.
    meet = {"in": (tmp_path / "door").read_bytes, "out": partial((tmp_path / "door").write_bytes, b"")}
    with RayEngine(cluster.address, cpus=0.5).workers(visible_device, Tell(), device=True) as workers:
        assert len(workers._arriving) == 2
        found = sorted(outcome.get()[0] for outcome in workers.run(met, meet))
    assert found == ["0", "1"]


def visible_device():
    return os.environ["CUDA_VISIBLE_DEVICES"]


class FromElsewhere:
    """A setup that a worker cannot even read, as where ecokv is not installed on its machine."""

    def __reduce__(self):
        return importlib.import_module, ("not_installed_there",)


def test_without_any_worker_the_run_ends_and_says_why(cluster):
    notes = []
    engine = RayEngine(cluster.address, workers_wanted=1)
    with (
        engine.workers(FromElsewhere(), Tell(note=notes.append)) as workers,
        pytest.raises(EcokvError, match="no worker is left"),
    ):
        list(workers.run(halved, {"a": 2}))
    assert len(notes) == 1
    assert "No module named 'not_installed_there'" in notes[0]


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


@pytest.fixture(scope="module")
def study(source, tmp_path_factory):
    """Tasks with a model, the work, how it is stored, and what this process makes of them."""
    from ecokv_cli.eviction.spec import parse_methods
    from ecokv_cli.studies.evaluate import EvaluateSettings, answer, arms_of
    from ecokv_cli.studies.parts import Parts, Task, tables_codec
    from ecokv_cli.studies.tasks import docqa

    settings = EvaluateSettings(arms_of(parse_methods(["full", "snapkv", "keydiff"], 8), [16]), steps=8)
    tasks = [Task(question.id, question.identity, question) for question in docqa(5)]
    work, codec = partial(answer, settings=settings), tables_codec(lambda tables: tables[0], lambda table: [table])
    here = Parts(tmp_path_factory.mktemp("local"), {}, codec).gather(tasks, work, LocalWorkers(source))
    return tasks, work, codec, timeless(here.results)


def timeless(tables):
    return [[without_times(row) for row in table.rows] for table in tables]


@pytest.mark.parametrize("loss", ["a killed process", "a removed machine"])
def test_tables_are_the_same_when_a_worker_is_lost_in_mid_run(cluster, source, study, tmp_path, loss):
    from ecokv_cli.studies.parts import Parts

    tasks, work, codec, expected = study
    (second,) = cluster.worker_nodes
    for name in ("begun", "never", "struck"):
        os.mkfifo(tmp_path / name)
    told = []

    def strike():
        told.extend((tmp_path / "begun").read_text().split())
        if loss == "a killed process":
            os.kill(int(told[0]), signal.SIGKILL)
        else:
            cluster.remove_node(second, allow_graceful=False)
        told.append(os.open(tmp_path / "struck", os.O_RDWR))

    striking = threading.Thread(target=strike, daemon=True)
    striking.start()
    notes = []
    doing = partial(mortal, work=work, doomed=second.node_id, folder=tmp_path)
    with RayEngine(cluster.address).workers(source, Tell(note=notes.append)) as workers:
        found = Parts(tmp_path / "parts", {}, codec).gather(tasks, doing, workers)
    striking.join()
    process, sample, descriptor = told
    os.close(descriptor)
    if second not in cluster.worker_nodes:
        cluster.add_node(**MACHINE)
    assert timeless(found.results) == expected
    assert len(notes) == 1
    assert notes[0].startswith(f"{sample}: its worker, process {process} on ")
    assert notes[0].endswith("it is done again")


@pytest.fixture
def ecokv(tmp_path, monkeypatch, capsys):
    """Run the command in this process and in an empty folder; returns what it said on stderr."""
    from ecokv_cli.cli.main import app

    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["ecokv", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as leaving:
            app()
        err = capsys.readouterr().err
        assert not leaving.value.code, err
        return err

    return run


def contents(folder):
    """Everything that a run holds, without times, the command that was given, and what is made of these."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if path.stem in ("cost", "report", "summary") or name == "ablation/answers.json" or path.suffix == ".parquet":
            continue  # costs and reports tell times; the other two repeat tables
        if path.name == "manifest.json":
            told = json.loads(path.read_text())
            found[name] = {key: value for key, value in told.items() if key not in ("created", "seconds", "command")}
        elif path.name == "answers.csv":
            found[name] = list(map(without_times, csv.DictReader(path.read_text().splitlines())))
        else:
            found[name] = path.read_bytes()
    return found


COMMANDS = {
    "dump": "dump --manifest samples.jsonl --decode 3 -o {run}",
    "analysis": "analyze {run} --figures none",
    "eviction": "evict {run} --method snapkv --method keydiff -b 40 --figures none",
    "head-scores.json": "headscores {run} -o {run}/head-scores.json",
    "evaluation": "evaluate --manifest samples.jsonl --method snapkv -b 40 --figures none -o {run}",
    "ablation": "ablate --manifest samples.jsonl --only averaging -b 40 --format png --width single -o {run}",
}
"""By what they leave in the run."""


def test_the_commands_write_the_same_with_either_engine_and_go_on_from_each_other(
    cluster, ecokv, tmp_path, monkeypatch
):
    samples = SAMPLES.read_text().splitlines()[1:3]
    Path("samples.jsonl").write_text("\n".join(samples))
    for sample in samples:
        shutil.copy(SAMPLES.with_name(json.loads(sample)["image"]), tmp_path)
    ray = ("--engine", "ray", "--address", cluster.address, "--workers", "1")
    ecokv(*COMMANDS["dump"].format(run="far").split(), "--limit", "1")
    for made, line in COMMANDS.items():
        ecokv(*line.format(run="near").split())
        with monkeypatch.context() as patch:
            patch.delattr(LocalWorkers, "run")  # nothing is done in this process
            said = ecokv(*line.format(run="far").split(), *ray)
        assert ("1 of 2 already there" in said) == (made == "dump"), made
    near = contents(tmp_path / "near")
    assert {name.partition("/")[0] for name in near} == set(COMMANDS)
    assert len(near["evaluation/answers.csv"]) == 2 * 2
    assert len(near["ablation/answers.csv"]) == 2 * 3
    assert contents(tmp_path / "far") == near


def without_times(row):
    return {name: value for name, value in row.items() if not name.endswith("seconds")}
