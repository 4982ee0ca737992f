"""``ecokv ablate``: what the accuracy of a boosted method comes from, one experiment per question."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from ecokv_cli.cli import answering as a
from ecokv_cli.cli import options as o
from ecokv_cli.cli.console import Screen, guarded
from ecokv_cli.cli.evict import parse_budgets
from ecokv_cli.cli.machines import choose_engine
from ecokv_cli.errors import EcokvError, MethodError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ecokv_cli.engines.workers import Workers
    from ecokv_cli.studies.ablate import Experiment
    from ecokv_cli.studies.ablate.kept import Key, Row
    from ecokv_cli.studies.evaluate import Arm, EvaluateSettings
    from ecokv_cli.studies.tables import Table

EXAMPLES = """Examples:

ecokv ablate --task docqa --only factorial --budget 40 --samples 200

ecokv ablate --task docqa --only grid --budget 12 --alpha 0,0.5,1 --beta 0,0.5,1

ecokv ablate --task docqa --budget 16 --window 8,4 -o runs/docqa     all experiments

ecokv ablate --task docqa --budget 40 --only factorial --host adakv --booster mixkv

ecokv ablate --manifest docvqa.jsonl --metric anls -m Qwen/Qwen2-VL-7B-Instruct --budget 64
"""

PARTS = ".ablation"
"""Where the parts of an unfinished ablation are kept, apart from those of an evaluation of the same run."""

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
    from ecokv_cli.cli.ablate_report import report
    from ecokv_cli.cli.common import FigureChoice
    from ecokv_cli.dump.headscores import read_head_scores
    from ecokv_cli.dump.runs import Run, new_run
    from ecokv_cli.engines.workers import Tell
    from ecokv_cli.eviction.spec import parse_single
    from ecokv_cli.models.source import ModelFacts, ModelSource
    from ecokv_cli.studies.ablate import Ranges, plan
    from ecokv_cli.studies.evaluate import Arm, EvaluateSettings

    screen = Screen(quiet=quiet, verbose=verbose, as_json=json)
    machines = choose_engine(engine, address, workers, num_cpus_per_worker, num_gpus_per_worker)
    figures = FigureChoice.parse(format_, width)
    work = a.choose_work(task, manifest, metric, samples, smallest, max_new_tokens, max_pixels)
    ranges = Ranges(
        two_windows(window), numbers("--alpha", alpha), numbers("--beta", beta), numbers("--temperature", temperature)
    )
    chosen = [name.strip().lower().replace("_", "-") for name in only.split(",")] if only else []
    experiments = plan(chosen, parse_single(f"{host}+{booster}"), ranges)
    fitting = arms_by_experiment(screen, experiments, parse_budgets(budget or ["64"]))
    arms = {(arm.method.name, arm.budget): arm for *_, found in fitting for arm in found}
    run = Run(output) if output else new_run(f"ablate-{work.task}")
    folder = run.folder / "ablation"
    if folder.exists() and not force:
        raise UsageError(
            f"{folder} exists; add --force to replace its tables (answers that are there are used again), or choose "
            "another run folder with --output"
        )
    if not output:
        screen.note(f"into {run.folder}; if this is ended early, go on with --output {run.folder}")
    recipe = ModelSource(model, revision, device, dtype, attn_implementation, trust_remote_code)
    with machines.workers(recipe, Tell(note=screen.note), device=True) as pool:
        heads = read_head_scores(head_scores) if head_scores else None
        table_of_heads = heads.for_model(pool.ask(ModelFacts.of).info, str(head_scores)) if heads else None
        every = (Arm(parse_single("full"), None), *arms.values())
        settings = EvaluateSettings(every, work.steps, chat_template, table_of_heads)
        gathered = gather(screen, pool, work, settings, run.folder, keep_going=keep_going)
    asked = [(experiment, size) for experiment, size, _ in fitting]
    summary = report(screen, gathered, work, settings, asked, folder, figures, seed=seed, force=force)
    shutil.rmtree(run.folder / PARTS, ignore_errors=True)
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


def arms_by_experiment(
    screen: Screen, experiments: Sequence[Experiment], budgets: Sequence[int]
) -> list[tuple[Experiment, int, tuple[Arm, ...]]]:
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


@dataclass(frozen=True)
class Gathered:
    """Graded answers of this call's arms; the rows of all calls, to be kept; failures by sample."""

    answers: Table
    kept: dict[Key, Row]
    failed: dict[str, str]


def gather(
    screen: Screen, workers: Workers, work: a.Work, settings: EvaluateSettings, run: Path, *, keep_going: bool
) -> Gathered:
    """Answers of all arms: those of earlier ablations of this run, and what they lack.

    Of a sample all arms that are not there yet are decoded after one prefill, and stored together when the last is
    done; an interrupted ablation goes on from there if it is asked for the same. A finished one keeps its answers by
    sample and arm, so another choice of experiments, budgets or values decodes what is new alone.
    """
    from ecokv_cli.models.source import ModelFacts
    from ecokv_cli.studies.ablate.kept import digest, lacking, read_kept
    from ecokv_cli.studies.evaluate import ANSWERS
    from ecokv_cli.studies.tables import Table

    questions = {question.id: question for question in work.questions}
    depends = a.depends_on(workers.ask(ModelFacts.of), settings)
    digests = {name: digest(depends, name, question.identity) for name, question in questions.items()}
    kept = read_kept(run / "ablation")
    wanted = [(digests[name], arm.method.name, arm.budget) for name in questions for arm in settings.arms]
    if there := sum(key in kept for key in wanted):
        screen.note(f"{there} of {len(wanted)} answers were there already")
    failed: dict[str, str] = {}
    for arms, samples in lacking(kept, digests, settings.arms).items():
        part = replace(work, questions=iter([questions[name] for name in samples]))
        found, failures = a.gather_answers(
            screen, workers, part, replace(settings, arms=arms), run / PARTS, keep_going=keep_going
        )
        failed |= failures
        kept |= {(digests[str(row["sample"])], row["method"], row["budget"]): row for row in found}
    rows = [kept[key] for key in wanted if key in kept]
    right = {name: question.answers for name, question in questions.items()}
    # A metric may look at all answers of an arm together, so scores are given last.
    return Gathered(a.graded_answers([Table("answers", ANSWERS, rows)], right, work.metric), kept, failed)
