"""Long-format result tables: what studies return, figures draw and files hold."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

Value = str | int | float | bool | None
Key = tuple[Value, ...]


@dataclass
class Stats:
    """What is known of a column over some rows: how many rows, how many of them with a number, sum and extremes."""

    rows: int = 0
    defined: int = 0
    total: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, value: Value) -> None:
        """Count one row."""
        self.rows += 1
        if isinstance(value, int | float):
            self.defined += 1
            self.total += value
            self.low, self.high = min(self.low, value), max(self.high, value)

    def merge(self, other: Stats) -> None:
        """Count the rows of `other` as well."""
        self.rows += other.rows
        self.defined += other.defined
        self.total += other.total
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)

    @property
    def mean(self) -> float | None:
        """Mean of the defined numbers; None without any."""
        return self.total / self.defined if self.defined else None


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

    def extend(self, shared: Mapping[str, Value], **columns: Sequence[Value]) -> None:
        """Append a row for each entry of `columns`, which are equally long; `shared` is the same in all of them."""
        if {*shared, *columns} != set(self.columns):
            odd = sorted({*shared, *columns} ^ set(self.columns))
            raise ValueError(f"table {self.name}: columns {odd} are missing or unknown")
        # Keys in the order of the columns, values to be replaced.
        row = {c: _clean(shared[c]) if c in shared else None for c in self.columns}
        cleaned = zip(*(map(_clean, column) for column in columns.values()), strict=True)
        self.rows.extend(row | dict(zip(columns, values, strict=True)) for values in cleaned)

    def where(self, **wanted: Value) -> Table:
        """Rows whose columns equal the given values."""
        rows = [row for row in self.rows if all(row[k] == v for k, v in wanted.items())]
        return Table(self.name, self.columns, rows)

    def among(self, column: str, values: Collection[Value]) -> Table:
        """Rows in which a column has one of the given values."""
        return Table(self.name, self.columns, [row for row in self.rows if row[column] in values])

    def distinct(self, column: str) -> list[Value]:
        """The values of a column, each once, in order of appearance."""
        return list(dict.fromkeys(row[column] for row in self.rows))

    def numbers(self, column: str) -> list[float]:
        """The defined numbers of a column, in row order."""
        return [float(v) for row in self.rows if isinstance(v := row[column], int | float)]

    def aggregate(self, by: Iterable[str], value: str, reduce: Callable[[list[float]], float]) -> dict[Key, float]:
        """`reduce` applied to the defined numbers of `value` in each group of equal `by` columns."""
        keys = tuple(by)
        groups: dict[Key, list[float]] = {}
        for row in self.rows:
            number = row[value]
            if isinstance(number, int | float):
                groups.setdefault(tuple(row[k] for k in keys), []).append(float(number))
        return {key: reduce(numbers) for key, numbers in groups.items()}

    def by_sample(self, by: Sequence[str], value: str) -> dict[Key, npt.NDArray[np.float64]]:
        """Mean of a column within each sample, per group: a number per sample, in the order of ``distinct("sample")``.

        It is NaN where a sample has no defined number in the group; groups without any are left out.
        """
        places = {sample: place for place, sample in enumerate(self.distinct("sample"))}
        groups: dict[Key, npt.NDArray[np.float64]] = {}
        for (*key, sample), mean in self.aggregate((*by, "sample"), value, lambda v: float(np.mean(v))).items():
            groups.setdefault(tuple(key), np.full(len(places), np.nan))[places[sample]] = mean
        return groups

    def stats(self, by: Sequence[str], value: str) -> dict[Key, Stats]:
        """Counts, sum and extremes of a column over the rows of all samples, per group of equal `by` columns."""
        groups: dict[Key, Stats] = {}
        for row in self.rows:
            groups.setdefault(tuple(row[k] for k in by), Stats()).add(row[value])
        return groups

    def write_csv(self, folder: Path, *, append: bool = False) -> Path:
        """Write ``<folder>/<name>.csv``; floats with their shortest exact form.

        `append` adds the rows to those of a file that an earlier call began.
        """
        path = folder / f"{self.name}.csv"
        with path.open("a" if append else "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            if file.tell() == 0:
                writer.writeheader()
            writer.writerows(self.rows)
        return path

    @classmethod
    def read_csv(cls, path: Path | str) -> Table:
        """Read a table that `write_csv` wrote."""
        path = Path(path)
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
