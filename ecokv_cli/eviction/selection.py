"""From scores to kept positions: exact, stable, and the same rule for every method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ecokv_cli.errors import NonFiniteError

if TYPE_CHECKING:
    from ecokv_cli.eviction.memory import Memory


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
        positions = torch.zeros(valid.shape, dtype=torch.long, device=self.mask.device)
        positions[valid] = self.mask.nonzero()[:, 1]
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
    most = int(counts.max()) if counts.numel() else 0
    if most == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    # Only the value of the last kept score is taken from topk: which of several equal entries it returns is arbitrary.
    best = scores.topk(most, dim=-1).values
    bar = best.gather(-1, (counts - 1).clamp_min(0)[:, None])
    bar = torch.where(counts[:, None] > 0, bar, torch.inf)
    above = scores > bar
    tied = scores == bar
    room = (counts - above.sum(-1))[:, None]
    return above | (tied & (tied.cumsum(-1) <= room))


def keep_everything(heads: int, tokens: int, window: int, device: torch.device, note: str) -> Selection:
    """Nothing evicted."""
    return Selection(torch.ones(heads, tokens, dtype=torch.bool, device=device), min(window, tokens), note)


def with_window(candidates: torch.Tensor, window: int) -> torch.Tensor:
    """The ``[H, M]`` mask of kept candidates, extended by `window` kept positions to ``[H, N]``."""
    return torch.cat([candidates, candidates.new_ones(len(candidates), window)], dim=1)


def require_finite_scores(scores: torch.Tensor, method: str, layer: int) -> None:
    """Refuse scores that are NaN or infinite, naming method, layer and head."""
    bad = (~scores.isfinite()).sum(-1)
    if bad.any():
        head = int(bad.argmax())
        raise NonFiniteError(
            f"{method}: layer {layer}, KV head {head}: {int(bad[head])} of {scores.shape[1]} scores are NaN or "
            f"infinite; the keys, values or queries of this head overflow in this precision"
        )
