"""Visual-head scores: which query heads look at the word on the page that the model is about to write."""

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from reference.basics import Array, array, best_first, mean

Boxes = Sequence[tuple[str, Collection[int]]]


def positions_of(token: str, boxes: Boxes) -> set[int]:
    """Positions R of the one chunk whose text contains the stripped token; empty if none or several do."""
    text = token.strip()
    found = [set(where) for chunk, where in boxes if text and text in chunk]
    return found[0] if len(found) == 1 else set()


def sample_head_scores(
    window_queries: Sequence[ArrayLike],
    keys: Sequence[ArrayLike],
    decode_queries: Sequence[ArrayLike],
    decode_keys: Sequence[ArrayLike],
    tokens: Sequence[str],
    boxes: Boxes,
) -> Array:
    """Scores [L, Hq] of one sample; arrays per layer: [Hq, W, D], [H, N, D], [Hq, T, D], [H, T, D].

    Decoded token t is predicted by the last window query (t = 0) or by decode query t - 1, which sees the prompt and
    the decoded keys 0 .. t-1. `boxes` are (chunk text, its positions R). Where the stripped token is part of exactly
    one chunk and the key j* of the largest q.k (ties: the lower position) is in R, the head gains 1 / |R|. Summed
    over the tokens.
    """
    out = np.zeros((len(keys), len(array(window_queries[0]))))
    for layer, head in np.ndindex(out.shape):
        prompt, written = array(keys[layer]), array(decode_keys[layer])
        kv_head = head // (out.shape[1] // len(prompt))
        gains = []
        for t, token in enumerate(tokens):
            query = array(window_queries[layer])[head, -1] if t == 0 else array(decode_queries[layer])[head, t - 1]
            context = [*prompt[kv_head], *written[kv_head, :t]]
            where = positions_of(token, boxes)
            if best_first([float(query @ key) for key in context])[0] in where:
                gains.append(1 / len(where))
        out[layer, head] = math.fsum(gains)
    return out


def head_scores(samples: Iterable[ArrayLike]) -> Array:
    """Mean [L, Hq] over the samples' scores, each a sum over its tokens."""
    stacked = np.array([array(sample) for sample in samples])
    out = np.zeros(stacked.shape[1:])
    for at in np.ndindex(out.shape):
        out[at] = mean(sample[at] for sample in stacked)
    return out
