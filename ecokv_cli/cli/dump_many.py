"""``ecokv dump --manifest``: many samples into one run folder."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ecokv_cli.cli.console import Screen, command_line, table
from ecokv_cli.errors import EcokvError

if TYPE_CHECKING:
    from ecokv_cli.cli.machines import Share
    from ecokv_cli.dump.schema import Manifest
    from ecokv_cli.engines.workers import Engine
    from ecokv_cli.models.settings import DumpSettings
    from ecokv_cli.models.source import ModelSource
    from ecokv_cli.sample.samples import Sample


def many_step(
    screen: Screen,
    source: str,
    recipe: ModelSource,
    settings: DumpSettings,
    engine: Engine,
    *,
    output: Path | None,
    limit: int | None,
    keep_going: bool,
    force: bool,
    share: Share | None = None,
) -> None:
    """Read a manifest, load the model where the work is done, dump the samples, and sum up."""
    from ecokv_cli.dump.runs import Run, new_run
    from ecokv_cli.engines.workers import Tell
    from ecokv_cli.models.source import ModelFacts
    from ecokv_cli.sample.manifest import read_manifest
    from ecokv_cli.sample.names import sample_name

    if not screen.verbose:
        screen.hears = logging.WARNING  # a line per sample is too much
    whole = read_manifest(source)[:limit]
    samples = share.shard.of(whole) if share else whole
    run = Run(output) if output else new_run(sample_name(source))
    if not output:
        screen.note(f"into {run.folder}; if this is ended early, go on with --output {run.folder}")

    def written(manifest: Manifest) -> None:
        for line in manifest.nonfinite():
            screen.note(f"{manifest.sample}: {line}")
        screen.detail(f"{manifest.sample}: {len(manifest.tokens.ids)} tokens, answer {manifest.decoded.text!r}")

    with screen.progress() as progress, engine.workers(recipe, Tell(progress, screen.note), device=True) as workers:
        progress("load model", 0, 1)
        began = time.monotonic()
        facts = workers.ask(ModelFacts.of)
        seconds = time.monotonic() - began
        progress("load model", 1, 1)
        screen.detail(f"{facts.info.id} loaded in {seconds:.1f} s on {facts.device}")
        from ecokv_cli.models.many import Hooks, dump_many

        hooks = Hooks(progress, screen.note, written)
        outcome = dump_many(
            workers, samples, settings, run.dump_folder,
            command=command_line(), force=force, keep_going=keep_going, hooks=hooks,
        )  # fmt: skip
    if share:
        keys = [{"name": sample.id, "key": _key(sample)} for sample in whole]
        agreed = asdict(settings) | {"model": asdict(facts.info), "dtype": facts.dtype, "attention": facts.backend}
        share.leave(run.folder, keys, agreed, {each.sample: each.reason for each in outcome.failed})
    rows = {
        "run": str(run.folder),
        "manifest": source,
        "model": f"{facts.info.id} ({facts.info.architecture})",
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
    named = f" {output}" if output else ""
    after = f"next: ecokv analyze{named}, ecokv evict{named}"
    screen.finish(summary, "when all shards are done: ecokv merge RUN ..." if share else after)
    if outcome.failed:
        raise EcokvError(
            f"{len(outcome.failed)} of {len(samples)} samples failed; mend them and run again with "
            f"--output {run.folder}, what is done is kept"
        )


def _key(sample: Sample) -> str:
    """A digest of what a manifest says of a sample besides where its images are."""
    told = [len(sample.images), sample.prompt, sample.answers, [asdict(box) for box in sample.boxes]]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
