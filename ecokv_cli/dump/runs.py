"""Run folders: ``<run>/dump/<sample>``, ``<run>/analysis``, ``<run>/eviction``, ``<run>/report.html``."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ecokv_cli.dump.claims import claimed, has_leftover
from ecokv_cli.dump.reader import Dump, DumpHandle, open_dump
from ecokv_cli.errors import DumpError, OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

RUNS = Path("ecokv-runs")
"""Where runs go, and are looked for, unless a path is given."""


@dataclass(frozen=True)
class Run:
    """A run folder."""

    folder: Path

    @property
    def dump_folder(self) -> Path:
        """Parent of the sample folders."""
        return self.folder / "dump"

    def sample_folders(self) -> list[Path]:
        """Folders of all samples, by name, whatever they hold.

        Raises
        ------
        DumpError
            If there is none.
        """
        folders = sorted(p for p in self.dump_folder.glob("*") if p.is_dir() and not p.name.startswith("."))
        if not folders:
            raise DumpError(f"{self.folder}: holds no dump; run `ecokv dump` first")
        return folders

    def samples(self) -> list[Dump]:
        """All complete samples, by name.

        Raises
        ------
        DumpError
            If there is none, or one cannot be opened.
        """
        return [open_dump(folder) for folder in self.sample_folders()]

    def handles(self) -> list[DumpHandle]:
        """As `samples`, for runs of any number of them: each is read only when something of it is asked for.

        Raises
        ------
        DumpError
            If there is none; one that cannot be opened raises it when it is asked.
        """
        return [DumpHandle(folder) for folder in self.sample_folders()]


def new_run(sample: str, root: Path = RUNS) -> Run:
    """A fresh run folder name: UTC time and sample name; not yet created."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    base = root / f"{stamp}-{sample}"
    candidate, number = base, 2
    while candidate.exists():
        candidate, number = base.with_name(f"{base.name}-{number}"), number + 1
    return Run(candidate)


def find_run(path: Path | None) -> Run:
    """The run at `path`, or the latest one under ``./ecokv-runs``.

    `path` may be the run, its ``dump`` folder or one sample's folder.

    Raises
    ------
    DumpError
        If there is no run there.
    """
    if path is None:
        runs = [Run(p) for p in RUNS.glob("*") if (p / "dump").is_dir() and any((p / "dump").glob("*/manifest.json"))]
        if not runs:
            raise DumpError(f"no run under ./{RUNS}; run `ecokv dump` first, or name a run folder")
        return max(runs, key=lambda run: (run.dump_folder.stat().st_mtime_ns, run.folder.name))
    for candidate in (path, path.parent, path.parent.parent):
        if (candidate / "dump").is_dir():
            return Run(candidate)
    found = "no such folder" if not path.exists() else "no dump in it"
    raise DumpError(f"{path}: {found}; name a run folder that `ecokv dump` made")


def first_damage(dump: Dump) -> str:
    """What is wrong with the files of a dump, by presence and size; empty if nothing is."""
    for name, size in [(r.file, r.bytes) for r in dump.manifest.layers] + [
        (i.file, None) for i in dump.manifest.images
    ]:
        path = dump.folder / name
        if not path.is_file():
            return f"{name} is missing"
        if size is not None and path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
    return ""


def clear_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Remove what a killed process left beside the samples called `names`; what a running one holds stays."""
    for final in (folder / name for name in names):
        if has_leftover(final):
            with suppress(OutputError), claimed(final):
                pass


def parse_range(text: str, count: int, what: str) -> list[int]:
    """Indices from ``all``, ``0-3,7,-1``; negative numbers count from the end, duplicates merge.

    Raises
    ------
    UsageError
        If a part is not a number or range, runs backwards, or lies outside 0 to ``count - 1``.
    """
    if text.strip().lower() == "all":
        return list(range(count))
    chosen: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(-?\d+)(?:-(-?\d+))?\s*", part)
        if not match:
            raise UsageError(f"--{what} '{part.strip()}' is no number or range; write all, or a list such as 0-3,7,-1")
        first, last = (int(g) if g is not None else None for g in match.groups())
        assert first is not None
        bounds = [b + count if b < 0 else b for b in (first, first if last is None else last)]
        if bounds[0] > bounds[1] or bounds[0] < 0 or bounds[1] >= count:
            raise UsageError(
                f"--{what} {part.strip()}: outside 0 to {count - 1} or backwards; this dump has {count} {what}"
            )
        chosen.update(range(bounds[0], bounds[1] + 1))
    return sorted(chosen)
