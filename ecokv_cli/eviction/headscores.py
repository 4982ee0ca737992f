"""Visual-head scores: which query heads look at the place in the image that the next token is read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ecokv_cli.eviction.layer import Layer


@dataclass(frozen=True)
class Target:
    """A decoded token that stands in the image: its number in the answer, and the positions that show it."""

    step: int
    positions: tuple[int, ...]


def head_hits(layer: Layer, targets: Sequence[Target]) -> torch.Tensor:
    """Score of every query head on one sample: ``sum_t [argmax_j q_t k_j in R_t] / |R_t|``.

    Parameters
    ----------
    layer
        Needs window and decode queries.
    targets
        Decoded tokens with the prompt positions R of the image cells that show them. Token t is predicted by the
        last prompt query (t = 0) or by the query of token t - 1, and looked for among all positions before it,
        prompt and decoded.

    Returns
    -------
    torch.Tensor
        ``[H_q]`` fp64 >= 0; 0 = never looked at the right place. A small region counts more than a large one.

    Notes
    -----
    SparseMM, arXiv 2506.05344, computed from a dump instead of a model run.
    """
    heads, tokens = layer.kv_heads, layer.tokens
    queries = torch.cat([layer.window_queries[:, -1:], layer.decode_queries], dim=1)
    steps = torch.tensor([target.step for target in targets], device=queries.device)
    asked = queries[:, steps].reshape(heads, -1, queries.shape[-1])
    keys = torch.cat([layer.keys, layer.decode_keys], dim=1)
    logits = (asked @ keys.transpose(1, 2)).view(len(queries), len(steps), -1)
    # The query of token t - 1 sees its own key: t decoded keys in all.
    unseen = torch.arange(logits.shape[-1], device=logits.device) >= tokens + steps[:, None]
    best = logits.masked_fill_(unseen, -torch.inf).argmax(dim=-1)
    worth = torch.zeros(len(steps), logits.shape[-1], dtype=torch.float64, device=logits.device)
    for row, target in enumerate(targets):
        worth[row, list(target.positions)] = 1 / len(target.positions)
    return worth.expand(len(queries), -1, -1).gather(2, best[..., None])[..., 0].sum(-1)
