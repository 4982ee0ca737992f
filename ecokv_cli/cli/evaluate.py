"""``ecokv evaluate``: answers decoded on evicted caches, as accuracy tables."""

from __future__ import annotations

from typing import Annotated

import typer

from ecokv_cli.cli import answering as a
from ecokv_cli.cli import options as o
from ecokv_cli.cli.common import FigureChoice
from ecokv_cli.cli.console import Screen, guarded
from ecokv_cli.cli.evaluate_report import SUMMARY, report
from ecokv_cli.cli.evict import choose_budgets
from ecokv_cli.cli.explaining import explain_samples, find_questions, require_unexplained
from ecokv_cli.cli.machines import choose_engine, choose_share, show_shard
from ecokv_cli.errors import EcokvError, UsageError

EXAMPLES = """Examples:

ecokv evaluate --task docqa --method snapkv --method snapkv+ecokv --budget 64,32 --window 32,4

ecokv evaluate --manifest docvqa.jsonl --metric anls -m Qwen/Qwen2-VL-7B-Instruct -b 256,128,64

ecokv evaluate --task docqa --samples 500 -o runs/docqa     started again it goes on where it was

ecokv evaluate --task docqa --samples 500 -o runs/docqa --explain page-0003     why a method failed there
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
Explain = Annotated[
    list[str] | None,
    typer.Option(
        "--explain",
        metavar="SAMPLE",
        help="Look closely at this sample alone (repeat for several): what each head kept of where its answer stands.",
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
    budget_ratio: o.BudgetRatios = None,
    window: Windows = None,
    explain: Explain = None,
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
    engine: o.EngineName = "local",
    address: o.Address = None,
    workers: o.Workers = None,
    num_cpus_per_worker: o.WorkerCpus = None,
    num_gpus_per_worker: o.WorkerGpus = None,
    shard: o.ShardOf = None,
    output: o.Output = None,
    figure_names: o.Figures = "all",
    figure_format: o.Format = "pdf,png",
    width: o.Width = "double",
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
    machines = choose_engine(engine, address, workers, num_cpus_per_worker, num_gpus_per_worker)
    figures = FigureChoice.parse(figure_format, width, figure_names, ("explain" if explain else "evaluation",))
    if shard and explain:
        raise UsageError("--explain looks at single samples; leave --shard out")
    work = a.choose_work(task, manifest, metric, samples, smallest, max_new_tokens, max_pixels)
    specs = list(method or DEFAULTS)
    if "full" not in specs:
        specs.insert(0, "full")  # costs and losses are told against it
    methods, budgets = parse_methods(specs), choose_budgets(budget, budget_ratio)
    windows = a.parse_windows(window)
    from ecokv_cli.studies.evaluate import EvaluateSettings, arms_of, unfit

    arms = arms_of(methods, budgets, windows)
    small = [f"{name} at {size}" for name, size in unfit(methods, budgets, windows)]
    if small:
        screen.note(f"left out, budgets too small for the window: {', '.join(small)}")
    run = Run(output) if output else new_run(f"{'explain' if explain else 'evaluate'}-{work.task}")
    folder = run.folder / "evaluation"
    chosen = find_questions(work, explain) if explain else []
    require_unexplained(folder, chosen, force=force)
    if (folder / SUMMARY).exists() and not force and not explain:
        raise UsageError(f"{folder} exists; add --force to replace it, or choose another run folder with --output")
    if not force and not explain:
        work = a.require_asked(work, run.folder)
    if not output and not explain:
        screen.note(f"into {run.folder}; if this is ended early, go on with --output {run.folder}")
    from ecokv_cli.engines.workers import Tell
    from ecokv_cli.models.source import ModelFacts, ModelSource

    recipe = ModelSource(model, revision, device, dtype, attn_implementation, trust_remote_code)
    share = choose_share(
        shard, [output] if output else None, "evaluation", methods=specs, budgets=budgets, windows=windows, seed=seed,
        figures=[figure_format, width, figure_names],
    )  # fmt: skip
    with machines.workers(recipe, Tell(note=screen.note), device=True) as pool:
        heads = read_head_scores(head_scores) if head_scores else None
        table_of_heads = heads.for_model(pool.ask(ModelFacts.of).info, str(head_scores)) if heads else None
        settings = EvaluateSettings(arms, work.steps, chat_template, table_of_heads)
        if explain:
            found = explain_samples(screen, pool, work, chosen, settings, folder, figures, force=force)
            screen.finish(found, f"report: {found['report']}")
            return
        answers, failed = a.gather_answers(
            screen, pool, work, settings, run.folder, keep_going=keep_going, share=share, alone=not force
        )
    if share:
        show_shard(screen, run.folder, share, len(answers.distinct("sample")), failed)
    else:
        summary = report(screen, answers, work, settings, folder, figures, seed=seed, failed=failed, force=force)
        screen.finish(summary, f"report: {summary['report']}")
    if failed:
        raise EcokvError(f"{len(failed)} samples failed and are left out: {', '.join(list(failed)[:5])}")
