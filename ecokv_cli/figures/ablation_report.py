"""``report.html`` of an ablation: a chapter per experiment, with its figure and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ecokv_cli.figures.report import Section, TableView, write_report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ecokv_cli.figures.drawing import Drawing
    from ecokv_cli.studies.tables import Table

_PAIRED = (
    "difference: mean paired difference with the ends of its 95 % bootstrap interval over the n samples; p: two-sided "
    "permutation test, not corrected for the number of rows."
)
_MEAN = "mean: mean score; low and high: ends of its 95 % bootstrap interval over the n samples."
_CAPTIONS = {
    "full_cache": f"The full cache, which nothing was evicted from. {_MEAN}",
    "factorial": f"The four cells. {_MEAN}",
    "factorial_effects": f"What each factor gains, and how far one depends on the other. {_PAIRED}",
    "grid": f"Every cell; wins: how often it has the largest mean when the samples are drawn anew. {_MEAN} {_PAIRED}",
    "grid_optimum": (
        "The cell with the largest mean. tied: cells that share this mean; level: cells that cannot be told from it. "
        f"It is chosen and judged on the same samples, which flatters it. {_MEAN} {_PAIRED}"
    ),
}
_VARIANTS = (
    f"Every variant; changed: samples whose answer differs from that of the method as it is, right or wrong. {_MEAN} "
    f"{_PAIRED}"
)
_LEFT_OUT = ("model", "against")
_ROWS = 60


def write_ablation_report(
    folder: Path, tables: Sequence[Table], drawings: Sequence[Drawing], summary: Mapping[str, Any]
) -> Path:
    """Write ``report.html`` beside the tables of an ablation.

    Parameters
    ----------
    folder
        Where the tables are, and their figures in ``figures``.
    tables, drawings
        From `ablate.tables_of` with ``full_cache`` in front, and from `draw_ablation`.
    summary
        The content of ``summary.json``.

    Returns
    -------
    Path
        The report.
    """
    views = {table.name: _view(table) for table in tables}
    sections = [Section("Full cache", (), [views.pop("full_cache")])]
    for drawing in drawings:
        name = drawing.stem.removeprefix("ablation_")
        mine = [views[table] for table in views if table in (name, f"{name}_effects", f"{name}_optimum")]
        sections.append(Section(drawing.title, (), mine, [drawing], "figures"))
    opening = [
        "One prefill per sample; then every arm evicts and decodes greedily on what is left. Scored by "
        f"{summary['metric']}: {summary['reading']}.",
        *(f"{note[0].upper()}{note[1:]}." for note in summary["notes"]),
    ]
    if summary["failed"]:
        opening.append(f"Left out, as they failed: {', '.join(summary['failed'])}.")
    return write_report(
        folder / "report.html",
        f"Ablation of {summary['settings']['methods'][-1]} on {summary['task']}",
        sections,
        summary=opening,
        settings=summary["settings"],
        versions=summary["versions"],
        command=summary["command"],
    )


def _view(table: Table) -> TableView:
    columns = [column for column in table.columns if column not in _LEFT_OUT]
    return TableView(table, _CAPTIONS.get(table.name, _VARIANTS), columns, _ROWS, f"{table.name}.csv")
