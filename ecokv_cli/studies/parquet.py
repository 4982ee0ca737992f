"""Tables as parquet files, written a few samples at a time; needs pyarrow."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import pyarrow as pa

    from ecokv_cli.studies.tables import Table, Value

Kinds = dict[str, set[type]]
"""By column the types of its defined values."""

_CELLS = 100_000
"""Cells of a table that are collected before they are written as a row group."""


def kinds_of(table: Table, kinds: Kinds) -> None:
    """Add the types that occur in a table to those of earlier rows."""
    for column in table.columns:
        kinds.setdefault(column, set()).update(type(row[column]) for row in table if row[column] is not None)


def write_parquet(folder: Path, kinds: Mapping[str, Kinds], tables: Iterable[Table]) -> None:
    """Write ``<name>.parquet`` for every name.

    Parameters
    ----------
    folder
        Where to.
    kinds
        By table what `kinds_of` found over all of them. A column that has texts beside numbers becomes text.
    tables
        All rows, those of one table possibly in several pieces.
    """
    import pyarrow as pa
    from pyarrow import parquet

    schemas = {name: pa.schema([(c, _arrow(each)) for c, each in found.items()]) for name, found in kinds.items()}
    with ExitStack() as files:
        writers = {
            name: files.enter_context(parquet.ParquetWriter(folder / f"{name}.parquet", schema))
            for name, schema in schemas.items()
        }
        begun = set()
        waiting: dict[str, dict[str, list[Value]]] = {name: {c: [] for c in found} for name, found in kinds.items()}

        def write(name: str) -> None:
            begun.add(name)
            writers[name].write_table(pa.table(waiting[name], schemas[name]))
            for values in waiting[name].values():
                values.clear()

        for table in tables:
            columns = waiting[table.name]
            for column, found in kinds[table.name].items():
                columns[column] += _values(table, column, found)
            if sum(map(len, columns.values())) >= _CELLS:
                write(table.name)
        for name, columns in waiting.items():
            if any(columns.values()) or name not in begun:
                write(name)


def _values(table: Table, column: str, kinds: set[type]) -> Iterable[Value]:
    values = [row[column] for row in table]
    return [None if v is None else str(v) for v in values] if {str} < kinds else values


def _arrow(kinds: set[type]) -> pa.DataType:
    import pyarrow as pa

    if str in kinds:
        return pa.string()
    if float in kinds:
        return pa.float64()
    if int in kinds:
        return pa.int64()
    return pa.bool_() if kinds else pa.null()
