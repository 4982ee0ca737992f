"""Shares of a study that are worked on apart, such as by the tasks of a Slurm array, and how they are put together."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ecokv_cli.errors import DumpError, OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

Item = TypeVar("Item")

FOLDER = "shards"
"""Where a run keeps what it knows of its shards."""


@dataclass(frozen=True)
class Shard:
    """Every `count`-th sample, from number `index` on; both as a Slurm array numbers its tasks, from 0."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """A shard from ``I/N``.

        Raises
        ------
        UsageError
            If it is not of that form, or I is not within 0 to N - 1.
        """
        found = re.fullmatch(r"([0-9]{1,9})/([1-9][0-9]{0,8})", text.strip())
        if not found:
            raise UsageError(f"--shard '{text}': write I/N, such as 0/8 for the first of eight")
        shard = cls(int(found[1]), int(found[2]))
        if shard.index >= shard.count:
            raise UsageError(
                f"--shard {text}: shards count from 0, so the last is {max(shard.count - 1, 0)}/{shard.count}"
            )
        return shard

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def of(self, items: Sequence[Item]) -> list[Item]:
        """The items that are in this shard, in order."""
        return list(items[self.index :: self.count])


@dataclass(frozen=True)
class Marker:
    """What one shard leaves in its run when it is done.

    Attributes
    ----------
    kind
        Of the results, such as ``evaluation``.
    shard
        Which it is.
    samples
        All samples of the study, also those of other shards, in order: ``name``, ``key`` of the part, and whatever
        else the end needs of them.
    settings
        What all shards must agree on, by name, and what the end needs besides.
    failed
        Samples of this shard that were left out, with the reason.
    """

    kind: str
    shard: Shard
    samples: tuple[dict[str, Any], ...]
    settings: dict[str, Any]
    failed: dict[str, str]


def write_marker(run: Path, marker: Marker) -> None:
    """Keep a marker in the run folder, in place of an earlier one of the same shard."""
    folder = run / FOLDER
    path = folder / f"{marker.kind}-{marker.shard.index}-of-{marker.shard.count}.json"
    partial = folder / f".{path.name}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(asdict(marker), indent=1, default=str) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror}); choose another --output") from error


@dataclass(frozen=True)
class Found:
    """A marker and the run folder it was found in."""

    run: Path
    marker: Marker

    def __str__(self) -> str:
        return f"{self.run}, {self.marker.kind} {self.marker.shard}"


def read_markers(runs: Iterable[Path]) -> dict[str, list[Found]]:
    """All markers in run folders, by kind.

    Raises
    ------
    DumpError
        If a run has none, or one cannot be read.
    """
    found: dict[str, list[Found]] = {}
    for run in dict.fromkeys(runs):
        paths = sorted((run / FOLDER).glob("*.json"))
        if not paths:
            raise DumpError(f"{run}: holds no shard; make them with --shard I/N, or name the folders they were made in")
        for path in paths:
            try:
                data = json.loads(path.read_text(encoding="utf-8"))
                shard, samples = Shard(**data.pop("shard")), tuple(data.pop("samples"))
                marker = Marker(shard=shard, samples=samples, **data)
            except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                raise DumpError(f"{path}: cannot be read as a shard ({error}); make it again") from None
            found.setdefault(marker.kind, []).append(Found(run, marker))
    return found


@dataclass(frozen=True)
class Whole:
    """Shards that make up a study: its samples in order, each with its run and shard, and what all agree on."""

    samples: tuple[dict[str, Any], ...]
    runs: tuple[Path, ...]
    shards: tuple[Shard, ...]
    settings: dict[str, Any]
    failed: dict[str, str]


def whole(found: Sequence[Found]) -> Whole:
    """Check that shards of one kind belong together and that none is missing or there twice.

    Raises
    ------
    OutputError
        Naming the first two that differ, with what they differ in; or those that are missing or there twice.
    """
    first = found[0]
    for other in found[1:]:
        difference = _difference(first.marker, other.marker)
        if difference:
            raise OutputError(f"{other}: {difference} ({first}); only shards of one study can be merged")
    count = first.marker.shard.count
    by_index: dict[int, Found] = {}
    for each in found:
        twice = by_index.setdefault(each.marker.shard.index, each)
        if twice is not each:
            raise OutputError(f"{first.marker.kind} {each.marker.shard} is in {twice.run} and in {each.run}; name one")
    missing = [f"{index}/{count}" for index in range(count) if index not in by_index]
    if missing:
        raise OutputError(
            f"{first.marker.kind}: {len(missing)} of {count} shards are missing: {', '.join(missing[:10])}"
            f"{' ...' if len(missing) > 10 else ''}; run them, or name the folders they are in"
        )
    having = [by_index[number % count] for number in range(len(first.marker.samples))]
    return Whole(
        first.marker.samples,
        tuple(each.run for each in having),
        tuple(each.marker.shard for each in having),
        first.marker.settings,
        {
            sample["name"]: reason
            for sample, each in zip(first.marker.samples, having, strict=True)
            if (reason := each.marker.failed.get(sample["name"])) is not None
        },
    )


def _difference(first: Marker, other: Marker) -> str:
    """The first thing in which two markers differ that they must agree on; empty if there is none."""
    if first.shard.count != other.shard.count:
        return f"one of {other.shard.count} shards, not of {first.shard.count}"
    for name in dict.fromkeys([*first.settings, *other.settings]):
        found, wanted = other.settings.get(name), first.settings.get(name)
        if found != wanted:
            return f"made with {name} {_short(found)}, not {_short(wanted)}"
    if len(first.samples) != len(other.samples):
        return f"made of {len(other.samples)} samples, not of {len(first.samples)}"
    for found, wanted in zip(other.samples, first.samples, strict=True):
        if found != wanted:
            name, other_name = found["name"], wanted["name"]
            if name != other_name:
                return f"made with sample {name}, not {other_name}"
            return f"made with other input for sample {name}"
    return ""


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."


def forget(found: Sequence[Found]) -> None:
    """Remove markers, once what they stand for is put together."""
    for each in found:
        shard = each.marker.shard
        (each.run / FOLDER / f"{each.marker.kind}-{shard.index}-of-{shard.count}.json").unlink(missing_ok=True)
        if not any((each.run / FOLDER).iterdir()):
            (each.run / FOLDER).rmdir()
