"""Where the work is done, and which share of it: the engine and the shard that the options name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ecokv_cli.errors import EcokvError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ecokv_cli.cli.console import Screen
    from ecokv_cli.engines.workers import Engine
    from ecokv_cli.studies.shards import Shard

ENGINES = ("local", "ray")


def choose_engine(
    name: str, address: str | None, workers: int | None, cpus: float | None, gpus: float | None = None
) -> Engine:
    """The engine, with what it is told.

    Raises
    ------
    UsageError
        If there is no such engine, or the others are given to the local one, which has no use for them.
    """
    if name not in ENGINES:
        raise UsageError(f"--engine {name}: unknown, choose {' or '.join(ENGINES)}")
    if name == "ray":
        from ecokv_cli.engines.ray_engine import RayEngine

        return RayEngine(address, workers, 1 if cpus is None else cpus, gpus)
    given = {
        "--address": address, "--workers": workers, "--num-cpus-per-worker": cpus, "--num-gpus-per-worker": gpus,
    }  # fmt: skip
    for option, value in given.items():
        if value is not None:
            raise UsageError(f"{option} is for a pool of workers; add --engine ray")
    from ecokv_cli.engines.workers import LocalEngine

    return LocalEngine()


@dataclass(frozen=True)
class Share:
    """A shard of a study: which, the kind of its results, and what it takes to report on the whole."""

    shard: Shard
    kind: str
    report: dict[str, Any]

    def leave(
        self, run: Path, samples: Iterable[dict[str, Any]], settings: dict[str, Any], failed: dict[str, str]
    ) -> None:
        """Leave a marker of what was done in the run folder, for ``ecokv merge``."""
        from ecokv_cli.studies.shards import Marker, write_marker

        write_marker(run, Marker(self.kind, self.shard, tuple(samples), {**settings, **self.report}, failed))


def choose_share(text: str | None, paths: Sequence[Path] | None, kind: str, **report: Any) -> Share | None:
    """The share that ``--shard`` names, if any.

    Parameters
    ----------
    text
        What the option says.
    paths
        The run folders that the user named; the first is where results go.
    kind
        Of the results.
    report
        What it takes to report on the whole, by name.

    Raises
    ------
    UsageError
        If it is no shard, or no run folder is named for it.
    """
    if text is None:
        return None
    from ecokv_cli.studies.shards import Shard

    shard = Shard.parse(text)
    if not paths:
        raise UsageError(f"--shard {text}: name the run folder, so that all shards go to the same")
    return Share(shard, kind, {**report, "others": [str(path) for path in paths[1:]]})


def show_shard(screen: Screen, run: Path, share: Share, done: int, failed: dict[str, str]) -> None:
    """Say that a shard is done, and what comes next; end with an error if samples are left out."""
    for sample, reason in failed.items():
        screen.note(f"{sample}: left out, {reason}")
    screen.say(f"{share.kind} {share.shard}: {done} samples in {run}")
    summary = {"run": str(run), "shard": str(share.shard), "samples": done, "failed": failed}
    screen.finish(summary, "when all shards are done: ecokv merge RUN ...")
    if failed:
        raise EcokvError(f"{len(failed)} samples failed and are left out: {', '.join(list(failed)[:5])}")
