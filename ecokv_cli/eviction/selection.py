"""From scores to kept positions: exact, stable, and the same rule for every method."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ecokv_cli.errors import NonFiniteError

if TYPE_CHECKING:
    from ecokv_cli.eviction.memory import Memory
    from ecokv_cli.eviction.method import Method

_LONG = 4
"""From so many scores for each kept one on, most of them need no closer look than a comparison with a guess."""


@dataclass(frozen=True)
class Selection:
    """What one method keeps of one layer.

    Attributes
    ----------
    mask
        ``[H, N]`` bool, True = kept. Original positions; heads may keep different numbers.
    window
        How many of the last positions were protected and are part of the mask.
    note
        What a reader of the ledger should know, such as why nothing was evicted; else empty.
    state
        Tokens of the budget per head that pay for a memory instead of positions.
    memory
        What remembers the evicted, for methods that have such a thing.
    exact
        ``[H]`` kept positions per head if every slot of the nominal budget were spent; None if that is so.
    """

    mask: torch.Tensor
    window: int
    note: str = ""
    state: int = 0
    memory: Memory | None = None
    exact: torch.Tensor | None = None

    @property
    def counts(self) -> torch.Tensor:
        """Kept positions per KV head, ``[H]``."""
        return self.mask.sum(dim=-1)

    def indices(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Kept positions, ascending, padded to the longest head.

        Returns
        -------
        tuple of torch.Tensor
            ``[H, longest]`` positions and a bool tensor of the same shape, False where a row is only padding
            (position 0).
        """
        counts = self.counts
        longest = int(counts.max())
        valid = torch.arange(longest, device=self.mask.device) < counts[:, None]
        kept = self.mask.nonzero()[:, 1]
        if valid.all():
            return kept.view(valid.shape), valid
        positions = torch.zeros(valid.shape, dtype=torch.long, device=self.mask.device)
        positions[valid] = kept
        return positions, valid


def top_mask(scores: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Mark the highest scores of each head; equal scores go to the lower position.

    Parameters
    ----------
    scores
        ``[H, M]`` finite; higher = keep.
    counts
        ``[H]`` how many to keep per head, 0 to M.

    Returns
    -------
    torch.Tensor
        ``[H, M]`` bool with exactly ``counts[h]`` True in row h: the first of the order (-score, +position).
    """
    if scores.shape[0] > 1 and scores.stride(0) == 0 and (counts == counts[0]).all():
        # Heads that share their scores are one row in memory.
        return top_mask(scores[:1], counts[:1]).repeat(scores.shape[0], 1)
    wanted = counts.tolist()
    bar = last_kept(scores, wanted)
    kept = scores >= bar
    # No row has too few, so the total tells whether one has too many.
    if int(torch.count_nonzero(kept)) == sum(wanted):
        return kept
    above, tied = scores > bar, scores == bar
    room = (counts - above.sum(-1))[:, None]
    return above | (tied & (tied.cumsum(-1) <= room))


def last_kept(scores: torch.Tensor, wanted: list[int]) -> torch.Tensor:
    """Value of the last score kept in each row, infinity where none is, ``[H, 1]``. They need not be in order."""
    if 0 < scores.shape[1] <= _LONG * wanted[0] and wanted.count(wanted[0]) == len(wanted):
        return scores.topk(wanted[0], sorted=False).values.amin(-1, keepdim=True)
    rows = zip(scores.cpu().numpy(), wanted, strict=True)
    return scores.new_tensor([[_highest(row, count) if count else np.inf] for row, count in rows])


def _highest(row: np.ndarray, rank: int) -> float:
    """The value of the given rank, counted from 1 for the highest."""
    if _LONG * rank < len(row):
        # Of a long row only what is above a guess is looked at, unless the guess from a sample was too high.
        sample = row[::16]
        top = row.compress(row >= _highest(sample, min(rank // 8 + 16, len(sample))))
        row = top if len(top) >= rank else row
    at = len(row) - rank
    return float(np.partition(row, at)[at])


def keep_everything(heads: int, tokens: int, window: int, device: torch.device, note: str) -> Selection:
    """Nothing evicted."""
    return Selection(torch.ones(heads, tokens, dtype=torch.bool, device=device), min(window, tokens), note)


def with_window(candidates: torch.Tensor, window: int) -> torch.Tensor:
    """The ``[H, M]`` mask of kept candidates, extended by `window` kept positions to ``[H, N]``."""
    return torch.cat([candidates, candidates.new_ones(len(candidates), window)], dim=1) if window else candidates


def require_finite_scores(scores: torch.Tensor, method: Method, layer: int) -> None:
    """Refuse scores that are NaN or infinite, naming method, layer and head."""
    # A sum is finite only if all its terms are, and much cheaper to look at.
    if math.isfinite(scores.sum()):
        return
    bad = (~scores.isfinite()).sum(-1)
    if bad.any():
        head = int(bad.argmax())
        raise NonFiniteError(
            f"{method.name}: layer {layer}, KV head {head}: {int(bad[head])} of {scores.shape[1]} scores are NaN or "
            f"infinite; the keys, values or queries of this head overflow in this precision"
        )
