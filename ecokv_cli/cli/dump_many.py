"""``ecokv dump --manifest``: many samples into one run folder."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ecokv_cli.cli.console import Screen, command_line, table
from ecokv_cli.errors import EcokvError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ecokv_cli.dump.schema import Manifest
    from ecokv_cli.models.loading import LoadedModel
    from ecokv_cli.models.settings import DumpSettings

    Progress = Callable[[str, int, int], None]


def many_step(
    screen: Screen,
    source: str,
    load: Callable[[Progress], tuple[LoadedModel, float]],
    settings: DumpSettings,
    *,
    output: Path | None,
    limit: int | None,
    keep_going: bool,
    force: bool,
) -> None:
    """Read a manifest, load the model, dump the samples one by one, and sum up."""
    from ecokv_cli.dump.runs import Run, new_run
    from ecokv_cli.sample.manifest import read_manifest
    from ecokv_cli.sample.names import sample_name

    if not screen.verbose:
        screen.hears = logging.WARNING  # a line per sample is too much
    samples = read_manifest(source)[:limit]
    run = Run(output) if output else new_run(sample_name(source))
    if not output:
        screen.note(f"into {run.folder}; if this is ended early, go on with --output {run.folder}")

    def written(manifest: Manifest) -> None:
        for line in manifest.nonfinite():
            screen.note(f"{manifest.sample}: {line}")
        screen.detail(f"{manifest.sample}: {len(manifest.tokens.ids)} tokens, answer {manifest.decoded.text!r}")

    with screen.progress() as progress:
        loaded, seconds = load(progress)
        from ecokv_cli.models.many import Hooks, dump_many

        hooks = Hooks(progress, screen.note, written)
        outcome = dump_many(
            loaded, samples, settings, run.dump_folder,
            command=command_line(), force=force, keep_going=keep_going, hooks=hooks,
        )  # fmt: skip
    rows = {
        "run": str(run.folder),
        "manifest": source,
        "model": f"{loaded.info.id} ({loaded.info.architecture})",
        "samples": len(samples),
        "done": outcome.done,
        "skipped": outcome.skipped,
        "failed": len(outcome.failed),
    }
    screen.show(table("", ("", ""), [*rows.items(), ("stored", f"{outcome.bytes / 1e6:.1f} MB")]))
    if outcome.failed:
        screen.show(table("Failed", ("sample", "reason"), [(each.sample, each.reason) for each in outcome.failed]))
    failures = [asdict(each) for each in outcome.failed]
    summary = {**rows, "failures": failures, "stored_bytes": outcome.bytes, "seconds": {"loading": round(seconds, 4)}}
    screen.finish(summary, "next: ecokv analyze, ecokv evict")
    if outcome.failed:
        raise EcokvError(
            f"{len(outcome.failed)} of {len(samples)} samples failed; mend them and run again with "
            f"--output {run.folder}, what is done is kept"
        )
