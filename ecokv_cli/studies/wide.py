"""Means over samples as a paper shows them: a row per layer, a column per measure, cells ``mean [low, high]``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ecokv_cli.studies.tables import Table
from ecokv_cli.studies.typeset import Numbers, latex, markdown, rounded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ecokv_cli.studies.tables import Value

# A cell such as `0.313 [0.287, 0.340]` with its gap takes 1.15 inches in 8 points (\footnotesize): five of them beside
# a layer fill the 6.5 inches that a page has for text, so nine measures of layers cannot stand in one table.
INTERVALS = 5
"""Measures that stand side by side at most."""


@dataclass(frozen=True)
class Summary:
    """Means over samples, and how they are set.

    Attributes
    ----------
    table
        What `statistics.over_samples` returns.
    sets
        The measures of each table in Markdown and LaTeX, at most `INTERVALS`.
    apart
        Columns whose values have tables of their own, named in the title, so that no table is longer than a page.
    """

    table: Table
    sets: tuple[tuple[str, ...], ...]
    apart: tuple[str, ...] = ("model",)


def wide(summary: Summary) -> Iterator[tuple[str, Table]]:
    """Title and table of every part and set of measures; those without a defined number are left out.

    Measures that are undefined throughout a part have no column there. An interval is left out where there is none,
    for a single sample.
    """
    columns = summary.table.columns
    by = [column for column in columns[: columns.index("measure")] if column not in summary.apart]
    parts: dict[tuple[Value, ...], list[dict[str, Value]]] = {}
    for row in summary.table:
        parts.setdefault(tuple(row[column] for column in summary.apart), []).append(row)
    for key, rows in parts.items():
        for measures in summary.sets:
            chosen = [row for row in rows if row["measure"] in measures]
            if chosen:
                named = zip(summary.apart, key, strict=True)
                what = ", ".join(str(value) if column == "model" else f"{column} {value}" for column, value in named)
                yield f"{what}: {_over(chosen)}", _side_by_side(summary.table.name, chosen, by, measures)


def write_wide(folder: Path, summary: Summary) -> None:
    """Write ``<name>.md`` and ``<name>.tex`` beside the CSV: tables one after the other, each with its title."""
    parts = list(wide(summary))
    texts = {
        "md": "\n".join(f"{title}\n\n{markdown(table, table.columns)}" for title, table in parts),
        "tex": "\n".join(latex(table, table.columns, title=title) for title, table in parts),
    }
    for ending, text in texts.items():
        (folder / f"{summary.table.name}.{ending}").write_text(text, encoding="utf-8")


def _side_by_side(name: str, rows: Sequence[dict[str, Value]], by: Sequence[str], measures: Sequence[str]) -> Table:
    there = {row["measure"] for row in rows}
    shown = [measure for measure in measures if measure in there]
    lines: dict[tuple[Value, ...], dict[str, Value]] = {}
    for row in rows:
        line = lines.setdefault(tuple(row[column] for column in by), dict.fromkeys(shown))
        line[str(row["measure"])] = _cell(row)
    table = Table(name, (*by, *shown))
    for key, line in lines.items():
        table.add(**dict(zip(by, key, strict=True)), **line)
    return table


def _cell(row: dict[str, Value]) -> Numbers:
    mean, low, high = (
        row[end] if row[end] is None else rounded(cast("float", row[end])) for end in ("mean", "low", "high")
    )
    return Numbers(mean if low is None else f"{mean} [{low}, {high}]")


def _over(rows: Sequence[dict[str, Value]]) -> str:
    """What the cells are, and how many samples they are of: not all measures need be defined in all of them."""
    counts = [cast("int", row["n"]) for row in rows]
    fewest, most = min(counts), max(counts)
    if most == 1:
        return "one sample"
    number = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
    return f"mean [95 % interval] over {number} samples"
