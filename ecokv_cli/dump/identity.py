"""Whether two dumps, tables or models are of one checkpoint, as far as can be told without reading its weights."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Identity:
    """What is known of a checkpoint.

    Attributes
    ----------
    id
        Hub id, or name of the folder or .gguf file.
    revision
        Commit of a hub id, which stands for its weights; None for what lies on the disk.
    config_sha256
        Digest of the configuration, apart from where and how it was loaded.
    weights_sha256
        Digest of some numbers of every weight; empty where unknown.
    """

    id: str
    revision: str | None
    config_sha256: str
    weights_sha256: str = ""

    def told_apart(self, other: Identity) -> tuple[str, str] | None:
        """What to call the two so that their difference shows; None if they are the same.

        Two digests of weights decide alone, else two commits. Otherwise id and configuration must agree: another
        checkpoint of an architecture may have the same configuration, and another folder the same name.
        """
        for words, first, second in (
            ("with weights", self.weights_sha256, other.weights_sha256),
            ("at commit", _commit(self.revision), _commit(other.revision)),
        ):
            if first and second:
                return None if first == second else _named(words, (self.id, first), (other.id, second))
        if self.id != other.id:
            return self.id, other.id
        if self.config_sha256 != other.config_sha256:
            return _named("with configuration", (self.id, self.config_sha256), (other.id, other.config_sha256))
        return None


def _commit(revision: str | None) -> str:
    """A revision that is a commit; a branch or tag may move."""
    return revision if revision and re.fullmatch("[0-9a-f]{40}", revision) else ""


def _named(words: str, first: tuple[str, str], second: tuple[str, str]) -> tuple[str, str]:
    return f"{first[0]} {words} {first[1][:12]}", f"{second[0]} {words} {second[1][:12]}"
