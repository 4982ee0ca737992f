"""What ``evaluate`` and ``ablate`` share: questions from a task or a manifest, and their answers, sample by sample."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecokv_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ecokv_cli.cli.console import Screen
    from ecokv_cli.cli.machines import Share
    from ecokv_cli.engines.workers import Workers
    from ecokv_cli.models.loading import LoadedModel
    from ecokv_cli.models.source import ModelFacts
    from ecokv_cli.studies.evaluate import EvaluateSettings, Question
    from ecokv_cli.studies.metrics import Metric
    from ecokv_cli.studies.parts import Codec
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


def require_asked(work: Work, folder: Path) -> Work:
    """The work, refused if the run holds unfinished answers of samples that it does not ask for."""
    from ecokv_cli.studies.parts import require_named

    if not (folder / PARTS).is_dir():
        return work
    questions = list(work.questions)
    require_named(folder / PARTS, (question.id for question in questions))
    return replace(work, questions=iter(questions))


def parse_windows(text: str | None) -> list[int] | None:
    """Windows from a comma list."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not part.isascii() or not part.isdigit() or int(part) < 1]
    if wrong:
        raise UsageError(f"--window '{wrong[0]}': a window is a whole number of tokens, 1 or more")
    return list(dict.fromkeys(map(int, parts)))


def depends_on(facts: ModelFacts, settings: EvaluateSettings) -> dict[str, Any]:
    """What every answer depends on besides its sample and its arm."""
    return {
        "steps": settings.steps, "template": settings.template, "model": facts.info.id,
        "config": facts.info.config_sha256, "weights": facts.info.weights_sha256, "revision": facts.info.revision,
        "dtype": facts.dtype, "backend": facts.backend,
        "head_scores": None if settings.head_scores is None else settings.head_scores.tolist(),
    }  # fmt: skip


def gather_answers(
    screen: Screen, loaded: LoadedModel | Workers, work: Work, settings: EvaluateSettings, folder: Path, *,
    keep_going: bool, share: Share | None = None, of: int | None = None, alone: bool = False,
) -> tuple[Table, dict[str, str]]:  # fmt: skip
    """Answers of all samples, those of an earlier run included, and the failures.

    `loaded` is the model, or workers that have it. Of a `share` the answers are those of its own samples, which stay
    in the folder, and a marker beside them says what it takes to put all shares together. The study has `of` samples
    if these are a part of it. With `alone`, unfinished answers of another study in the folder are refused.
    """
    from ecokv_cli.engines.workers import LocalWorkers, Workers
    from ecokv_cli.models.source import ModelFacts, alike
    from ecokv_cli.studies.evaluate import answer
    from ecokv_cli.studies.parts import Parts, Task
    from ecokv_cli.studies.selecting import require_layers

    questions = list(work.questions)
    workers = loaded if isinstance(loaded, Workers) else LocalWorkers(lambda: loaded)
    facts = workers.ask(ModelFacts.of)
    require_layers((arm.method for arm in settings.arms), facts.info.layers)
    described = {"arms": [(arm.method.name, arm.budget) for arm in settings.arms], **depends_on(facts, settings)}
    parts = Parts(folder / PARTS, described, answers_codec())
    tasks = [Task(q.id, q.identity, q) for q in questions]
    if alone:
        parts.require_mine(tasks)
    mine = share.shard.of(tasks) if share else tasks
    doing = partial(alike, facts=facts, work=partial(answer, settings=settings))
    with screen.progress() as progress:
        found = parts.gather(
            mine, doing, workers, keep_going=keep_going, of=of or len(tasks), progress=partial(progress, "samples")
        )
    if found.reused:
        screen.note(f"{found.reused} of {len(mine)} samples were there already")
    right = {q.id: q.answers for q in questions}
    if share:
        samples = [{"name": t.name, "key": parts.key(t), "answers": right[t.name]} for t in tasks]
        share.leave(folder, samples, {**described, "task": work.task, "metric": work.metric.name}, found.failed)
    return graded_answers(found.results, right, work.metric), found.failed


def answers_codec() -> Codec[Table]:
    """How the answers of a sample are stored."""
    from ecokv_cli.studies.parts import tables_codec

    return tables_codec(lambda tables: tables[0], lambda table: [table])


def graded_answers(results: Iterable[Table], right: Mapping[str, Sequence[str]], metric: Metric) -> Table:
    """The answers of all samples below each other, with their scores."""
    from ecokv_cli.studies.evaluate import ANSWERS, graded
    from ecokv_cli.studies.tables import Table

    rows = list(itertools.chain.from_iterable(result.rows for result in results))
    return graded(Table("answers", ANSWERS, rows), right, metric)
