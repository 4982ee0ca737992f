"""Quality of a kept set on held-out queries, and the score that knows them."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from reference.basics import Array, array, mean, norms, softmax


def decode_attention(query: ArrayLike, keys: ArrayLike, decode_keys: ArrayLike, step: int, scaling: float) -> Array:
    """Full-cache attention of one decode query [D] over one head's N prompt keys and its decoded keys 0 .. step."""
    seen = [*array(keys), *array(decode_keys)[: step + 1]]
    return np.array(softmax([scaling * float(array(query) @ key) for key in seen]))


def fidelity(
    decode_queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    decode_keys: ArrayLike,
    decode_values: ArrayLike,
    *,
    kept: Sequence[Iterable[int]],
    scaling: float,
) -> dict[str, Array]:
    """Offline quality on held-out queries, each [H], means over (decode step t, query heads of the group).

    Query t sees all N prompt keys and the decoded keys 0 .. t; after eviction the kept prompt keys and the same
    decoded keys, with the softmax renormalised over what is left. mass = 1 - full-cache attention on evicted prompt
    keys, output_error = ||o - o'|| / ||o||, output_cosine = cos(o, o'). Outputs of length 0 are not provided for.
    """
    q, k, v = array(decode_queries), array(keys), array(values)
    dk, dv = array(decode_keys), array(decode_values)
    (heads, steps, _), (kv_heads, tokens, _) = q.shape, k.shape
    group = heads // kv_heads
    out = {name: np.zeros(kv_heads) for name in ("mass", "output_error", "output_cosine")}
    for g in range(kv_heads):
        stay, mass, error, cosine = {int(p) for p in kept[g]}, [], [], []
        for h in range(g * group, (g + 1) * group):
            for t in range(steps):
                p = decode_attention(q[h, t], k[g], dk[g], t, scaling)
                rows = [*v[g], *dv[g, : t + 1]]
                left = [i for i in range(len(rows)) if i >= tokens or i in stay]
                total = math.fsum(p[i] for i in left)
                full = sum(p[i] * rows[i] for i in range(len(rows)))
                less = sum(p[i] / total * rows[i] for i in left)
                mass.append(1 - math.fsum(p[i] for i in range(tokens) if i not in stay))
                error.append(float(norms(full - less) / norms(full)))
                cosine.append(float(full @ less) / float(norms(full) * norms(less)))
        for name, found in zip(out, (mass, error, cosine), strict=True):
            out[name][g] = mean(found)
    return out


def oracle_score(decode_queries: ArrayLike, keys: ArrayLike, decode_keys: ArrayLike, scaling: float) -> Array:
    """Oracle score [H, N]: mean full-cache attention on prompt key j over (decode step, query heads of the group)."""
    q, k, dk = array(decode_queries), array(keys), array(decode_keys)
    (heads, steps, _), (kv_heads, tokens, _) = q.shape, k.shape
    group = heads // kv_heads
    out = np.zeros((kv_heads, tokens))
    for g in range(kv_heads):
        rows = [
            decode_attention(q[h, t], k[g], dk[g], t, scaling)
            for h in range(g * group, (g + 1) * group)
            for t in range(steps)
        ]
        out[g] = [mean(row[j] for row in rows) for j in range(tokens)]
    return out
