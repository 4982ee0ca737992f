"""What ``ecokv ablate`` writes and shows."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from ecokv_cli.cli.ablate_answers import PARTS
from ecokv_cli.cli.console import command_line, table
from ecokv_cli.cli.evaluate_report import describe

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ecokv_cli.cli.ablate import Fitting
    from ecokv_cli.cli.ablate_answers import Gathered
    from ecokv_cli.cli.answering import Work
    from ecokv_cli.cli.common import FigureChoice
    from ecokv_cli.cli.console import Screen
    from ecokv_cli.studies.ablate import Scored
    from ecokv_cli.studies.evaluate import EvaluateSettings
    from ecokv_cli.studies.tables import Table

_PAIRED = ("difference", "difference_low", "difference_high", "p", "n")
_MEAN = ("mean", "low", "high")
_SHOWN = {
    "full_cache": ("budget", "method", *_MEAN, "n"),
    "factorial": ("budget", "window", "booster", "method", *_MEAN, "n"),
    "factorial_effects": ("budget", "effect", *_PAIRED, "reading"),
    "grid_optimum": ("budget", "alpha", "beta", *_MEAN, "wins", "tied", "level", "cells", *_PAIRED, "against"),
}
_VARIANTS = ("budget", "variant", *_MEAN, "difference", "difference_low", "difference_high", "p", "changed", "n")


def report(
    screen: Screen, gathered: Gathered, work: Work, settings: EvaluateSettings, fitting: Fitting,
    folder: Path, figures: FigureChoice, *, seed: int, force: bool,
) -> dict[str, Any]:  # fmt: skip
    """Write tables, figures, summary and the answers to use again; show the tables."""
    from ecokv_cli.dump.writer import fresh_folder
    from ecokv_cli.figures.ablation import draw_ablation
    from ecokv_cli.figures.ablation_report import write_ablation_report
    from ecokv_cli.figures.gallery import save_drawings
    from ecokv_cli.studies.ablate import scored, tables_of
    from ecokv_cli.studies.ablate.kept import write_kept
    from ecokv_cli.studies.accuracy import accuracy_table
    from ecokv_cli.studies.results import write_results
    from ecokv_cli.studies.typeset import write_typeset

    found: dict[str, list[Scored]] = {}
    for experiment, budget, _ in fitting:
        found.setdefault(experiment.name, []).append(scored(gathered.answers, experiment, budget))
    full = accuracy_table(gathered.answers.where(method="full"), {}, seed)
    full.name = "full_cache"
    tables = [full, *(each for one in found.values() for each in tables_of(one, seed))]
    described = describe(work, settings, gathered.answers)
    summary = {
        **described, "settings": {**described["settings"], "seed": seed, "width": figures.width},
        "command": command_line(), "experiments": list(found), "failed": gathered.failed, "notes": notes(found),
        "results": {each.name: each.rows for each in tables},
    }  # fmt: skip
    drawings = draw_ablation(tables, figures.width)
    with fresh_folder(folder, force=force) as unfinished:
        write_results(unfinished, [gathered.answers, *tables], summary)
        for each in tables:
            write_typeset(unfinished, each, each.columns)
        save_drawings(unfinished / "figures", drawings, figures.formats)
        write_ablation_report(unfinished, tables, drawings, summary)
        write_kept(unfinished, gathered.kept)
    shutil.rmtree(folder.parent / PARTS, ignore_errors=True)
    show(screen, tables, work)
    for line in summary["notes"]:
        screen.note(line)
    for sample, reason in gathered.failed.items():
        screen.note(f"{sample}: {reason}")
    return {"run": str(folder.parent), "folder": str(folder), "report": str(folder / "report.html"), **summary}


def notes(found: dict[str, list[Scored]]) -> list[str]:
    """What a reader must know before the numbers: where nothing was told apart."""
    alike: dict[tuple[int, int, float], list[str]] = {}
    for name, several in found.items():
        for one in several:
            if one.alike:
                alike.setdefault((one.budget, len(one.reference), float(one.reference.mean())), []).append(name)
    return [
        f"budget {budget}: arms of {', '.join(experiments)} score alike on every sample (n = {n}, mean {mean:.3f}): "
        + ("what they vary makes no difference here" if 0 < mean < 1 else "try another budget, or harder samples")
        for (budget, n, mean), experiments in alike.items()
    ]


def show(screen: Screen, tables: Sequence[Table], work: Work) -> None:
    """The tables on the screen; of the grid the means alone, as a square."""
    screen.say("intervals: 95 % bootstrap over samples; differences are paired; p by permutation, not corrected")
    for each in tables:
        if each.name == "grid":
            for budget in each.distinct("budget"):
                mine = each.where(budget=budget)
                title = f"grid at budget {budget}, n = {mine.rows[0]['n']} (* best)"
                screen.show(table(title, *square(mine)))
            continue
        title = f"{each.name.replace('_', ' ')}, {work.metric.name}"
        columns = _SHOWN.get(each.name, _VARIANTS)
        screen.show(table(title, columns, [[row[c] for c in columns] for row in each], keys=2))


def square(grid: Table) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows with a line per beta, largest first as in the figure, and a column per alpha."""
    alphas, betas = (sorted(set(grid.numbers(column))) for column in ("alpha", "beta"))
    cells = {(row["alpha"], row["beta"]): f"{row['mean']:.3f}{'*' * bool(row['best'])}" for row in grid}
    columns = ["beta \\ alpha", *(f"{alpha:g}" for alpha in alphas)]
    return columns, [[f"{beta:g}", *(cells[alpha, beta] for alpha in alphas)] for beta in reversed(betas)]
