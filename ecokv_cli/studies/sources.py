"""Where samples come from: their runs, models, precision, commands and versions, told once for all that agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ecokv_cli.dump.reader import Dump

_COUNTED = ("samples", "commands")


def sources(samples: Iterable[Dump], home: Path) -> list[dict[str, Any]]:
    """The dumps that were made alike, as ``summary.json`` holds them.

    Parameters
    ----------
    samples
        Of one or several runs.
    home
        The run whose results these are.

    Returns
    -------
    list of dict
        Per source, in order of appearance: `run` (its folder), `here` (whether that is `home`), `model`, `revision`,
        `architecture`, `layers`, `query_heads`, `kv_heads`, `head_dim`, `compute_dtype`, `stored_dtype`, `attention`,
        `seed`, `versions`, how many `samples`, and the `commands` that made them, each once.
    """
    found: list[dict[str, Any]] = []
    for dump in samples:
        manifest, model, run = dump.manifest, dump.manifest.model, run_of(dump)
        source = {
            "run": str(run), "here": run.resolve() == home.resolve(),
            "model": model.id, "revision": model.revision, "architecture": model.architecture,
            "layers": model.layers, "query_heads": model.query_heads, "kv_heads": model.kv_heads,
            "head_dim": model.head_dim, "compute_dtype": manifest.compute_dtype,
            "stored_dtype": manifest.stored_dtype, "attention": manifest.attention, "seed": manifest.seed,
            "versions": manifest.versions,
        }  # fmt: skip
        same = _same(found, source)
        same["samples"] += 1
        if manifest.command not in same["commands"]:
            same["commands"].append(manifest.command)
    return found


def joined(lists: Iterable[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Sources of several studies, which may be over the same samples: each once, with the most samples of any."""
    found: list[dict[str, Any]] = []
    for source in (source for each in lists for source in each):
        same = _same(found, source)
        same["samples"] = max(same["samples"], source["samples"])
        same["commands"] = list(dict.fromkeys([*same["commands"], *source["commands"]]))
    return found


def run_of(dump: Dump) -> Path:
    """The run that a dump belongs to."""
    return dump.folder.parent.parent


def _same(found: list[dict[str, Any]], source: dict[str, Any]) -> dict[str, Any]:
    """The entry of `found` that differs from a source in nothing but what is counted; a new one if there is none."""

    def told(entry: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in entry.items() if name not in _COUNTED}

    for entry in found:
        if told(entry) == told(source):
            return entry
    found.append(told(source) | {"samples": 0, "commands": []})
    return found[-1]
