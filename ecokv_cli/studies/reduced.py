"""Tables of many samples in the memory of one: means over samples, and per sample only what intervals need."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ecokv_cli.studies.tables import Key, Stats, Table, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    import numpy.typing as npt

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Reduction:
    """What is kept of a table of many samples.

    Attributes
    ----------
    cells
        Columns that tell rows of the result apart, each the mean over all rows of all samples that agree in them.
    level
        Columns that tell groups apart of which every sample's own mean is kept, 8 bytes each: groups of rows whose
        spread is no uncertainty, such as the heads of a layer.
    means, series
        Columns with numbers that are reduced to `cells`, and to `level`.
    first
        Instead of means, the result has the rows of this many samples, the first ones.
    prepare
        What each sample's table goes through before its numbers are taken, see `prepared`.
    """

    cells: tuple[str, ...] = ()
    level: tuple[str, ...] = ()
    means: tuple[str, ...] = ()
    series: tuple[str, ...] = ()
    first: int = 0
    prepare: Callable[[Table], Table] = lambda table: table


@dataclass
class Reduced(Table):
    """A table of many samples. Its rows are means over them, or those of the first samples alone.

    `Table.by_sample`, `Table.stats` and the distinct samples are those of all rows of all samples.

    Attributes
    ----------
    samples
        Names of all samples that have rows.
    first
        Of how many samples the rows are; 0 if they are means.
    level
        Columns of the keys of `present` and `series`.
    present
        Per key a byte for each sample: whether it has rows.
    series
        Per column and key each sample's mean, NaN where it has none.
    stats_of
        Per row what `Table.stats` counts of each column.
    """

    samples: list[Value] = field(default_factory=list)
    first: int = 0
    level: tuple[str, ...] = ()
    present: dict[Key, array[int]] = field(default_factory=dict)
    series: dict[str, dict[Key, array[float]]] = field(default_factory=dict)
    stats_of: list[dict[str, Stats]] = field(default_factory=list)

    def where(self, **wanted: Value) -> Table:
        """Rows whose columns equal the given values; the rows of one sample are a table without the others."""
        if wanted.get("sample") is not None:
            return Table.where(self, **wanted)
        return self._filtered({column: (value,) for column, value in wanted.items()})

    def among(self, column: str, values: Collection[Value]) -> Table:
        """Rows in which a column has one of the given values."""
        return self._filtered({column: values})

    def distinct(self, column: str) -> list[Value]:
        """The values of a column, each once; samples are all that have rows, not those of the rows here."""
        if column != "sample":
            return Table.distinct(self, column)
        return [self.samples[place] for place in self._there()]

    def aggregate(self, by: Iterable[str], value: str, reduce: Callable[[list[float]], float]) -> dict[Key, float]:
        """`reduce` applied to the means over samples of `value` in each group of equal `by` columns."""
        by = tuple(by)
        if "sample" in by:
            raise ValueError(f"table {self.name}: rows are means over samples; use by_sample")
        return Table.aggregate(self, by, value, reduce)

    def by_sample(self, by: Sequence[str], value: str) -> dict[Key, npt.NDArray[np.float64]]:
        """As `Table.by_sample`; `by` must tell all groups of the level apart that are left."""
        if value not in self.series:
            raise ValueError(f"table {self.name}: column {value} is not kept per sample")
        there = self._there()
        groups: dict[Key, npt.NDArray[np.float64]] = {}
        for key, numbers in self.series[value].items():
            group = tuple(dict(zip(self.level, key, strict=True))[column] for column in by)
            if group in groups:
                raise ValueError(f"table {self.name}: {value} is kept per {', '.join(self.level)}, not {', '.join(by)}")
            padded = np.full(len(self.samples), np.nan)
            padded[: len(numbers)] = numbers
            groups[group] = padded[there]
        return groups

    def stats(self, by: Sequence[str], value: str) -> dict[Key, Stats]:
        """As `Table.stats`: over the rows of all samples."""
        groups: dict[Key, Stats] = {}
        for row, counted in zip(self.rows, self.stats_of, strict=True):
            groups.setdefault(tuple(row[k] for k in by), Stats()).merge(counted[value])
        return groups

    def _there(self) -> list[int]:
        """Places of the samples that have rows in any of the groups."""
        flags = list(self.present.values())
        return [i for i in range(len(self.samples)) if any(i < len(each) and each[i] for each in flags)]

    def _filtered(self, wanted: dict[str, Collection[Value]]) -> Reduced:
        chosen = [i for i, row in enumerate(self.rows) if all(row[c] in values for c, values in wanted.items())]
        places = [(self.level.index(c), values) for c, values in wanted.items() if c in self.level]
        whole = len(places) == len(wanted)

        def left(found: dict[Key, Entry]) -> dict[Key, Entry]:
            return {key: entry for key, entry in found.items() if all(key[at] in values for at, values in places)}

        return replace(
            self,
            rows=[self.rows[i] for i in chosen],
            present=left(self.present),
            # Of groups in part nothing is known per sample.
            series={column: left(found) for column, found in self.series.items()} if whole else {},
            stats_of=[self.stats_of[i] for i in chosen] if self.stats_of else [],
        )


class Reducer:
    """Takes the tables of single samples, one after the other, and keeps what the reduction says."""

    def __init__(self, how: Reduction) -> None:
        self._how = how
        self._name = ""
        self._columns: tuple[str, ...] = ()
        self._samples: list[Value] = []
        self._cells: dict[Key, dict[str, Stats]] = {}
        self._rows: list[dict[str, Value]] = []
        self._present: dict[Key, array[int]] = {}
        self._series: dict[str, dict[Key, array[float]]] = {column: {} for column in how.series}

    def add(self, table: Table) -> None:
        """Take in the table of one sample; one without rows counts for nothing."""
        how, ready = self._how, self._how.prepare(table)
        self._name, self._columns = table.name, table.columns if how.first else ready.columns
        if not ready.rows:
            return
        if len(self._samples) < how.first:
            self._rows += table.rows
        self._samples.append(ready.rows[0]["sample"])
        groups: dict[Key, list[dict[str, Value]]] = {}
        for row in ready:
            groups.setdefault(tuple(row[c] for c in how.level), []).append(row)
            if how.cells:
                cell = self._cells.setdefault(tuple(row[c] for c in how.cells), {c: Stats() for c in how.means})
                for column in how.means:
                    cell[column].add(row[column])
        for key, rows in groups.items():
            _put(self._present.setdefault(key, array("b")), len(self._samples), 1, 0)
            for column, found in self._series.items():
                numbers = Table(ready.name, ready.columns, rows).numbers(column)
                if numbers:
                    _put(found.setdefault(key, array("d")), len(self._samples), float(np.mean(numbers)), math.nan)

    def table(self) -> Reduced:
        """What is known after the samples so far."""
        rows = self._rows or [
            dict.fromkeys(self._columns) | dict(zip(self._how.cells, key, strict=True)) | _means(cell)
            for key, cell in self._cells.items()
        ]
        return Reduced(
            self._name, self._columns, rows, self._samples, min(self._how.first, len(self._samples)), self._how.level,
            self._present, self._series, list(self._cells.values()),
        )  # fmt: skip


def prepared(function: Callable[[Table], Table]) -> Callable[[Table], Table]:
    """Let a function of one sample's table return a reduced table as it is: it went through it before."""

    @wraps(function)
    def wrapper(table: Table) -> Table:
        return table if isinstance(table, Reduced) else function(table)

    return wrapper


def _means(cell: dict[str, Stats]) -> dict[str, Value]:
    return {column: stats.mean for column, stats in cell.items()}


def _put(numbers: array[Any], length: int, value: float, gap: float) -> None:
    """Make `value` the last of `length` numbers, with `gap` for those that are missing before it."""
    numbers.extend([gap] * (length - 1 - len(numbers)))
    numbers.append(value)
