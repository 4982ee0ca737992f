"""``ecokv evaluate --explain``: single samples looked at closely, beside or without an evaluation."""

from __future__ import annotations

import difflib
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ecokv_cli.cli.console import command_line, table
from ecokv_cli.cli.evaluate_report import describe
from ecokv_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ecokv_cli.cli.answering import Work
    from ecokv_cli.cli.common import FigureChoice
    from ecokv_cli.cli.console import Screen
    from ecokv_cli.engines.workers import Workers
    from ecokv_cli.eviction.budget import Budget
    from ecokv_cli.studies.evaluate import EvaluateSettings, Question
    from ecokv_cli.studies.explain import Explanation

SHOWN = 10
"""Heads in the table on the screen."""


def find_questions(work: Work, ids: Sequence[str]) -> list[Question]:
    """The questions with these ids, in their order.

    Raises
    ------
    UsageError
        If there is none with that id, with the nearest one.
    """
    wanted, found, known = list(dict.fromkeys(ids)), {}, []
    for question in work.questions:
        known.append(question.id)
        if question.id in wanted:
            found[question.id] = question
            if len(found) == len(wanted):
                break
    for name in wanted:
        if name not in found:
            near = difflib.get_close_matches(name, known, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            raise UsageError(
                f"--explain '{name}': no such sample; {guess}they are {known[0]} to {known[-1]}, {len(known)} in all"
            )
    return [found[name] for name in wanted]


def require_unexplained(folder: Path, questions: Sequence[Question], *, force: bool) -> None:
    """Refuse before any work what may not be replaced."""
    for question in questions:
        place = folder / "explain" / question.id
        if place.exists() and not force:
            raise UsageError(f"{place} exists; add --force to replace it")


def explain_samples(
    screen: Screen, pool: Workers, work: Work, questions: Sequence[Question], settings: EvaluateSettings, folder: Path,
    figures: FigureChoice, *, force: bool,
) -> dict[str, Any]:  # fmt: skip
    """Explain samples into the ``explain`` folder of an evaluation, which may not be there, and renew the report."""
    from ecokv_cli.figures.run_report import write_run_report
    from ecokv_cli.studies.evaluate import answer, graded
    from ecokv_cli.studies.evaluated import with_scores_of
    from ecokv_cli.studies.explain import explain

    explained = []
    with screen.progress() as progress:
        for number, question in enumerate(questions):
            progress("samples", number, len(questions))
            asked = pool.ask(partial(answer, question=question, settings=settings))
            alone = graded(asked, {question.id: question.answers}, work.metric)
            answers, known = with_scores_of(folder / "answers.csv", alone)
            if work.metric.name == "cider" and not known:
                screen.note("cider weighs words by a corpus, so a sample alone scores 0; evaluate all samples first")
            found = pool.ask(partial(explain, question=question, settings=settings, answers=answers))
            explained.append((found, _write(screen, found, work, settings, folder, figures, force=force)))
    report = write_run_report(folder.parent)
    for found, _ in explained:
        _show(screen, found)
    return {"run": str(folder.parent), "report": str(report), "explained": [summary for _, summary in explained]}


def _write(
    screen: Screen, found: Explanation, work: Work, settings: EvaluateSettings, folder: Path, figures: FigureChoice, *,
    force: bool,
) -> dict[str, Any]:  # fmt: skip
    """Tables, figures and summary of one sample; returns the summary."""
    from ecokv_cli.dump.writer import fresh_folder
    from ecokv_cli.figures.gallery import draw_explanation, save_drawings, undrawn
    from ecokv_cli.studies.results import write_results
    from ecokv_cli.studies.typeset import write_typeset

    question, methods = found.question, found.methods
    summary = {
        **describe(work, settings, found.answers), "command": command_line(), "failed": {},
        "sample": {
            "id": question.id, "prompt": question.prompt, "answers": question.answers, "full": found.full,
            "note": found.note, "focus": found.focus,
        },
        "results": methods.rows,
    }  # fmt: skip
    drawings = draw_explanation(found, figures.width, figures.names["explain"])
    for line in filter(None, [found.note, *undrawn("explain", figures.names["explain"], drawings)]):
        screen.note(line)
    with fresh_folder(folder / "explain" / question.id, force=force) as unfinished:
        write_results(unfinished, found.tables, summary)
        write_typeset(unfinished, methods, methods.columns)
        save_drawings(unfinished / "figures", drawings, figures.formats)
    return summary


def _show(screen: Screen, found: Explanation) -> None:
    """Answers beside what was kept, and the heads that lose most."""
    from ecokv_cli.eviction.budget import in_short

    question = found.question
    columns = (
        "budget", "method", "window", "prediction", "score", "kept", "mass", "output_error", "region_kept",
        "region_lost",
    )  # fmt: skip
    rows = [
        ["full" if row["budget"] is None else str(row["budget"]), *(row[c] for c in columns[1:])]
        for row in found.methods
    ]
    title = f"{question.id}: “{question.prompt}” Accepted: {', '.join(question.answers)}. Full cache: “{found.full}”"
    screen.show(table(title, columns, rows, keys=2))
    heads = found.heads
    if not heads.rows or heads.rows[0]["budget"] is None:
        return
    what = "of the attention on the answer's region" if found.focus else "of all attention"
    budget = in_short(cast("Budget", heads.rows[0]["budget"]))
    title = f"heads that lose most {what}, budget {budget}; attention is what there is to lose"
    shown = heads.columns[2:]
    screen.show(table(title, shown, [[row[c] for c in shown] for row in heads.rows[:SHOWN]], keys=2))
