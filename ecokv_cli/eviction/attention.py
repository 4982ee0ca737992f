"""Attention of captured queries over cached keys: the window's own, and that of held-out queries."""

from __future__ import annotations

import functools

import torch


def window_attention(
    queries: torch.Tensor, keys: torch.Tensor, scaling: float, *, candidates: int, gqa: str = "mean"
) -> torch.Tensor:
    """Mean attention that each candidate receives from the observation window, per KV head.

    ``A[h, j] = reduce_g (1/W) sum_t softmax_j(scaling <q_{h,g,t}, k_j>)`` for j < `candidates`. Query t is the
    prompt's position N - W + t and sees no later key; the softmax runs over all N keys, so a row of A sums to less
    than 1. Softmax and mean are fp32 (fp64 for fp64 input).

    Parameters
    ----------
    queries
        ``[H_q, W, D]`` queries of the last W positions.
    keys
        ``[H, N, D]``, N >= W.
    scaling
        Factor on the products.
    candidates
        How many leading positions to return.
    gqa
        ``mean`` or ``max`` over the group of query heads that share a KV head.

    Returns
    -------
    torch.Tensor
        ``[H, candidates]`` in [0, 1].
    """
    heads, _, dim = keys.shape
    window = queries.shape[1]
    grouped = queries.view(heads, -1, window, dim)
    # One query head of every group at a time: O(H W N) memory whatever the group size.
    members = (_rows(member, keys, scaling)[..., :candidates].mean(dim=1) for member in grouped.unbind(1))
    total = functools.reduce(torch.maximum if gqa == "max" else torch.add, members)
    return total / grouped.shape[1] if gqa == "mean" else total


def window_rows(queries: torch.Tensor, keys: torch.Tensor, scaling: float, *, candidates: int) -> torch.Tensor:
    """Attention of every window row on every candidate, averaged over the group only.

    As `window_attention`, before the mean over the rows: ``P[h, t, j] = mean_g softmax_j(scaling <q_{h,g,t}, k_j>)``.

    Returns
    -------
    torch.Tensor
        ``[H, W, candidates]`` in [0, 1].
    """
    heads, _, dim = keys.shape
    grouped = queries.view(heads, -1, queries.shape[1], dim)
    rows = (_rows(member, keys, scaling)[..., :candidates] for member in grouped.unbind(1))
    return functools.reduce(torch.add, rows) / grouped.shape[1]


def _rows(queries: torch.Tensor, keys: torch.Tensor, scaling: float) -> torch.Tensor:
    """Causal attention rows of one query head per KV head, ``[H, W, N]``."""
    window = queries.shape[1]
    later = torch.ones(window, window, dtype=torch.bool, device=keys.device).triu(1)
    logits = (queries * scaling) @ keys.transpose(1, 2)
    logits[..., keys.shape[1] - window :].masked_fill_(later, -torch.inf)
    return logits.softmax(dim=-1)


def held_out_logits(
    queries: torch.Tensor, keys: torch.Tensor, decode_keys: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Attention logits of decoded tokens over the prompt and the tokens decoded so far.

    Parameters
    ----------
    queries
        ``[H_q, T, D]`` queries of T decoded tokens.
    keys
        ``[H, N, D]`` prompt keys.
    decode_keys
        ``[H, T, D]`` their own keys; query t sees decoded keys 0..t.
    scaling
        Factor on the products.

    Returns
    -------
    torch.Tensor
        ``[H, G * T, N + T]``, minus infinity where a token is not decoded yet; row ``g * T + t`` is query head
        ``h * G + g`` at step t. Logits and not attention, because what is nothing beside the full cache may be all
        that is left of an evicted one.
    """
    heads, n, dim = keys.shape
    steps = queries.shape[1]
    rows = queries.view(heads, -1, dim) * scaling
    logits = torch.cat([rows @ keys.transpose(1, 2), rows @ decode_keys.transpose(1, 2)], dim=-1)
    later = torch.ones(steps, steps, dtype=torch.bool, device=keys.device).triu(1)
    logits.view(heads, -1, steps, n + steps)[..., n:].masked_fill_(later, -torch.inf)
    return logits
