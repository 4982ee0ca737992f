"""What ``evaluate`` and ``ablate`` share: questions from a task or a manifest, and their answers, sample by sample."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ecokv_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ecokv_cli.cli.console import Screen
    from ecokv_cli.models.loading import LoadedModel
    from ecokv_cli.studies.evaluate import EvaluateSettings, Question
    from ecokv_cli.studies.metrics import Metric
    from ecokv_cli.studies.tables import Table

PARTS = ".evaluation-parts"
"""Where finished samples are kept in the run folder until all are done."""

TaskName = Annotated[str | None, typer.Option("--task", help="docqa, the shipped held-out pages.", show_default=False)]
MetricName = Annotated[
    str | None,
    typer.Option(
        "--metric", help="exact, contains, anls, relaxed, vqa or cider.  [default: exact]", show_default=False
    ),
]
Samples = Annotated[
    int | None, typer.Option(help="How many samples.  [default: 100, or the manifest]", min=1, show_default=False)
]
Smallest = Annotated[int, typer.Option(help="docqa: fewest image tokens of a page.", min=64, max=384)]
NewTokens = Annotated[
    int | None,
    typer.Option(
        "--max-new-tokens", help="Most tokens of an answer.  [default: 8 for docqa, else 32]", min=1, show_default=False
    ),
]
KeepGoing = Annotated[bool, typer.Option("--keep-going", help="Go on after a sample that fails; exit 1 at the end.")]


@dataclass(frozen=True)
class Work:
    """Questions to ask, the name of the task, and its metric."""

    questions: Iterator[Question]
    task: str
    metric: Metric
    steps: int


def choose_work(
    task: str | None, manifest: str | None, metric: str | None, samples: int | None, smallest: int,
    steps: int | None, max_pixels: int | None,
) -> Work:  # fmt: skip
    """The shipped task, or the user's manifest."""
    from ecokv_cli.sample.manifest import read_manifest
    from ecokv_cli.sample.names import sample_name
    from ecokv_cli.studies.metrics import find_metric
    from ecokv_cli.studies.tasks import DOCQA_STEPS, TASKS, docqa, questions

    chosen = find_metric(metric or "exact")
    if (task is None) == (manifest is None):
        raise UsageError("give --task docqa or --manifest FILE, one of them")
    if manifest is not None:
        found = read_manifest(manifest)[:samples]
        chosen.check([sample.answers for sample in found], [sample.id for sample in found])
        return Work(questions(list(found), max_pixels), sample_name(manifest), chosen, steps or 32)
    if task not in TASKS:
        raise UsageError(f"--task {task}: unknown, choose {', '.join(TASKS)}, or give --manifest FILE")
    return Work(docqa(samples or 100, smallest), str(task), chosen, steps or DOCQA_STEPS)


def parse_windows(text: str | None) -> list[int] | None:
    """Windows from a comma list."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not part.isascii() or not part.isdigit() or int(part) < 1]
    if wrong:
        raise UsageError(f"--window '{wrong[0]}': a window is a whole number of tokens, 1 or more")
    return list(dict.fromkeys(map(int, parts)))


def gather_answers(
    screen: Screen, loaded: LoadedModel, work: Work, settings: EvaluateSettings, folder: Path, *, keep_going: bool
) -> tuple[Table, dict[str, str]]:
    """Answers of all samples, those of an earlier run included, and the failures."""
    from ecokv_cli.studies.evaluate import ANSWERS, answer, graded
    from ecokv_cli.studies.parts import Parts, Task, tables_codec
    from ecokv_cli.studies.tables import Table

    questions = list(work.questions)
    described = {
        "arms": [(arm.method.name, arm.budget) for arm in settings.arms], "steps": settings.steps,
        "template": settings.template, "model": loaded.info.id, "config": loaded.info.config_sha256,
        "revision": loaded.info.revision, "dtype": str(loaded.model.dtype), "backend": loaded.backend,
        "head_scores": None if settings.head_scores is None else settings.head_scores.tolist(),
    }  # fmt: skip
    parts = Parts(folder / PARTS, described, tables_codec(lambda t: t[0], lambda t: [t]))
    tasks = [Task(q.id, q.identity, partial(answer, loaded, q, settings)) for q in questions]
    with screen.progress() as progress:
        found = parts.gather(tasks, keep_going=keep_going, progress=lambda d, n: progress("samples", d, n))
    if found.reused:
        screen.note(f"{found.reused} of {len(questions)} samples were there already")
    rows = list(itertools.chain.from_iterable(result.rows for result in found.results))
    right = {q.id: q.answers for q in questions}
    return graded(Table("answers", ANSWERS, rows), right, work.metric), found.failed
