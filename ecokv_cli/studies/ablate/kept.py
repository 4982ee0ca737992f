"""Answers of earlier ablations of the same run, by sample and arm, so that none is decoded twice."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from ecokv_cli.errors import DumpError
from ecokv_cli.studies.tables import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from ecokv_cli.studies.evaluate import Arm

Row = dict[str, Value]
Key = tuple[str, Value, Value]
"""Digest of a sample and its settings; method; budget."""

FILE = "answers.json"


def digest(depends_on: Mapping[str, Any], sample: str, identity: str) -> str:
    """One text for a sample and all that its answers depend on besides the arm."""
    text = json.dumps([depends_on, sample, identity], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def read_kept(folder: Path) -> dict[Key, Row]:
    """Rows of all answers that an ablation left in `folder`; empty if there are none.

    Raises
    ------
    DumpError
        If the file cannot be read.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return {(entry["digest"], entry["row"]["method"], entry["row"]["budget"]): entry["row"] for entry in entries}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DumpError(f"{path}: cannot be read ({error!r}); remove it to decode everything again") from None


def write_kept(folder: Path, kept: Mapping[Key, Row]) -> None:
    """Write what `read_kept` reads; JSON, as an answer such as 007 must not become a number."""
    entries = [{"digest": key[0], "row": row} for key, row in kept.items()]
    (folder / FILE).write_text(json.dumps(entries), encoding="utf-8")


def lacking(kept: Iterable[Key], digests: Mapping[str, str], arms: Sequence[Arm]) -> dict[tuple[Arm, ...], list[str]]:
    """Which arms are not there yet, with the samples that lack just these.

    Samples that lack the same arms are asked together, so that all of these share one prefill.
    """
    there = set(kept)
    groups: dict[tuple[Arm, ...], list[str]] = {}
    for sample, name in digests.items():
        missing = tuple(arm for arm in arms if (name, arm.method.name, arm.budget) not in there)
        if missing:
            groups.setdefault(missing, []).append(sample)
    return groups
