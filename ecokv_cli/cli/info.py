"""``ecokv info``: what a run holds, and what is installed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecokv_cli.cli import options as o
from ecokv_cli.cli.console import Screen, guarded, table
from ecokv_cli.errors import DumpError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.dump.schema import Manifest

EXAMPLES = """Examples:

ecokv info                                     the latest run

ecokv info ecokv-runs/my-run --json | jq .samples

ecokv info --env                               versions, for a bug report
"""

STUDIES = ("analysis", "eviction", "routing")

Env = Annotated[bool, typer.Option("--env", help="Show versions of ecokv, libraries and system instead of a run.")]


@guarded
def command(
    path: o.RunPath = None,
    env: Env = False,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001 - read by guarded
) -> None:
    """Describe a run: model, samples, tokens by role, tensors, size, settings, results.

    Neither the model nor torch is loaded.
    """
    screen = Screen(quiet=False, verbose=False, as_json=json)
    if env:
        from ecokv_cli.dump.versions import environment

        if path is not None:
            raise UsageError("--env describes the machine, not a run; leave one of the two out")
        found = environment()
        screen.show(table("", ("", ""), list(found.items())))
        screen.finish(found, "")
        return
    from ecokv_cli.dump.runs import find_run

    run = find_run(path)
    dumps, unreadable = _read(screen, run.sample_folders())
    manifests = [dump.manifest for dump in dumps]
    results = _results(screen, run.folder)
    first = manifests[0]
    described = _describe(dumps)
    screen.show(table("", ("", ""), [("run", str(run.folder)), *described.items()]))
    _show_samples(screen, manifests)
    _compare_versions(screen, first)
    rows = [(name, summary["created"], summary["command"]) for name, summary in results.items()]
    screen.show(table("Results", ("study", "made", "command"), rows) if rows else [])
    summary = {
        "run": str(run.folder),
        **described,
        "settings": dict[str, Any](window=first.window, seed=first.seed) | first.settings,
        "versions": first.versions,
        "samples": [_sample(manifest) for manifest in manifests],
        "unreadable": unreadable,
        "results": results,
    }
    screen.finish(summary, "")


def _read(screen: Screen, folders: Sequence[Path]) -> tuple[list[Dump], list[str]]:
    """The samples that can be read, and the names of the others."""
    from ecokv_cli.dump.reader import open_dump

    dumps, unreadable = [], []
    for folder in folders:
        try:
            dumps.append(open_dump(folder))
        except DumpError as error:
            unreadable.append(folder.name)
            if len(folders) == 1:
                raise
            screen.note(str(error))
    if not dumps:
        raise DumpError(f"{folders[0].parent}: none of {len(folders)} samples can be read; dump them again")
    return dumps, unreadable


def _results(screen: Screen, folder: Path) -> dict[str, dict[str, Any]]:
    """Summaries of the studies that are there."""
    from ecokv_cli.studies.results import read_results

    found = {}
    for name in STUDIES:
        try:
            results = read_results(folder / name)
            if results:
                found[name] = _checked(results.summary)
        except (DumpError, RecursionError, TypeError, KeyError):
            screen.note(f"{folder / name}: summary.json was edited or damaged; make the results again with --force")
    return found


def _checked(summary: Any) -> dict[str, Any]:
    """What is shown of a summary; KeyError or TypeError if that is not in it."""
    created, command, results = summary["created"], summary["command"], summary["results"]
    return {**summary, "created": str(created), "command": str(command), "results": len(results)}


def _compare_versions(screen: Screen, manifest: Manifest) -> None:
    """Note which libraries are of another version than when the dump was made."""
    from ecokv_cli.dump.versions import versions

    here = versions()
    others = [
        f"{name} {made} (here {here.get(name, 'none')})"
        for name, made in manifest.versions.items()
        if made != here.get(name)
    ]
    if others:
        screen.note(f"made with other versions: {', '.join(others)}")


def _describe(dumps: Sequence[Dump]) -> dict[str, str]:
    """What the samples have in common, or how they differ."""
    from ecokv_cli.dump.layers import left_out

    manifests = [dump.manifest for dump in dumps]
    first = manifests[0]
    models = dict.fromkeys(m.model for m in manifests)
    tokens = sum((Counter(m.tokens.by_role()) for m in manifests), Counter[str]())
    roles = ", ".join(f"{count} {role}" for role, count in tokens.items())
    settings = {"window": first.window, "seed": first.seed, **first.settings}
    return {
        "samples": str(len(manifests)),
        "model": "; ".join(f"{m.id} ({m.architecture}){f' at {m.revision}' if m.revision else ''}" for m in models),
        "layers": f"{first.model.layers}",
        "sliding windows": left_out(dumps[0]) or "none",
        "heads": f"{first.model.query_heads} query, {first.model.kv_heads} KV, dimension {first.model.head_dim}",
        "prompt tokens": f"{tokens.total()}: {roles}",
        "images": _images(manifests),
        "held-out queries": str(sum(m.decoded.fed_back for m in manifests)),
        "tensors": ", ".join(first.tensors),
        "size": f"{sum(m.bytes for m in manifests) / 1e6:.1f} MB as {first.stored_dtype}",
        "computed": f"in {first.compute_dtype} on {first.device}, {first.attention} attention",
        "non-finite": str(sum(len(m.nonfinite()) for m in manifests)) + " tensors with NaN or infinite numbers",
        "settings": ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None),
        "versions": ", ".join(f"{name} {number}" for name, number in first.versions.items()),
        "command": first.command,
    }


def _images(manifests: Sequence[Manifest]) -> str:
    """How many images there are, and of how many the place of each token is not known."""
    unplaced = sum(len(m.unplaced()) for m in manifests)
    return f"{sum(len(m.images) for m in manifests)}" + (f", {unplaced} without rows and columns" if unplaced else "")


def _show_samples(screen: Screen, manifests: Sequence[Manifest]) -> None:
    columns = ("sample", "tokens", *(role for role in ("text", "image", "special")), "held out", "MB", "answer")
    rows = []
    for manifest in manifests:
        roles = manifest.tokens.by_role()
        counts = [roles.get(role, 0) for role in ("text", "image", "special")]
        size = round(manifest.bytes / 1e6, 1)
        rows.append(
            (manifest.sample, len(manifest.tokens.ids), *counts, manifest.decoded.fed_back, size, manifest.decoded.text)
        )
    screen.show(table("Samples", columns, rows))


def _sample(manifest: Manifest) -> dict[str, Any]:
    return {
        "sample": manifest.sample,
        "created": manifest.created,
        "prompt": manifest.prompt,
        "images": [image.source for image in manifest.images],
        "tokens": len(manifest.tokens.ids),
        "tokens_by_role": manifest.tokens.by_role(),
        "held_out_queries": manifest.decoded.fed_back,
        "answer": manifest.decoded.text,
        "bytes": manifest.bytes,
        "nonfinite": manifest.nonfinite(),
    }
