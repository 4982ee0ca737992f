"""Where the answers of ``ecokv ablate`` come from: earlier ablations of the run, decoding, and the shards of one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ecokv_cli.cli import answering as a
from ecokv_cli.errors import DumpError, EcokvError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from ecokv_cli.cli.console import Screen
    from ecokv_cli.cli.machines import Share
    from ecokv_cli.engines.workers import Workers
    from ecokv_cli.studies.ablate.kept import Key, Row
    from ecokv_cli.studies.evaluate import Arm, EvaluateSettings
    from ecokv_cli.studies.shards import Shard, Whole
    from ecokv_cli.studies.tables import Table

FOLDER = "ablation"
"""Where a run has its ablation."""

PARTS = ".ablation"
"""Where an unfinished ablation keeps what is done, apart from an evaluation of the same run."""


@dataclass(frozen=True)
class Gathered:
    """Graded answers of this call's arms; the rows of all calls, to be kept; failures by sample."""

    answers: Table
    kept: dict[Key, Row]
    failed: dict[str, str]


def gather(
    screen: Screen, workers: Workers, work: a.Work, settings: EvaluateSettings, run: Path, *, keep_going: bool,
    share: Share | None = None,
) -> Gathered:  # fmt: skip
    """Answers of all arms: those of earlier ablations of this run, and what they lack.

    Of a sample all arms that are not there yet are decoded after one prefill, and stored together when the last is
    done; an interrupted ablation goes on from there if it is asked for the same. A finished one keeps its answers by
    sample and arm, so another choice of experiments, budgets or values decodes what is new alone. Of a `share` the
    answers are those of its own samples; they are left for `put_together`, whether new or not, with a marker.
    """
    from ecokv_cli.dump.writer import fresh_folder
    from ecokv_cli.models.source import ModelFacts
    from ecokv_cli.studies.ablate.kept import digest, lacking, read_kept, write_kept

    questions = {question.id: question for question in work.questions}
    depends = a.depends_on(workers.ask(ModelFacts.of), settings)
    digests = {name: digest(depends, name, question.identity) for name, question in questions.items()}
    mine = {name: digests[name] for name in (share.shard.of(list(digests)) if share else digests)}
    kept = read_kept(run / FOLDER)
    wanted = _keys(mine.values(), settings.arms)
    if there := sum(key in kept for key in wanted):
        screen.note(f"{there} of {len(wanted)} answers were there already")
    failed: dict[str, str] = {}
    for arms, samples in lacking(kept, mine, settings.arms).items():
        part = replace(work, questions=iter([questions[name] for name in samples]))
        found, failures = a.gather_answers(
            screen, workers, part, replace(settings, arms=arms), run / PARTS, keep_going=keep_going, of=len(questions)
        )
        failed |= failures
        kept |= {(mine[str(row["sample"])], row["method"], row["budget"]): row for row in found}
    _require_some(questions, failed)
    right = {name: question.answers for name, question in questions.items()}
    if share:
        with fresh_folder(_place(run, share.shard), force=True) as unfinished:
            write_kept(unfinished, {key: kept[key] for key in wanted if key in kept})
        named = [(arm.method.name, arm.budget) for arm in settings.arms]
        told = {**depends, "arms": named, "task": work.task, "metric": work.metric.name}
        entries = [{"name": name, "key": key, "answers": right[name]} for name, key in digests.items()]
        share.leave(run, entries, told, failed)
    return _graded(kept, wanted, right, work, failed)


def put_together(whole: Whole, work: a.Work, arms: Sequence[Arm], out: Path) -> Gathered:
    """The answers that the shards of an ablation left, as `gather` gives them for all samples.

    Raises
    ------
    DumpError
        If a shard's answers are not where it left them.
    EcokvError
        If every sample failed.
    """
    from ecokv_cli.studies.ablate.kept import read_kept

    found: dict[Key, Row] = {}
    places = [_place(run, shard) for run, shard in zip(whole.runs, whole.shards, strict=True)]
    for place in dict.fromkeys(places):
        found |= read_kept(place)
    for sample, place in zip(whole.samples, places, strict=True):
        if sample["name"] not in whole.failed and any(key not in found for key in _keys([sample["key"]], arms)):
            raise DumpError(f"{place}: lacks answers of {sample['name']}; run the shard again")
    wanted = _keys([sample["key"] for sample in whole.samples], arms)
    right = {sample["name"]: sample["answers"] for sample in whole.samples}
    _require_some(right, whole.failed)
    kept = read_kept(out / FOLDER) | {key: found[key] for key in wanted if key in found}
    return _graded(kept, wanted, right, work, whole.failed)


def _keys(digests: Iterable[str], arms: Sequence[Arm]) -> list[Key]:
    """Under which the answers of samples are kept, in the order of tables."""
    return [(digest, arm.method.name, arm.budget) for digest in digests for arm in arms]


def _place(run: Path, shard: Shard) -> Path:
    """Where a shard leaves the answers of its samples."""
    return run / PARTS / f"{shard.index}-of-{shard.count}"


def _require_some(samples: Iterable[str], failed: dict[str, str]) -> None:
    if failed and all(name in failed for name in samples):
        sample, reason = next(iter(failed.items()))
        raise EcokvError(f"ablation: all {len(failed)} samples failed, {sample}: {reason}")


def _graded(
    kept: dict[Key, Row],
    wanted: Iterable[Key],
    right: Mapping[str, Sequence[str]],
    work: a.Work,
    failed: dict[str, str],
) -> Gathered:
    """With scores, which are given last: a metric may look at all answers of an arm together."""
    from ecokv_cli.studies.evaluate import ANSWERS
    from ecokv_cli.studies.tables import Table

    rows = [kept[key] for key in wanted if key in kept]
    return Gathered(a.graded_answers([Table("answers", ANSWERS, rows)], right, work.metric), kept, failed)
