"""AdaKV: the heads of one layer share its slots."""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from reference.basics import Array, array, best_first
from reference.rounding import exact, largest_remainder


def ada_counts(
    scores: ArrayLike,
    free: int,
    floor: float = 0.2,
    *,
    normalise: bool = False,
    compat: str = "exact",
    window: int = 0,
) -> list[int]:
    """Free slots of each of the H heads of one layer, from the host's scores [H, M] and C free slots on average.

    raw_h = how many of the H C best scores of all heads together are head h's, ties by (head, position); `normalise`
    first multiplies head h by (sum of its C best) / (its sum). `exact`: the real cap f C + (1 - f) raw_h, rounded by
    largest remainder to the total H C, cap M. `reference`: round(raw_h (1 - f) + int(C f)), halves to even, at most M,
    in floating point; the sum may miss H C. `kvpress`: `_pruned`, totals that include the `window`.
    """
    s = array(scores)
    heads, candidates = s.shape
    if compat == "kvpress":
        return _pruned(s, free, floor, window)
    raw = wins(weighted(s, free) if normalise else s, heads * free)
    if compat in ("reference", "kvcache_factory"):
        return [min(round(won * (1 - floor) + int(free * floor)), candidates) for won in raw]
    f = exact(floor)
    return largest_remainder([f * free + (1 - f) * Fraction(won) for won in raw], heads * free, candidates)


def weighted(scores: Array, free: int) -> Array:
    """Each head times (sum of its `free` best scores) / (sum of all its scores); a head of sum 0 is left alone."""
    out = scores.copy()
    for h, row in enumerate(scores):
        best = math.fsum(row[j] for j in best_first(row)[:free])
        if math.fsum(row) != 0:
            out[h] = row * (best / math.fsum(row))
    return out


def wins(scores: Array, count: int) -> list[int]:
    """How many of the `count` best scores of all heads together belong to each head, ties by (head, position)."""
    order = best_first(scores.reshape(-1))[:count]
    return [sum(at // scores.shape[1] == h for at in order) for h in range(len(scores))]


def _pruned(scores: Array, free: int, floor: float, window: int) -> list[int]:
    """Tokens that each head keeps, the W of the window included: n = C + W of N = M + W on average.

    The window scores above everything. The int(n f) best of each head (at least 1 if f > 0) cannot be lost; then the
    H (N - n) lowest scores of all heads together go, ties from the last (head, position) on.
    """
    heads, candidates = scores.shape
    kept, tokens = free + window, candidates + window
    safe = max(int(kept * floor), 1 if floor > 0 else 0)
    full = np.concatenate([scores, np.full((heads, window), scores.max() + 1)], axis=1)
    for row in full:
        row[best_first(row)[:safe]] = np.inf
    return wins(full, heads * min(kept, tokens))
