"""Importance: scores from attention or from the length of one token's own vectors. A higher score means: keep."""

import numpy as np
from numpy.typing import ArrayLike

from reference.attention import reduce_attention, window_attention
from reference.basics import Array, array, mean, norms


def snapkv_importance(
    queries: ArrayLike,
    keys: ArrayLike,
    scaling: float,
    *,
    kernel: int = 5,
    pooling: str = "avg",
    gqa: str = "mean",
    keep_window: int | None = None,
) -> Array:
    """SnapKV score A [H, M]: window attention, mean over the window rows, group reduction, pooling."""
    attention = window_attention(queries, keys, scaling)
    return reduce_attention(
        attention, len(array(keys)), kernel=kernel, pooling=pooling, gqa=gqa, keep_window=keep_window
    )


def h2o_score(received: ArrayLike, kv_heads: int) -> Array:
    """H2O score [H, N]: the received attention (a sum over all causal queries) [Hq, N], mean over the group.

    Key j is summed over its N - j queries, so early keys are favoured. No pooling.
    """
    r = array(received)
    group = len(r) // kv_heads
    out = np.zeros((kv_heads, r.shape[1]))
    for g, j in np.ndindex(out.shape):
        out[g, j] = mean(r[h, j] for h in range(g * group, (g + 1) * group))
    return out


def observed_score(received: ArrayLike, kv_heads: int) -> Array:
    """Observed attention [H, N]: the received attention [Hq, N] over the number N - j of queries that see key j.

    Mean over the group. No pooling, no protected positions.
    """
    r = array(received)
    tokens = r.shape[1]
    return h2o_score([[row[j] / (tokens - j) for j in range(tokens)] for row in r], kv_heads)


def tova_score(queries: ArrayLike, keys: ArrayLike, scaling: float) -> Array:
    """TOVA score [H, N]: attention of the last query, mean over all Hq query heads, the same row for each KV head."""
    q, k = array(queries), array(keys)
    attention = window_attention(q[:, -1:], k, scaling)
    row = [mean(attention[h, 0, j] for h in range(len(q))) for j in range(k.shape[1])]
    return np.array([row] * len(k))


def value_norm(values: ArrayLike) -> Array:
    """Value norm ||v_j|| [H, N]: long values are kept."""
    return norms(values)


def knorm(keys: ArrayLike) -> Array:
    """Key norm -||k_j|| [H, N]: short keys are kept."""
    return -norms(keys)
