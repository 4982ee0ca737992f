"""Scores from attention: how much the prompt's own queries look at a position. Higher = keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from ecokv_cli.eviction.layer import Layer


def pool(scores: torch.Tensor, kernel: int, mode: str) -> torch.Tensor:
    """1-D pooling over positions, stride 1, same length.

    Parameters
    ----------
    scores
        ``[H, M]``.
    kernel
        Odd width; 1 changes nothing.
    mode
        ``avg`` pads with zeros and always divides by `kernel`, as published code does, so the first and last
        ``kernel // 2`` candidates are damped; ``max`` pads with minus infinity.

    Returns
    -------
    torch.Tensor
        ``[H, M]``.
    """
    if kernel == 1 or scores.shape[-1] == 0:
        return scores
    if mode == "max":
        return F.max_pool1d(scores, kernel, stride=1, padding=kernel // 2)
    # A mean over shifted views takes an eighth of the time of torch's avg_pool1d.
    return F.pad(scores, (kernel // 2, kernel // 2)).unfold(-1, kernel, 1).mean(dim=-1)


def snapkv_importance(
    layer: Layer, *, window: int, candidates: int, kernel: int = 5, pooling: str = "avg", gqa: str = "mean"
) -> torch.Tensor:
    """SnapKV: mean attention of the last `window` queries, averaged over the group, then pooled.

    Parameters
    ----------
    layer
        Needs keys and at least `window` window queries.
    window
        Observation window W.
    candidates
        Number of leading positions that compete; pooling sees only these.
    kernel, pooling, gqa
        See `pool` and `window_attention`.

    Returns
    -------
    torch.Tensor
        ``[H, candidates]`` in [0, 1].

    Notes
    -----
    SnapKV, arXiv 2404.14469. The original sums over the window and repeats keys per query head; the mean has the
    same ranking, and selection here is per KV head.
    """
    return pool(layer.attention(window, gqa)[:, :candidates], kernel, pooling)


def tova_importance(layer: Layer, *, window: int, candidates: int) -> torch.Tensor:
    """TOVA: attention of the last query, averaged over all query heads of the layer; equal rows for all KV heads.

    Parameters
    ----------
    layer
        Needs keys and window queries.
    window
        How many of the last queries are averaged; TOVA takes 1.
    candidates
        Number of leading positions that compete.

    Returns
    -------
    torch.Tensor
        ``[H, candidates]`` in [0, 1].

    Notes
    -----
    TOVA, arXiv 2401.06104.
    """
    return layer.attention(window)[:, :candidates].mean(0).expand(layer.kv_heads, -1)


def received_importance(
    layer: Layer, *, candidates: int, average: bool, gqa: str = "mean", method: str = "h2o"
) -> torch.Tensor:
    """Attention received from all prompt queries, reduced over the group.

    ``h[j] = reduce_g sum_{t >= j} P[g, t, j]``, divided by the N - j queries that see position j if `average`.

    Parameters
    ----------
    layer
        Needs `received_attention`.
    candidates
        Number of leading positions to return.
    average
        False: the sum, in [0, N], which early positions win by being seen more often. True: the mean, in [0, 1].
    gqa
        ``mean``, ``max`` or ``sum`` over the group.
    method
        Name for the error message.

    Returns
    -------
    torch.Tensor
        ``[H, candidates]``.

    Raises
    ------
    DumpError
        If the dump holds no received attention; it cannot be had from window queries alone.

    Notes
    -----
    Sum: H2O, arXiv 2306.14048. Mean: the "observed attention" of the kvpress library.
    """
    grouped = layer.require("received_attention", method).view(layer.kv_heads, -1, layer.tokens)
    received = grouped.amax(1) if gqa == "max" else grouped.sum(1)
    if gqa == "mean":
        received = received / grouped.shape[1]
    if average:
        received = received / torch.arange(layer.tokens, 0, -1, device=received.device)
    return received[:, :candidates]


def oracle_score(layer: Layer, candidates: int) -> torch.Tensor:
    """Mean held-out attention of each candidate, ``[H, candidates]``; keeping its top B keeps the most mass."""
    return layer.held_out_logits.softmax(dim=-1)[..., :candidates].mean(dim=1)
