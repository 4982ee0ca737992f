"""The table of visual-head scores of one model, as a JSON file."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ecokv_cli.dump.identity import Identity
from ecokv_cli.errors import DumpError, OutputError

if TYPE_CHECKING:
    from pathlib import Path

    from ecokv_cli.dump.schema import ModelInfo

KIND = "ecokv head scores 1"
LARGEST = 1e9
"""Far above any score (at most 1 per token), and far below where sums overflow."""

_FIELDS: dict[str, tuple[tuple[type, ...], str | None]] = {
    "model": ((str,), None), "config_sha256": ((str,), None), "samples": ((int,), None), "tokens": ((int,), None),
    "revision": ((str, type(None)), None), "weights_sha256": ((str,), ""),
}  # fmt: skip
"""What a file holds besides the scores: kinds, and what stands for a field that is not there."""


@dataclass(frozen=True)
class HeadScores:
    """Mean visual-head score per layer and query head, and what it was measured on.

    Attributes
    ----------
    model, config_sha256, revision, weights_sha256
        Whose heads these are, see `Identity`.
    samples, tokens
        How many samples and counted tokens the means are over.
    scores
        ``scores[layer][query head]`` >= 0, not all 0.
    """

    model: str
    config_sha256: str
    samples: int
    tokens: int
    scores: tuple[tuple[float, ...], ...]
    revision: str | None = None
    weights_sha256: str = ""

    def for_model(self, model: ModelInfo, where: str) -> torch.Tensor:
        """The scores ``[L, H_q]``, if they are those of `model`.

        Raises
        ------
        DumpError
            If they are of another shape or another checkpoint; both are named.
        """
        found, wanted = (len(self.scores), len(self.scores[0])), (model.layers, model.query_heads)
        way_out = "make a table for this model with `ecokv headscores RUN`"
        if found != wanted:
            raise DumpError(
                f"{where}: head scores of {found[0]} layers x {found[1]} query heads ({self.model}), the model here "
                f"has {wanted[0]} x {wanted[1]} ({model.id}); {way_out}"
            )
        differing = Identity(self.model, self.revision, self.config_sha256, self.weights_sha256).told_apart(
            model.identity
        )
        if differing:
            raise DumpError(f"{where}: head scores of {differing[0]}, the model here is {differing[1]}; {way_out}")
        return torch.tensor(self.scores, dtype=torch.float64)


def write_head_scores(path: Path, table: HeadScores, *, force: bool) -> None:
    """Write the table under its final name at once; missing folders are made.

    Raises
    ------
    OutputError
        If the file is there and may not be replaced, or cannot be written.
    """
    if path.exists() and not force:
        raise OutputError(f"{path} exists; add --force to replace it, or name another file with --output")
    data = {"kind": KIND, **vars(table), "shape": [len(table.scores), len(table.scores[0])]}
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise OutputError(f"{path}: cannot be written ({error.strerror}); name another file with --output") from None


def read_head_scores(path: Path) -> HeadScores:
    """Read a table and check that every score is a number in range, and not all are 0.

    Raises
    ------
    DumpError
        If the file is no such table.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DumpError(f"{path}: no such file; make it with `ecokv headscores RUN --output {path}`") from None
    except (OSError, ValueError, RecursionError) as error:  # JSON errors and overlong numbers are ValueErrors
        raise DumpError(f"{path}: cannot be read as head scores ({error})") from None
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise DumpError(f"{path}: not a table of head scores; make one with `ecokv headscores RUN`")
    rows = data.get("scores")
    if not (isinstance(rows, list) and rows and all(isinstance(row, list) and row for row in rows)):
        raise DumpError(f"{path}: scores is not a list of rows, one per layer; make the table again")
    if len({len(row) for row in rows}) != 1:
        raise DumpError(f"{path}: rows of different lengths; make the table again")
    bad = [
        (layer, head) for layer, row in enumerate(rows) for head, score in enumerate(row)
        if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= LARGEST
    ]  # fmt: skip
    if bad:
        raise DumpError(
            f"{path}: layer {bad[0][0]}, head {bad[0][1]}: a score must be a number from 0 to {LARGEST:.0e}"
        )
    if not any(score > 0 for row in rows for score in row):
        raise DumpError(f"{path}: all scores are 0, which gives no head a share; make the table on other samples")
    given: dict[str, Any] = {name: data.get(name, default) for name, (_, default) in _FIELDS.items()}
    wrong = [name for name, (kinds, _) in _FIELDS.items() if type(given[name]) not in kinds]
    if wrong:
        raise DumpError(f"{path}: {wrong[0]} is missing or not as it was written; make the table again")
    return HeadScores(scores=tuple(tuple(map(float, row)) for row in rows), **given)
