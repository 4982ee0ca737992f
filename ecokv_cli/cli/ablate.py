"""``ecokv ablate``: what the accuracy of a boosted method comes from, one experiment per question."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecokv_cli.cli import answering as a
from ecokv_cli.cli import options as o
from ecokv_cli.cli.console import Screen, guarded
from ecokv_cli.cli.evict import parse_budgets
from ecokv_cli.cli.machines import choose_engine, choose_share, show_shard
from ecokv_cli.errors import EcokvError, MethodError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ecokv_cli.studies.ablate import Experiment
    from ecokv_cli.studies.evaluate import Arm

    Fitting = list[tuple[Experiment, int, tuple[Arm, ...]]]
    """Experiments with the budgets that can hold every one of their arms."""

EXAMPLES = """Examples:

ecokv ablate --task docqa --only factorial --budget 40 --samples 200

ecokv ablate --task docqa --only grid --budget 12 --alpha 0,0.5,1 --beta 0,0.5,1

ecokv ablate --task docqa --budget 16 --window 8,4 -o runs/docqa     all experiments

ecokv ablate --task docqa --budget 40 --only factorial --host adakv --booster mixkv

ecokv ablate --manifest docvqa.jsonl --metric anls -m Qwen/Qwen2-VL-7B-Instruct --budget 64
"""

Only = Annotated[
    str | None,
    typer.Option(
        "--only",
        help="Experiments: factorial, grid, normalisation, std, averaging, redundancy-map, comma-separated.  "
        "[default: all; with another booster than ecokv: factorial]",
        show_default=False,
    ),
]
Host = Annotated[str, typer.Option("--host", help="The method that is boosted, with options in brackets.")]
Booster = Annotated[str, typer.Option("--booster", help="The booster, with options in brackets.")]
Windows = Annotated[str, typer.Option("--window", "-w", help="The two windows of factorial; all else uses the second.")]
Alphas = Annotated[str, typer.Option("--alpha", help="Values of alpha in grid.")]
Betas = Annotated[str, typer.Option("--beta", help="Values of beta in grid.")]
Taus = Annotated[str, typer.Option("--temperature", help="Values of tau in std; 0 stands for sqrt(D).")]


@guarded
def command(
    task: a.TaskName = None,
    manifest: o.ManifestFile = None,
    metric: a.MetricName = None,
    only: Only = None,
    host: Host = "snapkv",
    booster: Booster = "ecokv",
    budget: o.Budgets = None,
    window: Windows = "32,4",
    alpha: Alphas = "0,0.2,0.4,0.6,0.8,1",
    beta: Betas = "0,0.2,0.4,0.6,0.8,1",
    temperature: Taus = "0,4,16",
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
    format_: o.Format = "pdf,png",
    width: o.Width = "double",
    force: o.Force = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    debug: o.Debug = False,  # noqa: ARG001 - read by guarded
) -> None:
    """Tell apart what the accuracy of a boosted method comes from, by decoding on evicted caches as evaluate does.

    factorial crosses window and booster; grid varies alpha and beta; the others vary one option each. Every arm is
    decoded once per sample after one shared prefill, and answers that an earlier ablation left in the run folder are
    used again. All effects come with n and 95 % intervals over samples.
    """
    from ecokv_cli.cli.ablate_answers import FOLDER, gather
    from ecokv_cli.cli.ablate_report import report
    from ecokv_cli.cli.common import FigureChoice
    from ecokv_cli.dump.headscores import read_head_scores
    from ecokv_cli.dump.runs import Run, new_run
    from ecokv_cli.engines.workers import Tell
    from ecokv_cli.models.source import ModelFacts, ModelSource
    from ecokv_cli.studies.evaluate import EvaluateSettings

    screen = Screen(quiet=quiet, verbose=verbose, as_json=json)
    machines = choose_engine(engine, address, workers, num_cpus_per_worker, num_gpus_per_worker)
    figures = FigureChoice.parse(format_, width)
    work = a.choose_work(task, manifest, metric, samples, smallest, max_new_tokens, max_pixels)
    asked: dict[str, Any] = {
        "only": only, "host": host, "booster": booster, "budget": budget or ["64"], "window": window, "alpha": alpha,
        "beta": beta, "temperature": temperature,
    }  # fmt: skip
    fitting = choose_experiments(screen, **asked)
    run = Run(output) if output else new_run(f"ablate-{work.task}")
    folder = run.folder / FOLDER
    if folder.exists() and not force:
        raise UsageError(
            f"{folder} exists; add --force to replace its tables (answers that are there are used again), or choose "
            "another run folder with --output"
        )
    if not output:
        screen.note(f"into {run.folder}; if this is ended early, go on with --output {run.folder}")
    paths = [output] if output else None
    share = choose_share(shard, paths, "ablation", **asked, seed=seed, figures=[format_, width])
    recipe = ModelSource(model, revision, device, dtype, attn_implementation, trust_remote_code)
    with machines.workers(recipe, Tell(note=screen.note), device=True) as pool:
        heads = read_head_scores(head_scores) if head_scores else None
        table_of_heads = heads.for_model(pool.ask(ModelFacts.of).info, str(head_scores)) if heads else None
        settings = EvaluateSettings(every_arm(fitting), work.steps, chat_template, table_of_heads)
        gathered = gather(screen, pool, work, settings, run.folder, keep_going=keep_going, share=share)
    if share:
        done = set(gathered.answers.distinct("sample")) - set(gathered.failed)
        show_shard(screen, run.folder, share, len(done), gathered.failed)
        return
    summary = report(screen, gathered, work, settings, fitting, folder, figures, seed=seed, force=force)
    screen.finish(summary, f"report: {summary['report']}")
    if gathered.failed:
        names = ", ".join(list(gathered.failed)[:5])
        raise EcokvError(f"{len(gathered.failed)} samples failed and are left out: {names}")


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Different numbers from a comma list."""
    try:
        found = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"{option} '{text}': write numbers with commas between, such as 0,0.5,1") from None
    if not all(map(math.isfinite, found)):
        raise UsageError(f"{option} '{text}': the numbers must be finite")
    return found


def two_windows(text: str) -> tuple[int, int]:
    """Both windows of the factorial."""
    found = a.parse_windows(text) or []
    if len(found) != 2:
        raise UsageError(f"--window '{text}': give two different windows, such as 32,4")
    return found[0], found[1]


def choose_experiments(
    screen: Screen, *, only: str | None, host: str, booster: str, budget: Sequence[str], window: str, alpha: str,
    beta: str, temperature: str,
) -> Fitting:  # fmt: skip
    """The experiments and budgets that the options name; says what is left out, and why."""
    from ecokv_cli.eviction.spec import parse_single
    from ecokv_cli.studies.ablate import Ranges, plan

    ranges = Ranges(
        two_windows(window), numbers("--alpha", alpha), numbers("--beta", beta), numbers("--temperature", temperature)
    )
    chosen = [name.strip().lower().replace("_", "-") for name in only.split(",")] if only else []
    experiments = plan(chosen, parse_single(f"{host}+{booster}"), ranges)
    return arms_by_experiment(screen, experiments, parse_budgets(budget))


def every_arm(fitting: Fitting) -> tuple[Arm, ...]:
    """Every arm of all experiments once, the full cache first."""
    from ecokv_cli.eviction.spec import parse_single
    from ecokv_cli.studies.evaluate import Arm

    arms = {(arm.method.name, arm.budget): arm for *_, found in fitting for arm in found}
    return (Arm(parse_single("full"), None), *arms.values())


def arms_by_experiment(screen: Screen, experiments: Sequence[Experiment], budgets: Sequence[int]) -> Fitting:
    """Experiments with the budgets that can hold every one of their arms; says which are left out, and why."""
    from ecokv_cli.studies.evaluate import arms_of

    found, refused = [], []
    for experiment in experiments:
        for budget in budgets:
            try:
                found.append((experiment, budget, arms_of(experiment.methods, [budget])))
            except MethodError as error:
                refused.append((experiment.name, budget, error))
    if not found:
        raise refused[0][2]
    for name, budget, reason in refused:
        screen.note(f"{name} at budget {budget} is left out: {reason}")
    return found
