"""``ecokv headscores``: which query heads look at the right place, for sparsemm."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ecokv_cli.cli import options as o
from ecokv_cli.cli.common import open_samples
from ecokv_cli.cli.console import Screen, guarded, table
from ecokv_cli.cli.machines import choose_engine

if TYPE_CHECKING:
    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.studies.headscores import Hits
    from ecokv_cli.studies.parts import Task

EXAMPLES = """Examples:

ecokv dump --manifest pages.jsonl -o runs/pages      pages with boxes

ecokv headscores runs/pages -o head-scores.json

ecokv evict --method sparsemm --head-scores head-scores.json
"""

SHOWN = 10
"""Heads listed on the screen."""

Runs = Annotated[
    list[Path] | None,
    typer.Argument(help="Run folders; the latest under ./ecokv-runs if left out.", show_default=False),
]
TableFile = Annotated[Path, typer.Option("--output", "-o", help="File of the table.", rich_help_panel=o.OUTPUT)]


@guarded
def command(
    paths: Runs = None,
    output: TableFile = Path("head-scores.json"),
    limit: o.Limit = None,
    engine: o.EngineName = "local",
    address: o.Address = None,
    workers: o.Workers = None,
    num_cpus_per_worker: o.WorkerCpus = None,
    force: o.Force = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    debug: o.Debug = False,  # noqa: ARG001 - read by guarded
) -> None:
    """Score every query head by how often it looks at the place in the image that the next token is read from.

    Works on dumps whose manifest has boxes: for each decoded token that stands in exactly one box, a head whose
    largest attention falls into the box gets 1 / (cells of the box). Means over samples go into one table.
    """
    from ecokv_cli.dump.headscores import write_head_scores
    from ecokv_cli.dump.runs import find_run
    from ecokv_cli.engines.workers import Tell, nothing
    from ecokv_cli.errors import OutputError
    from ecokv_cli.studies.headscores import combined, hits_codec, require_one_model
    from ecokv_cli.studies.parts import Parts

    screen = Screen(quiet=quiet, verbose=verbose, as_json=json)
    if output.exists() and not force:
        raise OutputError(f"{output} exists; add --force to replace it, or name another file with --output")
    machines = choose_engine(engine, address, workers, num_cpus_per_worker)
    named = list(dict.fromkeys(find_run(path).folder for path in paths)) if paths else None
    _, samples = open_samples(named, limit, screen.note)
    require_one_model(samples)
    finished = output.with_name(f".{output.name}-parts")
    tasks = [_task(dump) for dump in samples]
    with screen.progress() as progress, machines.workers(nothing, Tell(note=screen.note)) as pool:
        gathered = Parts(finished, {}, hits_codec()).gather(
            tasks, _hits, pool, progress=lambda done, total: progress("samples", done, total)
        )
        found = combined(samples, gathered.results)
    for sample, reason in found.skipped.items():
        screen.note(f"{sample}: not counted, {reason}")
    result = found.table
    write_head_scores(output, result, force=force)
    shutil.rmtree(finished, ignore_errors=True)
    ranked = sorted(
        ((score, layer, head) for layer, row in enumerate(result.scores) for head, score in enumerate(row)),
        key=lambda entry: (-entry[0], entry[1:]),
    )
    silent = sum(score == 0 for score, _, _ in ranked)
    rows = [[layer, head, score] for score, layer, head in ranked[:SHOWN] if score > 0]
    screen.show(table(f"{result.model}: highest of {len(ranked)} heads", ("layer", "query head", "score"), rows))
    summary = {
        "table": str(output),
        "model": result.model,
        "layers": len(result.scores),
        "query_heads": len(result.scores[0]),
        "samples": result.samples,
        "tokens": result.tokens,
        "skipped": found.skipped,
        "heads_at_zero": silent,
    }
    counted = f"{result.tokens} tokens of {result.samples} samples; {silent} of {len(ranked)} heads scored 0"
    screen.finish(summary, f"{output}: {counted}")


def _task(dump: Dump) -> Task[Dump]:
    """A digest stands for the manifest, as the tasks of thousands of samples are held at once."""
    from ecokv_cli.studies.parts import Task, dump_identity

    opened = dump.opened()
    digest = hashlib.sha256(dump_identity(opened).encode()).hexdigest()
    return Task(opened.manifest.sample, digest, dump)


def _hits(_: None, dump: Dump) -> Hits:
    from ecokv_cli.studies.headscores import hits_of

    return hits_of(dump.opened())
