"""What two runs have in common and where they differ, beside their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ecokv_cli.studies.sources import joined

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ecokv_cli.studies.results import Results

_NAMES = {
    "model": "model", "revision": "revision", "architecture": "architecture", "layers": "layers of the model",
    "query_heads": "query heads", "kv_heads": "KV heads", "head_dim": "head dimension",
    "compute_dtype": "computed in", "stored_dtype": "stored in", "attention": "attention",
}  # fmt: skip
_LOOKS = ("width",)
"""Settings that decide no number."""


def side_by_side(first: Sequence[Results], second: Sequence[Results]) -> dict[str, dict[str, Any]]:
    """Model, precision and settings of two runs, from the summaries of the studies that both have.

    Returns
    -------
    dict
        ``same``: values by name; ``different``: the values of the first and the second by name. A run whose samples
        differ in something has all its values, with commas between.
    """
    one, other = _described(first), _described(second)
    names = dict.fromkeys([*one, *other])
    return {
        "same": {name: one[name] for name in names if one.get(name) == other.get(name)},
        "different": {name: [one.get(name), other.get(name)] for name in names if one.get(name) != other.get(name)},
    }


def shared_samples(first: Results, second: Results, table: str) -> dict[str, int]:
    """Counts of the samples that the tables of two runs are over.

    Returns
    -------
    dict
        ``first``, ``second``: how many each has; ``shared``: how many have the same name in both; ``changed``: how
        many of these have another prompt or other images nevertheless.
    """
    names = [set(map(str, results.table(table).distinct("sample"))) for results in (first, second)]
    shared = names[0] & names[1]
    asked = [
        {sample["sample"]: (sample["prompt"], sample["images"]) for sample in results.summary["samples"]}
        for results in (first, second)
    ]
    changed = [name for name in shared if asked[0].get(name) != asked[1].get(name)]
    return {"first": len(names[0]), "second": len(names[1]), "shared": len(shared), "changed": len(changed)}


def _described(studies: Sequence[Results]) -> dict[str, Any]:
    made = joined(results.summary.get("dumps", ()) for results in studies)
    values = {words: list(dict.fromkeys(source[name] for source in made)) for name, words in _NAMES.items()}
    told = {words: _listed(found) for words, found in values.items() if found}
    for results in studies:
        settings: Mapping[str, Any] = results.summary["settings"]
        told |= {f"{results.folder.name}: {name}": value for name, value in settings.items() if name not in _LOOKS}
    return told


def _listed(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else ", ".join(map(str, values))
