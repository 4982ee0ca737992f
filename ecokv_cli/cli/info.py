"""``ecokv info``: what a run holds, and what is installed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecokv_cli.cli import options as o
from ecokv_cli.cli.console import Screen, guarded, table
from ecokv_cli.errors import DumpError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.dump.schema import Manifest, ModelInfo

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
    unreadable: list[str] = []
    dumps = _readable(screen, run.sample_folders(), unreadable)
    sums = _Sums(next(dumps))
    for dump in chain([sums.first], dumps):
        sums.add(dump)
    results = _results(screen, run.folder)
    first, described = sums.first.manifest, _describe(sums)
    screen.show(table("", ("", ""), [("run", str(run.folder)), *described.items()]))
    _show_samples(screen, sums.samples)
    _compare_versions(screen, first)
    rows = [(name, summary["created"], summary["command"]) for name, summary in results.items()]
    screen.show(table("Results", ("study", "made", "command"), rows) if rows else [])
    summary = {
        "run": str(run.folder),
        **described,
        "settings": dict[str, Any](window=first.window, seed=first.seed) | first.settings,
        "versions": first.versions,
        "samples": sums.samples,
        "unreadable": unreadable,
        "results": results,
    }
    screen.finish(summary, "")


@dataclass
class _Sums:
    """What is shown of the samples, gathered one at a time: of thousands only the first is kept whole."""

    first: Dump
    models: dict[ModelInfo, None] = field(default_factory=dict)
    tokens: Counter[str] = field(default_factory=Counter)
    images: int = 0
    unplaced: int = 0
    samples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, dump: Dump) -> None:
        """Take in a sample."""
        manifest = dump.manifest
        self.models[manifest.model] = None
        self.tokens.update(manifest.tokens.by_role())
        self.images += len(manifest.images)
        self.unplaced += len(manifest.unplaced())
        self.samples.append(_sample(manifest))


def _readable(screen: Screen, folders: Sequence[Path], unreadable: list[str]) -> Iterator[Dump]:
    """The samples that can be read, one at a time; the names of the others are put into `unreadable`."""
    from ecokv_cli.dump.reader import open_dump

    for folder in folders:
        try:
            yield open_dump(folder)
        except DumpError as error:
            unreadable.append(folder.name)
            if len(folders) == 1:
                raise
            screen.note(str(error))
    if len(unreadable) == len(folders):
        raise DumpError(f"{folders[0].parent}: none of {len(folders)} samples can be read; dump them again")


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


def _describe(found: _Sums) -> dict[str, str]:
    """What the samples have in common, or how they differ."""
    from ecokv_cli.dump.layers import left_out

    first, samples = found.first.manifest, found.samples
    roles = ", ".join(f"{count} {role}" for role, count in found.tokens.items())
    settings = {"window": first.window, "seed": first.seed, **first.settings}
    unplaced = f", {found.unplaced} without rows and columns" if found.unplaced else ""
    return {
        "samples": str(len(samples)),
        "model": "; ".join(
            f"{m.id} ({m.architecture}){f' at {m.revision}' if m.revision else ''}" for m in found.models
        ),
        "layers": f"{first.model.layers}",
        "sliding windows": left_out(found.first) or "none",
        "heads": f"{first.model.query_heads} query, {first.model.kv_heads} KV, dimension {first.model.head_dim}",
        "prompt tokens": f"{found.tokens.total()}: {roles}",
        "images": f"{found.images}{unplaced}",
        "held-out queries": str(sum(sample["held_out_queries"] for sample in samples)),
        "tensors": ", ".join(first.tensors),
        "size": f"{sum(sample['bytes'] for sample in samples) / 1e6:.1f} MB as {first.stored_dtype}",
        "computed": f"in {first.compute_dtype} on {first.device}, {first.attention} attention",
        "non-finite": f"{sum(len(sample['nonfinite']) for sample in samples)} tensors with NaN or infinite numbers",
        "settings": ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None),
        "versions": ", ".join(f"{name} {number}" for name, number in first.versions.items()),
        "command": first.command,
    }


def _show_samples(screen: Screen, samples: Sequence[dict[str, Any]]) -> None:
    roles = ("text", "image", "special")
    rows = [
        (
            sample["sample"], sample["tokens"], *(sample["tokens_by_role"].get(role, 0) for role in roles),
            sample["held_out_queries"], round(sample["bytes"] / 1e6, 1), sample["answer"],
        )
        for sample in samples
    ]  # fmt: skip
    screen.show(table("Samples", ("sample", "tokens", *roles, "held out", "MB", "answer"), rows))


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
