"""``ecokv merge``: shards of a study put together."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecokv_cli.cli import options as o
from ecokv_cli.cli.console import Screen, guarded
from ecokv_cli.errors import DumpError, EcokvError, UsageError

if TYPE_CHECKING:
    from ecokv_cli.cli.common import FigureChoice
    from ecokv_cli.studies.shards import Whole

EXAMPLES = """Examples:

ecokv merge runs/docvqa                        all shards wrote into one folder, which now becomes whole

ecokv merge runs/shard-* -o runs/docvqa        each shard has a folder of its own
"""

Runs = Annotated[list[Path], typer.Argument(help="Run folders with shards.", show_default=False)]
Into = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Run folder of the whole.  [default: the first]", rich_help_panel=o.OUTPUT,
        show_default=False,
    ),
]  # fmt: skip


def merge_dump(_: Screen, out: Path, whole: Whole, *, force: bool) -> dict[str, Any]:
    """All dumps in one run folder; files are linked where the disk allows it, and copied elsewhere."""
    from ecokv_cli.dump.reader import open_dump
    from ecokv_cli.dump.runs import Run, first_damage
    from ecokv_cli.dump.writer import fresh_folder

    there = [
        (Run(run).dump_folder / sample["name"], Run(out).dump_folder / sample["name"])
        for sample, run in zip(whole.samples, whole.runs, strict=True)
        if sample["name"] not in whole.failed
    ]
    for source, _target in there:
        damage = first_damage(open_dump(source))
        if damage:
            raise DumpError(f"{source}: {damage}; run its shard again")
    for source, target in there:
        if source.resolve() != target.resolve():
            with fresh_folder(target, force=force) as unfinished:
                for path in source.iterdir():
                    _link(path, unfinished / path.name)
    return {"folder": str(Run(out).dump_folder), "samples": len(there), "failed": whole.failed}


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def merge_evaluation(screen: Screen, out: Path, whole: Whole, *, force: bool) -> dict[str, Any]:
    """Tables, figures and report of an evaluation, from the answers that its shards left."""
    from ecokv_cli.cli.answering import PARTS, Work, answers_codec, graded_answers
    from ecokv_cli.cli.evaluate_report import report
    from ecokv_cli.eviction.spec import parse_methods
    from ecokv_cli.studies.evaluate import EvaluateSettings, arms_of
    from ecokv_cli.studies.metrics import find_metric

    told = whole.settings
    metric = find_metric(told["metric"])
    arms = arms_of(parse_methods(told["methods"]), told["budgets"], told["windows"])
    figures = _figures(told, "evaluation")
    places = _parts(whole, PARTS)
    if not places:
        sample, reason = next(iter(whole.failed.items()))
        raise EcokvError(f"evaluation: all {len(whole.samples)} samples failed, {sample}: {reason}")
    right = {sample["name"]: sample["answers"] for sample in whole.samples}
    answers = graded_answers(map(answers_codec().read, places), right, metric)
    work = Work(iter(()), told["task"], metric, told["steps"])
    settings = EvaluateSettings(arms, told["steps"], told["template"])
    return report(
        screen,
        answers,
        work,
        settings,
        out / "evaluation",
        figures,
        seed=told["seed"],
        failed=whole.failed,
        force=force,
    )


def merge_ablation(screen: Screen, out: Path, whole: Whole, *, force: bool) -> dict[str, Any]:
    """Tables, figures and report of an ablation, from the answers that its shards left."""
    from ecokv_cli.cli.ablate import choose_experiments, every_arm
    from ecokv_cli.cli.ablate_answers import FOLDER, put_together
    from ecokv_cli.cli.ablate_report import report
    from ecokv_cli.cli.answering import Work
    from ecokv_cli.cli.common import FigureChoice
    from ecokv_cli.studies.evaluate import EvaluateSettings
    from ecokv_cli.studies.metrics import find_metric

    told = whole.settings
    options = ("only", "host", "booster", "budget", "window", "alpha", "beta", "temperature")
    fitting = choose_experiments(screen, **{name: told[name] for name in options})
    settings = EvaluateSettings(every_arm(fitting), told["steps"], told["template"])
    work = Work(iter(()), told["task"], find_metric(told["metric"]), told["steps"])
    gathered = put_together(whole, work, settings.arms, out)
    figures = FigureChoice.parse(*told["figures"])
    return report(screen, gathered, work, settings, fitting, out / FOLDER, figures, seed=told["seed"], force=force)


def merge_analysis(screen: Screen, out: Path, whole: Whole, *, force: bool) -> dict[str, Any]:
    """Tables, figures and report of an analysis, from the parts that its shards left."""
    from ecokv_cli.cli.analyze import analyze_step
    from ecokv_cli.cli.common import open_samples

    _parts(whole, ".analysis-parts")
    told = whole.settings
    run, samples = open_samples([out, *map(Path, told["others"])], told["limit"], screen.note)
    figures = _figures(told, "analysis")
    options = {name: told[name] for name in ("layers", "heads", "booster", "window", "pairs", "seed", "pca")}
    return analyze_step(screen, run, samples, figures, **options, keep_going=bool(whole.failed), force=force)


def merge_eviction(screen: Screen, out: Path, whole: Whole, *, force: bool) -> dict[str, Any]:
    """Tables, figures and report of simulated eviction, from the parts that its shards left."""
    from ecokv_cli.cli.common import open_samples
    from ecokv_cli.cli.evict import evict_step

    _parts(whole, ".eviction-parts")
    told = whole.settings
    run, samples = open_samples([out, *map(Path, told["others"])], told["limit"], screen.note)
    figures = _figures(told, "eviction")
    options = {name: told[name] for name in ("layers", "heads", "methods", "budgets", "window", "focus", "seed")}
    table = Path(told["head_scores"]) if told["head_scores"] else None
    return evict_step(
        screen, run, samples, figures, **options, head_scores=table, keep_going=bool(whole.failed), force=force
    )


def _figures(told: dict[str, Any], kind: str) -> FigureChoice:
    from ecokv_cli.cli.common import FigureChoice

    formats, width, names = told["figures"]
    return FigureChoice.parse(formats, width, names, (kind,))


def _parts(whole: Whole, folder: str) -> list[Path]:
    """The folders of the finished samples, in order."""
    places = [
        run / folder / sample["key"]
        for sample, run in zip(whole.samples, whole.runs, strict=True)
        if sample["name"] not in whole.failed
    ]
    for place in places:
        if not place.is_dir():
            raise DumpError(f"{place}: is missing, though its shard says it is done; run the shard again")
    return places


MERGERS = {
    "dump": merge_dump, "evaluation": merge_evaluation, "ablation": merge_ablation, "analysis": merge_analysis,
    "eviction": merge_eviction,
}  # fmt: skip
"""By kind of results, in the order in which they are put together."""

BESIDE = ("analysis", "eviction")
"""Kinds that stay with the dumps they are made from."""


@guarded
def command(
    paths: Runs,
    output: Into = None,
    force: o.Force = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    debug: o.Debug = False,  # noqa: ARG001 - read by guarded
) -> None:
    """Put the shards of a study together, as if it had been run in one.

    Takes what `--shard` left of dump, evaluate, ablate, analyze and evict. Nothing is run again; shards of other
    settings or samples, missing ones and those that are there twice are refused by name before anything is written.
    """
    from ecokv_cli.studies.shards import forget, read_markers, whole

    screen = Screen(quiet=quiet, verbose=verbose, as_json=json)
    out = output or paths[0]
    found = read_markers(paths)
    made = {kind: whole(markers) for kind, markers in found.items()}
    for kind in BESIDE:
        for run in made[kind].runs if kind in made else ():
            if run.resolve() != out.resolve():
                raise UsageError(f"{run}: shards of an {kind} stay with the dumps they are made from; merge it alone")
    results = {kind: merge(screen, out, made[kind], force=force) for kind, merge in MERGERS.items() if kind in made}
    for kind in results:
        forget([each for each in found[kind] if each.run.resolve() == out.resolve()])
    kinds = ", ".join(f"{kind} of {found[kind][0].marker.shard.count} shards" for kind in results)
    screen.finish({"run": str(out), **results}, f"{out}: {kinds}")
    failed = {sample: reason for each in made.values() for sample, reason in each.failed.items()}
    for sample, reason in failed.items():
        screen.note(f"{sample}: {reason}")
    if failed:
        raise EcokvError(f"{len(failed)} samples failed and are left out: {', '.join(list(failed)[:5])}")
