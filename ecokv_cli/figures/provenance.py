"""Words on where the samples of a report come from: runs, precision, commands and versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ecokv_cli.figures.parts import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Source = Mapping[str, Any]

_MOST = 20
"""Runs and commands that are listed."""


def model_words(sources: Sequence[Source]) -> list[str]:
    """Paragraphs on the model and its precision and, unless all samples agree in these, on every run.

    Parameters
    ----------
    sources
        As `studies.sources.sources` gives them.
    """
    first = sources[0]
    model = (
        f"{first['architecture']}, {counted(first['layers'], 'layer')}, "
        f"{counted(first['query_heads'], 'query head')} on {counted(first['kv_heads'], 'KV head')} of dimension "
        f"{first['head_dim']}"
    )
    runs: dict[str, list[Source]] = {}
    for source in sources:
        runs.setdefault(source["run"], []).append(source)
    alike = len({_precision(source) for source in sources}) == 1
    opening = f"{model}; {_precision(first)}." if alike else f"{model}."
    if alike and len(runs) == 1:
        return [opening]
    total = sum(source["samples"] for source in sources)
    parts = [f"{run}: {_counts(found, alike=alike)}" for run, found in list(runs.items())[:_MOST]]
    if len(runs) > _MOST:
        parts.append(f"and {len(runs) - _MOST} more runs")
    of = f" of {len(runs)} runs" if len(runs) > 1 else ""
    return [opening, f"{counted(total, 'sample')}{of}. {'; '.join(parts)}."]


def _precision(source: Source) -> str:
    return f"computed in {source['compute_dtype']}, stored in {source['stored_dtype']}, {source['attention']} attention"


def _counts(sources: Sequence[Source], *, alike: bool) -> str:
    """How many samples a run has and, where not all of the report agree, of which precision."""
    by_precision: dict[str, int] = {}
    for source in sources:
        words = "" if alike else f" {_precision(source)}"
        by_precision[words] = by_precision.get(words, 0) + source["samples"]
    return " and ".join(f"{counted(number, 'sample')}{words}" for words, number in by_precision.items())


def distinct(sources: Iterable[Source], name: str) -> list[Any]:
    """Values of one entry, each once."""
    return list(dict.fromkeys(source[name] for source in sources))


def command_lines(commands: Iterable[str], studies: Iterable[str]) -> str:
    """The commands that made the dumps, of many the first, and those of the studies; each once."""
    made = list(dict.fromkeys(commands))
    rest = [f"# and {len(made) - _MOST} more that made dumps"] if len(made) > _MOST else []
    return "\n".join(dict.fromkeys([*made[:_MOST], *rest, *studies]))


def all_versions(made: Mapping[str, Sequence[Mapping[str, str]]]) -> dict[str, str]:
    """Versions by package; where they differ each with who had it.

    Parameters
    ----------
    made
        The versions that were there by who had them, such as the dumps or the analysis.
    """
    packages = dict.fromkeys(name for each in made.values() for versions in each for name in versions)
    found: dict[str, str] = {}
    for package in packages:
        users: dict[str, list[str]] = {}
        for who, each in made.items():
            for version in dict.fromkeys(versions[package] for versions in each if package in versions):
                users.setdefault(version, []).append(who)
        found[package] = (
            next(iter(users))
            if len(users) == 1
            else ", ".join(f"{version} ({', '.join(who)})" for version, who in users.items())
        )
    return found
