"""Attention of the window's queries, and of all queries, on the prompt."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from reference.basics import Array, array, mean, softmax


def window_attention(queries: ArrayLike, keys: ArrayLike, scaling: float) -> Array:
    """Window attention: P [Hq, W, N], the softmax of the window's queries over all N keys.

    Window row t sits at position p = N - W + t and sees the keys 0 .. p; later keys have probability 0.
    Each row sums to 1, window keys included.
    """
    q, k = array(queries), array(keys)
    (heads, window, _), (kv_heads, tokens, _) = q.shape, k.shape
    out = np.zeros((heads, window, tokens))
    for h in range(heads):
        for t in range(window):
            seen = tokens - window + t + 1
            head_keys = k[h // (heads // kv_heads)]
            out[h, t, :seen] = softmax([scaling * float(q[h, t] @ head_keys[j]) for j in range(seen)])
    return out


def received_attention(queries: ArrayLike, keys: ArrayLike, scaling: float) -> Array:
    """Attention that key j receives from all N causal queries: sum over t = j .. N-1 of P[h, t, j], [Hq, N].

    The queries [Hq, N, D] are those of every position; query t sees the keys 0 .. t. Each head's row sums to N.
    """
    q, k = array(queries), array(keys)
    (heads, tokens, _), kv_heads = q.shape, len(k)
    out = np.zeros((heads, tokens))
    for h in range(heads):
        head_keys = k[h // (heads // kv_heads)]
        received: list[list[float]] = [[] for _ in range(tokens)]
        for t in range(tokens):
            row = softmax([scaling * float(q[h, t] @ head_keys[j]) for j in range(t + 1)])
            for j in range(t + 1):
                received[j].append(row[j])
        out[h] = [math.fsum(column) for column in received]
    return out


def group_attention(attention: ArrayLike, kv_heads: int, candidates: int) -> Array:
    """Window rows per KV head: P [Hq, W, N] -> [H, W, M], the mean over the group, cut to the M candidates."""
    p = array(attention)
    group = len(p) // kv_heads
    out = np.zeros((kv_heads, p.shape[1], candidates))
    for g, t, j in np.ndindex(out.shape):
        out[g, t, j] = mean(p[h, t, j] for h in range(g * group, (g + 1) * group))
    return out


def pool(row: Sequence[float], kernel: int, pooling: str) -> list[float]:
    """Pooling of one row of candidates: stride 1, odd kernel.

    avg pads with zeros and always divides by the kernel; max pads with -inf.
    """
    if kernel % 2 != 1:
        raise ValueError(f"the kernel must be odd, found {kernel}")
    half, out = kernel // 2, []
    for j in range(len(row)):
        inside = [float(row[i]) for i in range(j - half, j + half + 1) if 0 <= i < len(row)]
        out.append({"avg": math.fsum(inside) / kernel, "max": max(inside)}[pooling])
    return out


def reduce_attention(
    attention: ArrayLike,
    kv_heads: int,
    *,
    kernel: int = 5,
    pooling: str = "avg",
    gqa: str = "mean",
    keep_window: int | None = None,
) -> Array:
    """Group reduction and pooling order: P [Hq, W, N] -> A [H, M].

    Mean over the W rows per query head, cut to the M candidates, mean, maximum or sum over the group, then pooling over
    the candidates. M = N - `keep_window`, the positions kept without a score; W of them unless given.
    """
    p = array(attention)
    heads, window, tokens = p.shape
    group, candidates = heads // kv_heads, tokens - (window if keep_window is None else keep_window)
    out = np.zeros((kv_heads, candidates))
    for g in range(kv_heads):
        row = []
        for j in range(candidates):
            per_head = [mean(p[h, t, j] for t in range(window)) for h in range(g * group, (g + 1) * group)]
            row.append({"mean": mean(per_head), "max": max(per_head), "sum": math.fsum(per_head)}[gqa])
        out[g] = pool(row, kernel, pooling)
    return out
