"""Host scores: how much a position matters, whatever else is kept. Higher = keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from ecokv_cli.eviction.attention import window_attention

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
    return F.avg_pool1d(scores[:, None], kernel, stride=1, padding=kernel // 2, count_include_pad=True)[:, 0]


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
    queries = layer.window_queries[:, layer.window_queries.shape[1] - window :]
    attention = window_attention(queries, layer.keys, layer.scaling, candidates=candidates, gqa=gqa)
    return pool(attention, kernel, pooling)


def value_norms(layer: Layer, candidates: int) -> torch.Tensor:
    """Euclidean norm of each value, ``[H, candidates]``; attention sinks have tiny ones."""
    norms: torch.Tensor = torch.linalg.vector_norm(layer.values[:, :candidates], dim=-1)
    return norms


def keydiff_score(layer: Layer, candidates: int) -> torch.Tensor:
    """KeyDiff: minus the cosine of each key to the mean unit key, ``-cos(k_j, mean_N u)``.

    Parameters
    ----------
    layer
        Needs keys only.
    candidates
        Number of leading positions to score; the mean is over all N.

    Returns
    -------
    torch.Tensor
        ``[H, candidates]`` in [-1, 1]; high = unlike the rest. All 0 where the mean vanishes.

    Notes
    -----
    KeyDiff, arXiv 2504.15364, scored once over the whole prompt; the paper applies it block by block.
    """
    units = layer.unit_keys
    mean = units.mean(dim=1, dtype=torch.float64)
    direction = F.normalize(mean, dim=-1).to(units.dtype)
    return -torch.einsum("hnd,hd->hn", units[:, :candidates], direction)


def oracle_score(layer: Layer, candidates: int) -> torch.Tensor:
    """Mean held-out attention of each candidate, ``[H, candidates]``; keeping its top B keeps the most mass."""
    return layer.held_out[..., :candidates].mean(dim=1)
