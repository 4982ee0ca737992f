"""``report.html`` of a comparison: two runs by layer and by method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ecokv_cli.figures.parts import counted
from ecokv_cli.figures.report import Section, TableView, write_report
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ecokv_cli.figures.drawing import Drawing

_TITLES = {"layers_compared": "By layer", "methods_compared": "By method"}
_ROWS = 100


def write_compare_report(
    folder: Path, tables: Sequence[Table], drawings: Sequence[Drawing], summary: Mapping[str, Any]
) -> Path:
    """Write ``report.html`` beside the tables of a comparison.

    Parameters
    ----------
    folder
        Where the tables are, and their figures in ``figures``.
    tables, drawings
        ``layers_compared``, ``methods_compared`` or both, and the figures of either.
    summary
        The content of ``summary.json``.

    Returns
    -------
    Path
        The report.
    """
    first, second = summary["first"], summary["second"]
    sections = [_runs(summary["runs"], first, second)]
    for table in tables:
        mine = [drawing for drawing in drawings if drawing.stem == f"compare_{table.name.removesuffix('_compared')}"]
        text = [_pairing(summary["samples"][table.name])]
        sections.append(Section(_TITLES[table.name], text, [_view(table, first, second)], mine, "figures"))
    return write_report(
        folder / "report.html",
        f"{first} compared with {second}",
        sections,
        summary=[
            f"First is {first}, second is {second}; differences are second minus first, taken per sample where "
            "both runs have the same samples, which removes what the samples have in common, and between the means "
            "otherwise."
        ],
        settings=summary["settings"],
        versions=summary["versions"],
        command=summary["command"],
    )


def _runs(runs: Mapping[str, Mapping[str, Any]], first: str, second: str) -> Section:
    """What is the same in both runs as a sentence, and what differs as a table."""
    same = "; ".join(f"{name} {_told(value)}" for name, value in runs["same"].items())
    text = [f"The same in both: {same}."] if same else []
    if not runs["different"]:
        text.append("Nothing that is recorded differs.")
    table = Table("runs", ("setting", "first", "second"))
    for name, (one, other) in runs["different"].items():
        table.add(setting=name, first=_told(one), second=_told(other))
    views = [TableView(table, f"Where {first} (first) and {second} (second) differ.", (), _ROWS)] if table.rows else []
    return Section("The two runs", text, views)


def _told(value: object) -> str:
    return "–" if value is None else str(value)


def _pairing(samples: Mapping[str, int]) -> str:
    """Whether samples are compared with themselves, and how many."""
    first, second, shared, changed = (samples[name] for name in ("first", "second", "shared", "changed"))
    held = f"the first run has {counted(first, 'sample')}, the second {second:,}"
    if shared < 2:
        common = "a single sample" if shared else "no sample"
        return f"Not paired: {held}, and {common} has the same name in both. Means over all of each run are compared."
    told = f"Paired over {shared:,} shared samples: {held}; those of the same name are compared, each with itself."
    if changed:
        told += f" Of these {changed:,} have another prompt or other images in the second run."
    return told


def _view(table: Table, first: str, second: str) -> TableView:
    """Methods, or measures over all layers; the figure and the file have every layer."""
    columns = tuple(column for column in table.columns if column != "layer")
    rows = [row for row in table if row.get("layer") is None]
    over = "all layers and " if "layer" in table.columns else ""
    caption = (
        f"Means over {over}the samples of {first} (first) and {second} (second), their difference, and low and high, "
        "the ends of its 95 % bootstrap interval over samples. If that leaves out 0 the runs differ by more than the "
        "choice of samples explains; of many intervals one in twenty does so by chance. paired: the difference is "
        "taken per sample."
    )
    return TableView(Table(table.name, columns, rows), caption, (), _ROWS, f"{table.name}.csv")
