"""Finished samples of an unfinished study: kept beside the results, so that an interrupted run goes on from there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from ecokv_cli.dump.writer import fresh_folder
from ecokv_cli.engines.workers import LocalWorkers
from ecokv_cli.errors import DumpError, EcokvError, OutputError
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.engines.workers import Tell, Workers

DIGEST = 16
"""Letters of the digest at the end of a part's name."""
END_IT = "end that one with the command that began it, name another folder with --output, or drop them with --force"
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Codec(Generic[Result]):
    """How the result of one sample is written into a folder and read back."""

    write: Callable[[Path, Result], None]
    read: Callable[[Path], Result]


@dataclass(frozen=True)
class Task(Generic[Item]):
    """One sample to work on: a name fit for a folder, all that its result depends on, and what the work is given."""

    name: str
    identity: str
    item: Item


class Results(Sequence[Result]):
    """Results on the disk, each read when it is asked for and not kept."""

    def __init__(self, places: Sequence[Path], read: Callable[[Path], Result]) -> None:
        self._places = places
        self._read = read

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> Results[Result]: ...
    def __getitem__(self, index: int | slice) -> Result | Results[Result]:
        if isinstance(index, slice):
            return Results(self._places[index], self._read)
        return self._read(self._places[index])


@dataclass(frozen=True)
class Gathered(Generic[Result]):
    """Results in the order of the samples, how many came from an earlier run, and the failures by sample."""

    results: Results[Result]
    reused: int
    failed: dict[str, str]


class Parts(Generic[Result]):
    """A folder of finished samples for one set of settings.

    Parameters
    ----------
    folder
        Where parts live, such as ``<run>/.analysis-parts``.
    settings
        Whatever the results depend on besides the dump; parts of other settings are not used.
    codec
        How to store one result.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], codec: Codec[Result]) -> None:
        self.folder = folder
        self.settings = json.dumps(settings, sort_keys=True, default=str)
        self.codec = codec

    def gather(
        self,
        tasks: Sequence[Task[Item]],
        work: Callable[[Any, Item], Result],
        workers: Workers | None = None,
        *,
        keep_going: bool = False,
        of: int | None = None,
        progress: Callable[[int, int], None] = lambda *_: None,
    ) -> Gathered[Result]:
        """Have every task done whose result is not there yet; a worker stores each at once.

        Parameters
        ----------
        tasks
            One per sample, in order, each with a name of its own.
        work
            Makes a result from a worker's context and the item of a task.
        workers
            Who does it; this process, without a context, if left out.
        keep_going
            Leave a sample out that fails, and go on.
        of
            How many samples the study has, if the tasks are a share of it.
        progress
            Called with samples done and samples in all.

        Returns
        -------
        Gathered
            Results of the samples that did not fail, read from the disk: the same whoever made them, in any order.

        Raises
        ------
        EcokvError
            The first failure, unless told to keep going; the last one, if every sample of the study failed.
        OutputError
            If a worker's result did not arrive in the folder.
        KeyboardInterrupt, SystemExit
            If ended from outside; of several samples, with a note on how many are kept.
        """
        workers = workers or LocalWorkers()
        places = {task.name: self.folder / self.key(task) for task in tasks}
        there = self._names()
        left = {task.name: (places[task.name], task.item) for task in tasks if places[task.name].name not in there}
        reused = done = len(tasks) - len(left)
        failed: dict[str, EcokvError] = {}
        if reused:
            progress(done, len(tasks))
        try:
            for outcome in workers.run(partial(_finish, work=work, write=self.codec.write), left):
                if outcome.error is not None:
                    failed[outcome.name] = outcome.error
                    if not keep_going or len(failed) == (of or len(tasks)):
                        raise outcome.error
                done += 1
                progress(done, len(tasks))
        except (KeyboardInterrupt, SystemExit) as stop:
            if len(tasks) > 1:
                kept = len({place.name for place in places.values()} & self._names())
                stop.add_note(f"{kept} of {len(tasks)} samples are done and kept")
            raise
        good = [places[task.name] for task in tasks if task.name not in failed]
        there = self._names()
        for place in good:
            if place.name not in there:
                raise OutputError(
                    f"{place}: a worker wrote it, but it is not to be seen here; "
                    f"name a folder with --output that all machines share"
                )
        reasons = {task.name: str(failed[task.name]) for task in tasks if task.name in failed}
        return Gathered(Results(good, self.codec.read), reused, reasons)

    def key(self, task: Task[Item]) -> str:
        """Name of a part's folder: that of the sample and a digest of input and settings."""
        digest = hashlib.sha256(f"{self.settings}\n{task.identity}".encode()).hexdigest()
        return f"{task.name}-{digest[:DIGEST]}"

    def require_mine(self, tasks: Sequence[Task[Item]]) -> None:
        """Refuse a folder that holds parts of another study, which would be lost when this one ends.

        Raises
        ------
        OutputError
            If it does, with how many there are.
        """
        others = self._names() - {self.key(task) for task in tasks}
        if others:
            raise OutputError(f"{self.folder} holds {len(others)} samples of another study that did not end; {END_IT}")

    def _names(self) -> set[str]:
        return part_names(self.folder)


def part_names(folder: Path) -> set[str]:
    """Names of the finished parts in a folder."""
    # The folder is listed, as a network file system may remember for a while that a single name was not there.
    # Hidden ones are claims and unfinished work, perhaps of a process that was killed.
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return {name for name in names if not name.startswith(".")}


def require_named(folder: Path, samples: Iterable[str]) -> None:
    """Refuse a folder that holds parts of other samples; what `Parts.require_mine` can tell before settings are known.

    Raises
    ------
    OutputError
        If it does, with how many there are and one of them.
    """
    known = set(samples)
    others = sorted(name for part in part_names(folder) if (name := part[: -DIGEST - 1]) not in known)
    if others:
        raise OutputError(
            f"{folder} holds {len(others)} samples that are not asked for now, such as {others[0]}, of a study that "
            f"did not end; {END_IT}"
        )


def _finish(
    context: Any,
    task: tuple[Path, Item],
    _: Tell,
    *,
    work: Callable[[Any, Item], Result],
    write: Callable[[Path, Result], None],
) -> None:
    """Do one task and store its result, unless a worker that was lost had just done so."""
    place, item = task
    if place.is_dir():
        return
    result = work(context, item)
    place.parent.mkdir(parents=True, exist_ok=True)
    with fresh_folder(place, force=False) as unfinished:
        write(unfinished, result)


def tables_codec(make: Callable[[list[Table]], Result], tables_of: Callable[[Result], list[Table]]) -> Codec[Result]:
    """Store results that are tables as JSON, which keeps the kind of every value."""

    def write(folder: Path, result: Result) -> None:
        data = [{"name": t.name, "columns": t.columns, "rows": t.rows} for t in tables_of(result)]
        (folder / "tables.json").write_text(json.dumps(data), encoding="utf-8")

    def read(folder: Path) -> Result:
        path = folder / "tables.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            tables = [Table(entry["name"], tuple(entry["columns"]), entry["rows"]) for entry in data]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DumpError(f"{path}: cannot be read ({error}); delete {folder} and run its study again") from None
        return make(tables)

    return Codec(write, read)


def dump_identity(dump: Dump) -> str:
    """What a result depends on in a dump: all of its manifest, checksums included."""
    return json.dumps(dump.manifest.to_json(), sort_keys=True)
