"""A folder of results: tables, ``summary.json`` and whatever the caller draws beside them."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ecokv_cli.errors import DumpError
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ecokv_cli.dump.reader import Dump


@dataclass(frozen=True)
class Results:
    """What one study left in a folder: the summary and, by name, the table it is built on."""

    folder: Path
    summary: dict[str, Any]

    def table(self, name: str) -> Table:
        """Read one table back."""
        return Table.read_csv(self.folder / f"{name}.csv")


def write_results(folder: Path, tables: Sequence[Table], summary: dict[str, Any]) -> None:
    """Write every table as CSV, and as parquet where pyarrow is installed, and ``summary.json``."""
    parquet = importlib.util.find_spec("pyarrow") is not None
    for table in tables:
        table.write_csv(folder)
        if parquet:
            table.write_parquet(folder)
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
    samples: Sequence[Dump], command: str, versions: dict[str, str], settings: dict[str, Any], table: Table
) -> dict[str, Any]:
    """The content of ``summary.json``: command, time, versions, settings, samples and the summary table's rows."""
    return {
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "settings": settings,
        "samples": [_describe(dump) for dump in samples],
        "results": table.rows,
    }


def _describe(dump: Dump) -> dict[str, Any]:
    manifest = dump.manifest
    return {
        "sample": manifest.sample,
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
