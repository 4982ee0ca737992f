"""Finished samples of an unfinished study: kept beside the results, so that an interrupted run goes on from there."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ecokv_cli.dump.writer import fresh_folder
from ecokv_cli.errors import EcokvError
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ecokv_cli.dump.reader import Dump

Result = TypeVar("Result")


@dataclass(frozen=True)
class Codec(Generic[Result]):
    """How the result of one sample is written into a folder and read back."""

    write: Callable[[Path, Result], None]
    read: Callable[[Path], Result]


@dataclass(frozen=True)
class Task(Generic[Result]):
    """One sample to work on: a name fit for a folder, all that its result depends on, and the work itself."""

    name: str
    identity: str
    compute: Callable[[], Result]


@dataclass(frozen=True)
class Gathered(Generic[Result]):
    """Results in the order of the samples, how many came from an earlier run, and the failures by sample."""

    results: list[Result]
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
        tasks: Sequence[Task[Result]],
        *,
        keep_going: bool = False,
        progress: Callable[[int, int], None] = lambda *_: None,
    ) -> Gathered[Result]:
        """Run every task whose result is not there yet, storing each at once.

        Parameters
        ----------
        tasks
            One per sample, in order.
        keep_going
            Leave a sample out that fails, and go on.
        progress
            Called with samples done and samples in all.

        Returns
        -------
        Gathered
            Results of the samples that did not fail.

        Raises
        ------
        EcokvError
            The first failure, unless told to keep going; the last one, if every sample failed.
        """
        results: list[Result] = []
        failed: dict[str, str] = {}
        reused = 0
        for done, task in enumerate(tasks, start=1):
            place = self.folder / self._key(task)
            try:
                if place.is_dir():
                    results.append(self.codec.read(place))
                    reused += 1
                else:
                    result = task.compute()
                    self._store(place, result)
                    results.append(result)
            except EcokvError as error:
                if not keep_going or (done == len(tasks) and not results):
                    raise
                failed[task.name] = str(error)
            progress(done, len(tasks))
        return Gathered(results, reused, failed)

    def _store(self, place: Path, result: Result) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with fresh_folder(place, force=False) as partial:
            self.codec.write(partial, result)

    def _key(self, task: Task[Result]) -> str:
        """Sample name and a digest of input and settings."""
        digest = hashlib.sha256(f"{self.settings}\n{task.identity}".encode()).hexdigest()
        return f"{task.name}-{digest[:16]}"


def tables_codec(make: Callable[[list[Table]], Result], tables_of: Callable[[Result], list[Table]]) -> Codec[Result]:
    """Store results that are tables as JSON, which keeps the kind of every value."""

    def write(folder: Path, result: Result) -> None:
        data = [{"name": t.name, "columns": t.columns, "rows": t.rows} for t in tables_of(result)]
        (folder / "tables.json").write_text(json.dumps(data), encoding="utf-8")

    def read(folder: Path) -> Result:
        data = json.loads((folder / "tables.json").read_text(encoding="utf-8"))
        return make([Table(entry["name"], tuple(entry["columns"]), entry["rows"]) for entry in data])

    return Codec(write, read)


def dump_identity(dump: Dump) -> str:
    """What a result depends on in a dump: all of its manifest, checksums included."""
    return json.dumps(dump.manifest.to_json(), sort_keys=True)
