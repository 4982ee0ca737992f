"""What ``ecokv evaluate`` writes and shows once all answers are there."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ecokv_cli.cli.answering import PARTS
from ecokv_cli.cli.console import command_line, table

if TYPE_CHECKING:
    from pathlib import Path

    from ecokv_cli.cli.answering import Work
    from ecokv_cli.cli.common import FigureChoice
    from ecokv_cli.cli.console import Screen
    from ecokv_cli.studies.evaluate import EvaluateSettings
    from ecokv_cli.studies.tables import Table

SUMMARY = "summary.json"
"""An evaluation is there when this is; its folder alone may only hold explained samples."""


def report(
    screen: Screen, answers: Table, work: Work, settings: EvaluateSettings, folder: Path, figures: FigureChoice, *,
    seed: int, failed: dict[str, str], force: bool,
) -> dict[str, Any]:  # fmt: skip
    """Write tables, figures and summary, renew the report, and show accuracy and costs."""
    from ecokv_cli.dump.writer import fresh_folder
    from ecokv_cli.figures.gallery import draw_evaluation, save_drawings, undrawn
    from ecokv_cli.figures.run_report import write_run_report
    from ecokv_cli.studies.accuracy import accuracy_table, cost_table, marked, pivot
    from ecokv_cli.studies.evaluate import hosts_of
    from ecokv_cli.studies.results import write_results
    from ecokv_cli.studies.typeset import write_typeset

    accuracy, cost = accuracy_table(answers, hosts_of(settings.arms), seed), cost_table(answers, seed)
    papers, best = pivot(accuracy)
    described = describe(work, settings, answers)
    summary = {
        **described, "settings": {**described["settings"], "seed": seed, "width": figures.width},
        "command": command_line(), "failed": failed, "results": accuracy.rows, "costs": cost.rows,
    }  # fmt: skip
    drawings = draw_evaluation(accuracy, cost, figures.width, figures.names["evaluation"])
    explained = folder / "explain"
    keep = explained.exists() and not (folder / SUMMARY).exists()
    with fresh_folder(folder, force=force or keep) as unfinished:
        write_results(unfinished, [answers, accuracy, cost, marked(papers, best)], summary)
        for each in (accuracy, cost):
            write_typeset(unfinished, each, each.columns)
        write_typeset(unfinished, papers, papers.columns, best)
        save_drawings(unfinished / "figures", drawings, figures.formats)
        if keep:
            shutil.copytree(explained, unfinished / "explain")
    shutil.rmtree(folder.parent / PARTS, ignore_errors=True)
    path = write_run_report(folder.parent)
    show(screen, work, cost, papers, best)
    for line in [f"{sample}: {reason}" for sample, reason in failed.items()]:
        screen.note(line)
    for line in undrawn("evaluation", figures.names["evaluation"], drawings):
        screen.note(line)
    if len({arm.window for arm in settings.arms if arm.budget is not None}) > 1:
        screen.note("windows differ between rows; compare rows of the same window, or give --window W")
    return {"run": str(folder.parent), "folder": str(folder), "report": str(path), **summary}


def describe(work: Work, settings: EvaluateSettings, answers: Table) -> dict[str, Any]:
    """What a summary says of the model, the question asked and the arms."""
    from ecokv_cli.dump.versions import versions

    arms = [arm for arm in settings.arms if arm.budget is not None]
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"), "versions": versions(), "task": work.task,
        "metric": work.metric.name, "reading": work.metric.reading,
        "settings": {
            "model": answers.rows[0]["model"] if len(answers) else None,
            "samples": len(answers.distinct("sample")),
            "methods": list(dict.fromkeys(arm.method.name for arm in settings.arms)),
            "budgets": list(dict.fromkeys(arm.budget for arm in arms)),
            "windows": list(dict.fromkeys(arm.window for arm in arms)),
            "steps": settings.steps, "chat template": settings.template,
        },
    }  # fmt: skip


def show(screen: Screen, work: Work, cost: Table, papers: Table, best: frozenset[tuple[int, str]]) -> None:
    """The tables of an evaluation."""
    from rich.text import Text

    title = (
        f"{work.metric.name} ({work.metric.reading}): mean, 95 % interval over samples, paired difference, p; "
        "* best of a budget"
    )
    marked = [
        [Text(f"{row[c]} *", style="bold") if (i, c) in best else row[c] for c in papers.columns]
        for i, row in enumerate(papers)
    ]
    screen.show(table(title, papers.columns, marked, keys=4))
    columns = (
        "budget", "method", "window", "ledger_bytes", "cache_bytes", "ledger_ratio", "cache_ratio", "peak_ratio",
        "peak_source", "scoring_share", "decode_ratio", "decode_ratio_low", "decode_ratio_high",
    )  # fmt: skip
    rows = [
        ["full" if row["budget"] is None else row["budget"], *(_whole(c, row[c]) for c in columns[1:])] for row in cost
    ]
    screen.show(table("cost beside the full cache", columns, rows, keys=2))


def _whole(column: str, value: Any) -> Any:
    """Mean bytes without decimals."""
    return round(value) if column.endswith("_bytes") else value
