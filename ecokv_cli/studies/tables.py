"""Long-format result tables: what studies return, figures draw and files hold."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Value = str | int | float | bool | None


@dataclass
class Table:
    """Named rows that share one set of columns.

    Undefined numbers are ``None`` (an empty CSV cell), never NaN.
    """

    name: str
    columns: tuple[str, ...]
    rows: list[dict[str, Value]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Value]]:
        return iter(self.rows)

    def add(self, **values: Value) -> None:
        """Append one row; every column must be given, and no other."""
        if values.keys() != set(self.columns):
            odd = sorted(values.keys() ^ set(self.columns))
            raise ValueError(f"table {self.name}: columns {odd} are missing or unknown")
        self.rows.append({c: _clean(values[c]) for c in self.columns})

    def where(self, **wanted: Value) -> Table:
        """Rows whose columns equal the given values."""
        rows = [row for row in self.rows if all(row[k] == v for k, v in wanted.items())]
        return Table(self.name, self.columns, rows)

    def distinct(self, column: str) -> list[Value]:
        """The values of a column, each once, in order of appearance."""
        return list(dict.fromkeys(row[column] for row in self.rows))

    def numbers(self, column: str) -> list[float]:
        """The defined numbers of a column, in row order."""
        return [float(v) for row in self.rows if isinstance(v := row[column], int | float)]

    def aggregate(
        self, by: Iterable[str], value: str, reduce: Callable[[list[float]], float]
    ) -> dict[tuple[Value, ...], float]:
        """`reduce` applied to the defined numbers of `value` in each group of equal `by` columns."""
        keys = tuple(by)
        groups: dict[tuple[Value, ...], list[float]] = {}
        for row in self.rows:
            number = row[value]
            if isinstance(number, int | float):
                groups.setdefault(tuple(row[k] for k in keys), []).append(float(number))
        return {key: reduce(numbers) for key, numbers in groups.items()}

    def write_csv(self, folder: Path) -> Path:
        """Write ``<folder>/<name>.csv``; floats with their shortest exact form."""
        path = folder / f"{self.name}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
        return path

    def write_parquet(self, folder: Path) -> Path:
        """Write ``<folder>/<name>.parquet``; needs pyarrow."""
        import pyarrow as pa
        from pyarrow import parquet

        path = folder / f"{self.name}.parquet"
        columns = {c: [row[c] for row in self.rows] for c in self.columns}
        mixed = {c for c, values in columns.items() if {str} < {type(v) for v in values if v is not None}}
        for column in mixed:
            columns[column] = [None if v is None else str(v) for v in columns[column]]
        parquet.write_table(pa.table(columns), path)
        return path

    @classmethod
    def read_csv(cls, path: Path) -> Table:
        """Read a table that `write_csv` wrote."""
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows: list[dict[str, Value]] = [{k: _parse(v) for k, v in row.items()} for row in reader]
            return cls(path.stem, tuple(reader.fieldnames or ()), rows)


def _parse(text: str) -> Value:
    if text == "":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _clean(value: Value) -> Value:
    return None if isinstance(value, float) and not math.isfinite(value) else value
