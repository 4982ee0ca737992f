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
        Digest of the configuration as loaded, the place it was loaded from and the dtype included.
    """

    id: str
    revision: str | None
    config_sha256: str

    def told_apart(self, other: Identity) -> tuple[str, str] | None:
        """What to call the two so that their difference shows; None if they are the same.

        Two commits decide alone. Otherwise id and configuration must agree: another checkpoint of an architecture may
        have the same configuration, and another folder the same name.
        """
        both = (self, other)
        if all(each.revision and re.fullmatch("[0-9a-f]{40}", each.revision) for each in both):
            if self.revision == other.revision:
                return None
            first, second = (f"{each.id} at commit {str(each.revision)[:12]}" for each in both)
            return first, second
        if self.id != other.id:
            return self.id, other.id
        if self.config_sha256 != other.config_sha256:
            first, second = (f"{each.id} with configuration {each.config_sha256[:12]}" for each in both)
            return first, f"{second} (another folder, dtype or version)"
        return None
