"""Workers on a Ray cluster: actors that Ray places, gives devices to and restarts; samples go to whichever is idle."""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
import socket
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ecokv_cli.engines.workers import Outcome, Tell
from ecokv_cli.errors import EcokvError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ecokv_cli.engines.workers import Workers

Item = TypeVar("Item")
Value = TypeVar("Value")

TRIES = 3
"""How often an item is begun before it counts as what kills its workers, and a worker's setup likewise."""

REACH = 10.0
"""Seconds within which somebody must answer at the address of a cluster."""

PATIENCE = 30.0
"""Seconds without any worker before it is said that the cluster has no room."""


@dataclass(frozen=True)
class RayEngine:
    """A pool of Ray actors.

    Attributes
    ----------
    address
        Of a running cluster, ``auto`` for the one on this machine; None takes ``RAY_ADDRESS``, and else starts Ray here
        and stops it at the end.
    workers_wanted
        How many; None for as many as the cluster has room for.
    cpus
        CPUs that each takes.
    gpus
        GPUs that each takes, or a share of one; None for one where the cluster has any and the work can make use of it.
    """

    address: str | None = None
    workers_wanted: int | None = None
    cpus: float = 1
    gpus: float | None = None

    @contextmanager
    def workers(self, setup: Callable[[], Any], tell: Tell, *, device: bool = False) -> Iterator[Workers]:
        """Workers on the cluster, which are ended with the block.

        Raises
        ------
        UsageError
            If Ray is not installed, no cluster is at the address, or it cannot hold a single worker.
        """
        spec = importlib.util.find_spec("ray")
        if spec is None or spec.origin is None:  # a mere folder of that name has no origin
            raise UsageError("--engine ray: needs Ray; pip install 'ecokv-cli[ray]'")
        import ray

        # Nothing is sent to anybody unless the user says so.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        started = not ray.is_initialized()
        if started:
            _require_listener(self.address or os.environ.get("RAY_ADDRESS", ""))
            try:
                ray.init(self.address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                reason = " ".join(str(error).split())[:200]
                raise UsageError(f"--address {self.address}: no Ray cluster to be reached there ({reason})") from None
        actors = []
        try:
            gpus = self.gpus
            if gpus is None:
                gpus = 1.0 if device and ray.cluster_resources().get("GPU") else 0.0
            count = self.workers_wanted or _room(ray.nodes(), self.cpus, gpus)
            if not count:
                raise UsageError(
                    f"--engine ray: no machine of the cluster has {self.cpus:g} CPUs and {gpus:g} GPUs for a worker; "
                    f"give less with --num-cpus-per-worker and --num-gpus-per-worker"
                )
            make = ray.remote(_Actor).options(num_cpus=self.cpus, num_gpus=gpus, max_restarts=-1).remote
            actors = [make(setup, str(Path.cwd())) for _ in range(count)]
            yield RayWorkers(actors, tell)
        finally:
            for actor in actors:
                ray.kill(actor)
            if started:
                ray.shutdown()


def _require_listener(address: str) -> None:
    """Refuse ``HOST:PORT`` where nobody listens: Ray would try for minutes, and some versions then crash."""
    host, _, port = address.rpartition(":")
    if "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"--address {address}: no Ray cluster to be reached there ({error})") from None


def _room(nodes: list[dict[str, Any]], cpus: float, gpus: float) -> int:
    """How many workers fit on the machines that are up; one each if they take nothing."""
    count = 0
    for node in nodes:
        if node["Alive"]:
            have, need = node["Resources"], {"CPU": cpus, "GPU": gpus}
            count += min((int(have.get(name, 0) / amount) for name, amount in need.items() if amount), default=1)
    return count


class _Actor:
    """One worker, in a process of its own; Ray makes it anew where that is lost, and it sets itself up again."""

    def __init__(self, setup: Callable[[], Any], folder: str) -> None:
        self._setup = setup
        self._folder = folder
        self._context: Any = None

    def arrive(self) -> tuple[str, EcokvError | None]:
        """Set up: which process this is, and the error if the setup fails for a reason of ours."""
        where = f"process {os.getpid()} on {platform.node()}"
        try:
            os.chdir(self._folder)
        except OSError as error:
            return where, EcokvError(
                f"{self._folder}: not there on {platform.node()} ({error.strerror}); "
                f"start from a folder that all machines share"
            )
        try:
            self._context = self._setup()
        except EcokvError as error:
            return where, error
        return where, None

    def work(
        self, work: Callable[[Any, Item, Tell], Value], item: Item
    ) -> tuple[Value | None, EcokvError | None, list[str]]:
        """Value, error, and what was said on the way."""
        notes: list[str] = []
        try:
            return work(self._context, item, Tell(note=notes.append)), None, notes
        except EcokvError as error:
            return None, error, notes


class RayWorkers:
    """Actors, of which the idle ones are handed the next item.

    An item whose worker is lost goes to the next idle one rather than with its worker, for which there may be no room
    any more: restarting an actor is Ray's business, and it is handed items again when it is back.
    """

    def __init__(self, actors: list[Any], tell: Tell) -> None:
        self._tell = tell
        self._idle: list[Any] = []
        self._arriving: dict[Any, Any] = {}
        self._where: dict[Any, str] = {}
        for actor in actors:
            self._call_in(actor)

    def ask(self, question: Callable[[Any], Value]) -> Value:
        """What the first worker that is ready answers."""
        (outcome,) = self.run(lambda context, _, __: question(context), {"setup": None})
        return outcome.get()

    def run(self, work: Callable[[Any, Item, Tell], Value], items: Mapping[str, Item]) -> Iterator[Outcome[Value]]:
        """Outcomes in the order in which they come.

        Raises
        ------
        EcokvError
            If a worker's setup fails, or no worker is left.
        """
        import ray

        waiting, flying, lost = deque(items), dict[Any, tuple[Any, str]](), Counter[str]()
        landed: list[Outcome[Value]] = []
        patience: float | None = PATIENCE
        while True:
            while waiting and self._idle:
                actor, name = self._idle.pop(), waiting.popleft()
                flying[actor.work.remote(work, items[name])] = actor, name
            yield from landed  # only now, so that no worker waits while an outcome is looked at
            landed = []
            if not waiting and not flying:
                return
            if not flying and not self._arriving:
                raise EcokvError("no worker is left, as none could be set up; Ray's logs have more on the reason")
            ready, _ = ray.wait([*flying, *self._arriving], timeout=None if flying else patience)
            if not ready:
                self._tell.note("no worker yet: the cluster has no room for one, or its setup takes long; waiting")
                patience = None
            for reference in ready:
                if reference in self._arriving:
                    self._arrived(reference)
                    continue
                actor, name = flying.pop(reference)
                value, error, loss = self._landed(reference, actor)
                if loss:
                    lost[name] += 1
                    if lost[name] < TRIES:
                        self._tell.note(f"{name}: {loss}; it is done again")
                        waiting.appendleft(name)
                        continue
                    error = EcokvError(f"{loss}, as were {TRIES - 1} before; Ray's logs have the reason")
                landed.append(Outcome(name, value, error))

    def _landed(self, reference: Any, actor: Any) -> tuple[Any, EcokvError | None, str]:
        """Value and error of a finished call, or how its worker was lost; the worker is made ready for the next."""
        try:
            value, error, notes = _fetched(reference)
        except _losses() as loss:
            self._call_in(actor)
            return None, None, f"its worker, {self._where[actor]}, was lost ({type(loss).__name__})"
        self._idle.append(actor)
        for note in notes:
            self._tell.note(note)
        return value, error, ""

    def _call_in(self, actor: Any) -> None:
        """Have a new or lost worker set itself up, once Ray has a place for it."""
        self._arriving[actor.arrive.options(max_task_retries=TRIES - 1).remote()] = actor

    def _arrived(self, reference: Any) -> None:
        actor = self._arriving.pop(reference)
        try:
            where, error = _fetched(reference)
        except _losses() as loss:
            reason = str(loss).strip().rpartition("\n")[2][:200]  # Ray ends with what happened on the worker
            self._tell.note(f"a worker cannot be set up ({type(loss).__name__}: {reason}); going on without it")
            return
        if error is not None:
            self._tell.note(f"{where}: cannot be set up")
            raise error
        self._where[actor] = where
        self._idle.append(actor)


def _fetched(reference: Any) -> Any:
    """The value of a finished call; raises what the worker's code raised as if it had been raised here."""
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


def _losses() -> tuple[type[Exception], ...]:
    """Errors of Ray that mean that a worker's process or machine is gone, or cannot be reached."""
    from ray import exceptions

    return (
        exceptions.RayActorError,
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.OutOfMemoryError,
    )
