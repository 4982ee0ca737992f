"""``report.html`` of a comparison: two runs by layer and by method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    sections = []
    for table in tables:
        mine = [drawing for drawing in drawings if drawing.stem == f"compare_{table.name.removesuffix('_compared')}"]
        sections.append(Section(_TITLES[table.name], (), [_view(table, first, second)], mine, "figures"))
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
