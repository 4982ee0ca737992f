"""``ecokv evaluate``: answers decoded on evicted caches, as accuracy tables."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecokv_cli.cli import answering as a
from ecokv_cli.cli import options as o
from ecokv_cli.cli.console import Screen, command_line, guarded, table
from ecokv_cli.cli.evict import parse_budgets
from ecokv_cli.errors import EcokvError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from ecokv_cli.studies.evaluate import EvaluateSettings
    from ecokv_cli.studies.tables import Table

EXAMPLES = """Examples:

ecokv evaluate --task docqa --method snapkv --method snapkv+ecokv --budget 64,32 --window 32,4

ecokv evaluate --manifest docvqa.jsonl --metric anls -m Qwen/Qwen2-VL-7B-Instruct -b 256,128,64

ecokv evaluate --task docqa --samples 500 -o runs/docqa     started again it goes on where it was
"""

DEFAULTS = ("full", "random", "snapkv", "snapkv+mixkv", "snapkv+ecokv", "keydiff")

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


@guarded
def command(
    task: a.TaskName = None,
    manifest: o.ManifestFile = None,
    metric: a.MetricName = None,
    method: Methods = None,
    budget: o.Budgets = None,
    window: Windows = None,
    samples: a.Samples = None,
    smallest: a.Smallest = 64,
    max_new_tokens: a.NewTokens = None,
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
    keep_going: a.KeepGoing = False,
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
    work = a.choose_work(task, manifest, metric, samples, smallest, max_new_tokens, max_pixels)
    specs = list(method or DEFAULTS)
    if "full" not in specs:
        specs.insert(0, "full")  # costs and losses are told against it
    methods, budgets, windows = parse_methods(specs), parse_budgets(budget or ["64"]), a.parse_windows(window)
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
    answers, failed = a.gather_answers(screen, loaded, work, settings, run.folder, keep_going=keep_going)
    summary = report(screen, answers, work, settings, folder, seed=seed, failed=failed, force=force)
    screen.finish(summary, f"results: {folder}")
    if failed:
        raise EcokvError(f"{len(failed)} samples failed and are left out: {', '.join(list(failed)[:5])}")


def report(
    screen: Screen, answers: Table, work: a.Work, settings: EvaluateSettings, folder: Path, *, seed: int,
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
    shutil.rmtree(folder.parent / a.PARTS, ignore_errors=True)
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
