"""A folder of results: tables, ``summary.json`` and whatever the caller draws beside them."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from ecokv_cli.errors import DumpError
from ecokv_cli.studies.parquet import kinds_of, write_parquet
from ecokv_cli.studies.sources import run_of, sources
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.studies.parquet import Kinds


@dataclass(frozen=True)
class Results:
    """What one study left in a folder: the summary and, by name, the table it is built on."""

    folder: Path
    summary: dict[str, Any]

    def table(self, name: str) -> Table:
        """Read one table back."""
        return Table.read_csv(self.folder / f"{name}.csv")


class Tabular(Protocol):
    """The result of a study, or of one sample of it."""

    @property
    def tables(self) -> Sequence[Table]:
        """Its tables, each with a name of its own."""
        ...


@dataclass(frozen=True)
class Plain:
    """Tables that stand for themselves."""

    tables: Sequence[Table]


def write_tables(folder: Path, results: Iterable[Tabular]) -> None:
    """Write tables as CSV, and as parquet where pyarrow is installed: the rows of every result below each other.

    Parameters
    ----------
    folder
        Where to; files of the same names must not be there.
    results
        Of one or many samples. Gone through one at a time, and again for parquet, whose columns have one kind from
        the first row on.
    """
    kinds = _write_csv(folder, results)
    if importlib.util.find_spec("pyarrow") is not None:
        write_parquet(folder, kinds, (table for result in results for table in result.tables))


def _write_csv(folder: Path, results: Iterable[Tabular]) -> dict[str, Kinds]:
    """Write every table; returns what kinds of values its columns have."""
    found: dict[str, Kinds] = {}
    for result in results:
        for table in result.tables:
            table.write_csv(folder, append=table.name in found)
            kinds_of(table, found.setdefault(table.name, {}))
    return found


def write_results(folder: Path, tables: Sequence[Table], summary: dict[str, Any]) -> None:
    """Write tables as `write_tables` does, and ``summary.json``."""
    write_tables(folder, [Plain(tables)])
    text = json.dumps(summary, ensure_ascii=True, indent=1)
    (folder / "summary.json").write_text(text + "\n", encoding="utf-8")


def read_results(folder: Path) -> Results | None:
    """Results in `folder`, None if there are none.

    Raises
    ------
    DumpError
        If the summary cannot be read.
    """
    path = folder / "summary.json"
    if not path.is_file():
        return None
    try:
        return Results(folder, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DumpError(f"{path}: cannot be read ({error}); run the analysis again with --force") from None


def summarise(
    samples: Sequence[Dump], home: Path, command: str, versions: dict[str, str], settings: dict[str, Any], table: Table
) -> dict[str, Any]:
    """The content of ``summary.json`` of the run `home`.

    Command, time, versions, settings, where the samples come from, what they are, and the summary table's rows.
    """
    return {
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "settings": settings,
        "dumps": sources(samples, home),
        "samples": [_describe(dump) for dump in samples],
        "results": table.rows,
    }


def _describe(dump: Dump) -> dict[str, Any]:
    manifest = dump.manifest
    return {
        "sample": manifest.sample,
        "run": str(run_of(dump)),
        "model": manifest.model.id,
        "architecture": manifest.model.architecture,
        "tokens": len(manifest.tokens.ids),
        "tokens_by_role": manifest.tokens.by_role(),
        "images": [image.source for image in manifest.images],
        "prompt": manifest.prompt,
        "answer": manifest.decoded.text,
        "held_out_queries": manifest.decoded.fed_back,
        "compute_dtype": manifest.compute_dtype,
        "stored_dtype": manifest.stored_dtype,
        "attention": manifest.attention,
    }
