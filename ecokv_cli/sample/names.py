"""Folder names of samples: letters, digits, dot, dash and underscore."""

from __future__ import annotations

import re
from pathlib import Path

LONGEST_ID = 120
"""Characters of a folder name made from an id; leaves room for the suffixes of temporary folders."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_SEPARATORS = re.compile(r"[/\\]")
_DRIVE = re.compile(r"[A-Za-z]:")


def sample_name(source: str) -> str:
    """A folder name for a sample from its image's name, or ``sample`` where that has no usable character."""
    stem = Path(source).stem if source not in ("", "-") else ""
    return _safe(stem)[:60] or "sample"


def id_name(identifier: str) -> str:
    """A folder name from a sample's id: other characters than the allowed ones become dashes.

    Raises
    ------
    ValueError
        If the id is a path that leaves the folder, or has no usable character; the text says what was expected.
    """
    parts = _SEPARATORS.split(identifier)
    if len(parts) > 1 and (".." in parts or parts[0] == "" or _DRIVE.fullmatch(parts[0])):
        raise ValueError("an id that stays inside the run folder, without a leading / and without ..")
    name = _safe(identifier)[:LONGEST_ID]
    if not name:
        raise ValueError("at least one of the characters A-Z a-z 0-9 _ (leave the id out to number by line)")
    return name


def _safe(text: str) -> str:
    """`text` with runs of unusable characters as one dash; never hidden, never ``.`` or ``..``."""
    return _UNSAFE.sub("-", text).strip(".-")
