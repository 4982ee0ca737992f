"""Analysis and eviction over many samples: resumed where interrupted, failing samples left out if asked."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ecokv_cli.studies.analyze import Analysis, analyze
from ecokv_cli.studies.evict import Eviction, evict
from ecokv_cli.studies.parts import Codec, Parts, Task, dump_identity, tables_codec
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import torch

    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.studies.analyze import AnalyzeSettings
    from ecokv_cli.studies.evict import EvictSettings

Result = TypeVar("Result")


@dataclass(frozen=True)
class Handling:
    """How samples are gone through.

    Attributes
    ----------
    folder
        Where finished samples are kept until the study is complete.
    described
        Whatever the results depend on besides the dump.
    keep_going
        Leave out a sample that fails.
    progress
        Called with samples done and samples in all.
    """

    folder: Path
    described: dict[str, Any]
    keep_going: bool = False
    progress: Callable[[int, int], None] = lambda *_: None


@dataclass(frozen=True)
class Many(Generic[Result]):
    """A study's result over all samples, how many came from an earlier run, and the failures by sample."""

    result: Result
    reused: int
    failed: dict[str, str]


def analyze_many(samples: Sequence[Dump], settings: AnalyzeSettings, how: Handling) -> Many[Analysis]:
    """`analyze` sample by sample."""
    codec: Codec[Analysis] = tables_codec(lambda tables: Analysis(*tables), _tables)
    tasks = [Task(d.manifest.sample, dump_identity(d), partial(analyze, [d], settings)) for d in samples]
    found = Parts(how.folder, how.described, codec).gather(tasks, keep_going=how.keep_going, progress=how.progress)
    return Many(Analysis(*_joined([_tables(each) for each in found.results])), found.reused, found.failed)


def evict_many(samples: Sequence[Dump], settings: EvictSettings, how: Handling) -> Many[Eviction]:
    """`evict` sample by sample."""
    tables = tables_codec(lambda tables: tables, lambda tables: tables)

    def write(folder: Path, result: Eviction) -> None:
        from ecokv_cli.dump.masks import write_masks

        tables.write(folder, _tables(result))
        write_masks(folder, result.masks)

    def read(folder: Path) -> Eviction:
        from ecokv_cli.dump.masks import read_masks

        return _eviction(tables.read(folder), read_masks(folder))

    tasks = [Task(d.manifest.sample, dump_identity(d), partial(evict, [d], settings)) for d in samples]
    parts = Parts(how.folder, how.described, Codec(write, read))
    found = parts.gather(tasks, keep_going=how.keep_going, progress=how.progress)
    masks = {sample: kept for each in found.results for sample, kept in each.masks.items()}
    joined = _joined([_tables(each) for each in found.results])
    return Many(_eviction(joined, masks), found.reused, found.failed)


def _tables(result: Analysis | Eviction) -> list[Table]:
    """The tables among the fields of a result, in their order."""
    return [part for f in fields(result) if isinstance(part := getattr(result, f.name), Table)]


def _eviction(tables: Sequence[Table], masks: dict[str, dict[str, torch.Tensor]]) -> Eviction:
    """The result that has these tables, in the order of its fields."""
    names = [f.name for f in fields(Eviction) if f.name != "masks"]
    parts: dict[str, Any] = dict(zip(names, tables, strict=True))
    return Eviction(**parts, masks=masks)


def _joined(results: Sequence[Sequence[Table]]) -> list[Table]:
    """Table by table, the rows of all samples."""
    return [
        Table(t[0].name, t[0].columns, [row for each in t for row in each.rows]) for t in zip(*results, strict=True)
    ]
