"""Analysis and eviction over many samples: resumed where interrupted, failing samples left out if asked.

Nothing here grows with the samples but names and paths: each result is on the disk and read when it is its turn.
"""

from __future__ import annotations

import hashlib
import shutil
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
    from ecokv_cli.engines.workers import Workers
    from ecokv_cli.studies.analyze import AnalyzeSettings
    from ecokv_cli.studies.evict import EvictSettings
    from ecokv_cli.studies.shards import Shard

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
    workers
        Who does the work; this process if left out.
    shard
        Work on this share of the samples alone.
    """

    folder: Path
    described: dict[str, Any]
    keep_going: bool = False
    progress: Callable[[int, int], None] = lambda *_: None
    workers: Workers | None = None
    shard: Shard | None = None


@dataclass(frozen=True)
class Many(Generic[Result]):
    """What a study found.

    Attributes
    ----------
    results
        Of the samples that did not fail, in their order; each is read from the disk whenever it is asked for.
    parts
        By sample the folder it is read from.
    reused
        How many came from an earlier run.
    failed
        The failures by sample.
    samples
        ``name`` and ``key`` of the part of all samples, also of those of other shards.
    """

    results: Sequence[Result]
    parts: dict[str, Path]
    reused: int
    failed: dict[str, str]
    samples: tuple[dict[str, str], ...]


def analyze_many(samples: Sequence[Dump], settings: AnalyzeSettings, how: Handling) -> Many[Analysis]:
    """`analyze` sample by sample."""
    codec: Codec[Analysis] = tables_codec(lambda tables: Analysis(*tables), _tables)
    return _gather(codec, samples, partial(_analyze, settings=settings), how)


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

    return _gather(Codec(write, read), samples, partial(_evict, settings=settings), how)


def keep_masks(found: Many[Eviction], folder: Path) -> None:
    """Write ``kept.safetensors``; of several samples, which may be more than fits in memory, ``kept/<sample>`` each."""
    from ecokv_cli.dump.masks import MASKS

    if len(found.parts) == 1:
        names = dict.fromkeys(found.parts, folder / MASKS)
    else:
        (folder / "kept").mkdir()
        names = {sample: folder / "kept" / f"{sample}.safetensors" for sample in found.parts}
    for sample, part in found.parts.items():
        shutil.copyfile(part / MASKS, names[sample])


def _gather(
    codec: Codec[Result], samples: Sequence[Dump], work: Callable[[None, Dump], Result], how: Handling
) -> Many[Result]:
    parts = Parts(how.folder, how.described, codec)
    tasks = [Task(dump.manifest.sample, _digest(dump_identity(dump)), dump) for dump in samples]
    mine = how.shard.of(tasks) if how.shard else tasks
    found = parts.gather(mine, work, how.workers, keep_going=how.keep_going, of=len(tasks), progress=how.progress)
    places = {task.name: how.folder / parts.key(task) for task in mine if task.name not in found.failed}
    named = tuple({"name": task.name, "key": parts.key(task)} for task in tasks)
    return Many(found.results, places, found.reused, found.failed, named)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _analyze(_: None, dump: Dump, *, settings: AnalyzeSettings) -> Analysis:
    return analyze([dump.opened()], settings)


def _evict(_: None, dump: Dump, *, settings: EvictSettings) -> Eviction:
    return evict([dump.opened()], settings)


def _tables(result: Analysis | Eviction) -> list[Table]:
    """The tables among the fields of a result, in their order."""
    return [part for f in fields(result) if isinstance(part := getattr(result, f.name), Table)]


def _eviction(tables: Sequence[Table], masks: dict[str, dict[str, torch.Tensor]]) -> Eviction:
    """The result that has these tables, in the order of its fields."""
    names = [f.name for f in fields(Eviction) if f.name != "masks"]
    parts: dict[str, Any] = dict(zip(names, tables, strict=True))
    return Eviction(**parts, masks=masks)
