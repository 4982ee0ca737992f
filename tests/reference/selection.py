"""Kept positions."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from reference.basics import Indices, array, best_first
from reference.boosters import mixkv_score
from reference.ecokv import ecokv_score
from reference.geometry import keydiff_score
from reference.importance import snapkv_importance


def select(scores: ArrayLike, count: int) -> Indices:
    """Positions of the `count` highest scores of each head [H, count], ascending.

    Sorted by (-score, +index): ties go to the lower index. Non-finite scores are refused.
    """
    s = array(scores)
    if not np.isfinite(s).all():
        raise ValueError("scores must be finite")
    kept = [sorted(best_first(row)[:count]) for row in s]
    return np.array(kept, dtype=np.int64).reshape(len(s), min(count, s.shape[1]))


def add_window(kept: ArrayLike, tokens: int, window: int) -> Indices:
    """Kept candidates [H, C] followed by the last W positions: [H, C + W]."""
    return np.array([[*row, *range(tokens - window, tokens)] for row in np.asarray(kept)], dtype=np.int64)


def streaming_keep(tokens: int, budget: int, sinks: int) -> list[int]:
    """StreamingLLM: the first `sinks` positions and the last budget - sinks, ascending, the same in every head.

    N <= budget keeps everything; a budget below the sinks is refused.
    """
    if tokens <= budget:
        return list(range(tokens))
    if budget < sinks:
        raise ValueError(f"the budget {budget} is below the {sinks} sinks")
    return [*range(sinks), *range(tokens - (budget - sinks), tokens)]


def keep(
    method: str,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    scaling: float,
    *,
    budget: int,
    kernel: int = 5,
    pooling: str = "avg",
    gqa: str = "mean",
    **ecokv_options: Any,
) -> Indices:
    """Kept positions [H, min(budget, N)], ascending, the window's W positions counted in the budget.

    Methods: full, keydiff (no protected window), snapkv, snapkv+mixkv, snapkv+ecokv. N <= budget keeps everything; a
    budget below the window is refused.
    """
    k = array(keys)
    kv_heads, tokens, _ = k.shape
    window = array(queries).shape[1]
    if method == "full" or tokens <= budget:
        return np.array([range(tokens)] * kv_heads, dtype=np.int64)
    if method == "keydiff":
        return select(keydiff_score(k), budget)
    if budget < window:
        raise ValueError(f"the budget {budget} is below the window {window}")
    scores = snapkv_importance(queries, k, scaling, kernel=kernel, pooling=pooling, gqa=gqa)
    if method == "snapkv+mixkv":
        scores = mixkv_score(scores, k, values, window)["F"]
    elif method == "snapkv+ecokv":
        scores = ecokv_score(scores, k, values, window, **ecokv_options)["F"]
    elif method != "snapkv":
        raise ValueError(f"unknown method {method!r}")
    return add_window(select(scores, budget - window), tokens, window)
