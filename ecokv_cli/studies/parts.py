"""Finished samples of an unfinished study: kept beside the results, so that an interrupted run goes on from there."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ecokv_cli.dump.writer import fresh_folder
from ecokv_cli.errors import EcokvError

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
        samples: Sequence[Dump],
        compute: Callable[[Dump], Result],
        *,
        keep_going: bool = False,
        progress: Callable[[int, int], None] = lambda *_: None,
    ) -> Gathered[Result]:
        """Compute every sample that is not there yet, storing each at once.

        Parameters
        ----------
        samples
            Dumps, in order.
        compute
            Called for each dump without a stored part.
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
        gathered: Gathered[Result] = Gathered([], 0, {})
        reused = 0
        for done, dump in enumerate(samples, start=1):
            place = self.folder / self._key(dump)
            try:
                if place.is_dir():
                    gathered.results.append(self.codec.read(place))
                    reused += 1
                else:
                    result = compute(dump)
                    self._store(place, result)
                    gathered.results.append(result)
            except EcokvError as error:
                if not keep_going or (done == len(samples) and not gathered.results):
                    raise
                gathered.failed[dump.manifest.sample] = str(error)
            progress(done, len(samples))
        return Gathered(gathered.results, reused, gathered.failed)

    def clear(self) -> None:
        """Remove the parts, once the study is written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _store(self, place: Path, result: Result) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with fresh_folder(place, force=False) as partial:
            self.codec.write(partial, result)

    def _key(self, dump: Dump) -> str:
        """Sample name and a digest of dump and settings."""
        manifest = json.dumps(dump.manifest.to_json(), sort_keys=True)
        digest = hashlib.sha256(f"{self.settings}\n{manifest}".encode()).hexdigest()
        return f"{dump.manifest.sample}-{digest[:16]}"
