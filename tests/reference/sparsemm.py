"""SparseMM: all KV heads of all layers share the slots in proportion to their visual scores."""

import math

import numpy as np
from numpy.typing import ArrayLike

from reference.basics import Indices, array
from reference.rounding import exact, largest_remainder


def sparse_counts(
    head_scores: ArrayLike, kv_heads: int, free: int, candidates: int, floor: float = 0.1, compat: str = "exact"
) -> Indices:
    """Free slots [L, H] from the scores S [L, Hq] of the query heads, C free slots on average.

    p = S / (sum of S over all layers and heads), summed over the group of each KV head. `exact`: shares C rho + p L H C
    (1 - rho), rounded by largest remainder over all layers and heads to the total L H C, cap M. `reference`: with
    min = int(C rho) and R = (C - min) L Hq // G it is round(p R + min), halves to even, cut at M; a cut is lost.
    """
    s = array(head_scores)
    layers, heads = s.shape
    group, total = heads // kv_heads, math.fsum(s.reshape(-1))
    if not np.isfinite(s).all() or (s < 0).any() or total <= 0:
        raise ValueError("head scores must be finite, not negative and not all zero")
    if compat == "reference":
        least = int(free * floor)
        pot = (free - least) * layers * heads // group
        p = [[math.fsum(x / total for x in row[g : g + group]) for g in range(0, heads, group)] for row in s]
        return np.array([[min(round(share * pot + least), candidates) for share in row] for row in p], dtype=np.int64)
    # Exact fractions, so that heads of equal scores get equal shares.
    grouped = [sum(exact(float(x)) for x in row[g : g + group]) for row in s for g in range(0, heads, group)]
    slots, rho = layers * kv_heads * free, exact(floor)
    shares = [free * rho + score / sum(grouped) * slots * (1 - rho) for score in grouped]
    return np.array(largest_remainder(shares, slots, candidates), dtype=np.int64).reshape(layers, kv_heads)
