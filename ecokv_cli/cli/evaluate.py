"""``ecokv evaluate``: answers decoded on evicted caches, as accuracy tables."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecokv_cli.cli import options as o
from ecokv_cli.cli.console import Screen, command_line, guarded, table
from ecokv_cli.cli.evict import parse_budgets
from ecokv_cli.errors import EcokvError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ecokv_cli.models.loading import LoadedModel
    from ecokv_cli.studies.evaluate import EvaluateSettings, Question
    from ecokv_cli.studies.metrics import Metric
    from ecokv_cli.studies.tables import Table

EXAMPLES = """Examples:

ecokv evaluate --task docqa --method snapkv --method snapkv+ecokv --budget 64,32 --window 32,4

ecokv evaluate --manifest docvqa.jsonl --metric anls -m Qwen/Qwen2-VL-7B-Instruct -b 256,128,64

ecokv evaluate --task docqa --samples 500 -o runs/docqa     started again it goes on where it was
"""
PARTS = ".evaluation-parts"
"""Where finished samples are kept in the run folder until all are done."""

DEFAULTS = ("full", "random", "snapkv", "snapkv+mixkv", "snapkv+ecokv", "keydiff")

TaskName = Annotated[str | None, typer.Option("--task", help="docqa, the shipped held-out pages.", show_default=False)]
MetricName = Annotated[
    str | None,
    typer.Option(
        "--metric", help="exact, contains, anls, relaxed, vqa or cider.  [default: exact]", show_default=False
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="host+booster; repeat.  [default: full, random, snapkv, snapkv+mixkv, snapkv+ecokv, keydiff]",
        show_default=False,
    ),
]
Windows = Annotated[
    str | None,
    typer.Option(
        "--window", "-w", help="Windows that every method is run with, such as 32,4; else its own.", show_default=False
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


@guarded
def command(
    task: TaskName = None,
    manifest: o.ManifestFile = None,
    metric: MetricName = None,
    method: Methods = None,
    budget: o.Budgets = None,
    window: Windows = None,
    samples: Samples = None,
    smallest: Smallest = 64,
    max_new_tokens: NewTokens = None,
    head_scores: o.HeadScoresFile = None,
    max_pixels: o.MaxPixels = None,
    chat_template: o.ChatTemplate = True,
    model: o.Model = None,
    revision: o.Revision = None,
    device: o.Device = "auto",
    dtype: o.Dtype = "auto",
    attn_implementation: o.Attention = "sdpa",
    trust_remote_code: o.RemoteCode = False,
    seed: o.Seed = 0,
    keep_going: KeepGoing = False,
    output: o.Output = None,
    force: o.Force = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    debug: o.Debug = False,  # noqa: ARG001 - read by guarded
) -> None:
    """Decode for real on evicted caches and report the accuracy of every method, budget and window.

    One prefill per sample; then each method evicts, and the answer is decoded greedily on what is left, every token at
    its original position. Accuracy comes with 95 % intervals over samples and paired differences to the host.
    """
    from ecokv_cli.dump.headscores import read_head_scores
    from ecokv_cli.dump.runs import Run, new_run
    from ecokv_cli.eviction.spec import parse_methods

    screen = Screen(quiet=quiet, verbose=verbose, as_json=json)
    work = choose_work(task, manifest, metric, samples, smallest, max_new_tokens, max_pixels)
    specs = list(method or DEFAULTS)
    if "full" not in specs:
        specs.insert(0, "full")  # costs and losses are told against it
    methods, budgets, windows = parse_methods(specs), parse_budgets(budget or ["64"]), parse_windows(window)
    from ecokv_cli.studies.evaluate import EvaluateSettings, arms_of

    arms = arms_of(methods, budgets, windows)
    run = Run(output) if output else new_run(f"evaluate-{work.task}")
    folder = run.folder / "evaluation"
    if folder.exists() and not force:
        raise UsageError(f"{folder} exists; add --force to replace it, or choose another run folder with --output")
    if not output:
        screen.note(f"into {run.folder}; if this is ended early, go on with --output {run.folder}")
    from ecokv_cli.models.loading import load_model
    from ecokv_cli.tiny import SHIPPED_MODEL

    loaded = load_model(
        model or str(SHIPPED_MODEL), revision=revision, device=device, dtype=dtype,
        backend=attn_implementation, trust_remote_code=trust_remote_code,
    )  # fmt: skip
    table_of_heads = read_head_scores(head_scores).for_model(loaded.info, str(head_scores)) if head_scores else None
    settings = EvaluateSettings(arms, work.steps, chat_template, table_of_heads)
    answers, failed = gather_answers(screen, loaded, work, settings, run.folder, keep_going=keep_going)
    summary = report(screen, answers, work, settings, folder, seed=seed, failed=failed, force=force)
    screen.finish(summary, f"results: {folder}")
    if failed:
        raise EcokvError(f"{len(failed)} samples failed and are left out: {', '.join(list(failed)[:5])}")


def report(
    screen: Screen, answers: Table, work: Work, settings: EvaluateSettings, folder: Path, *, seed: int,
    failed: dict[str, str], force: bool,
) -> dict[str, Any]:  # fmt: skip
    """Write tables and summary, and show accuracy and costs."""
    from ecokv_cli.dump.versions import versions
    from ecokv_cli.dump.writer import fresh_folder
    from ecokv_cli.studies.accuracy import accuracy_table, cost_table, pivot
    from ecokv_cli.studies.evaluate import hosts_of
    from ecokv_cli.studies.results import write_results
    from ecokv_cli.studies.typeset import write_typeset

    accuracy, cost = accuracy_table(answers, hosts_of(settings.arms), seed), cost_table(answers)
    papers = pivot(accuracy)
    summary = {
        "command": command_line(), "versions": versions(), "task": work.task, "metric": work.metric.name,
        "settings": {"steps": settings.steps, "seed": seed, "chat template": settings.template},
        "failed": failed, "results": accuracy.rows, "costs": cost.rows,
    }  # fmt: skip
    with fresh_folder(folder, force=force) as unfinished:
        write_results(unfinished, [answers, accuracy, cost, papers], summary)
        for each in (accuracy, cost, papers):
            write_typeset(unfinished, each, each.columns)
    shutil.rmtree(folder.parent / PARTS, ignore_errors=True)
    columns = ("budget", "method", "window", "kept", "mean", "low", "high", "n", "difference", "p", "against")
    rows = [["full" if row["budget"] is None else row["budget"], *(row[c] for c in columns[1:])] for row in accuracy]
    title = f"{work.metric.name} ({work.metric.reading}), 95 % intervals over samples"
    screen.show(table(title, columns, rows, keys=2))
    shown = ("budget", "method", "window", "cache_ratio", "scoring_share", "decode_ratio")
    screen.show(table("cost beside the full cache", shown, [[row[c] for c in shown] for row in cost], keys=2))
    for sample, reason in failed.items():
        screen.note(f"{sample}: {reason}")
    if len({arm.window for arm in settings.arms if arm.budget is not None}) > 1:
        screen.note("windows differ between rows; compare rows of the same window, or give --window W")
    return summary
