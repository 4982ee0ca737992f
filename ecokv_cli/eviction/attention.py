"""Attention of captured queries over cached keys: the window's own, and that of held-out queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


def window_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    scaling: float,
    *,
    candidates: int,
    gqa: str = "mean",
    seen: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mean attention that each candidate receives from the observation window, per KV head.

    ``A[h, j] = reduce_g (1/W) sum_t softmax_j(scaling <q_{h,g,t}, k_j>)`` for j < `candidates`. Query t is the
    prompt's position N - W + t and sees no later key, unless `seen` says so; the softmax runs over all N keys, so a
    row of A sums to less than 1. Softmax and mean are fp32 (fp64 for fp64 input).

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
        ``mean``, ``max`` or ``sum`` over the group of query heads that share a KV head.
    seen
        ``[W, W]``, not 0 where a window position sees another; None for causal attention.

    Returns
    -------
    torch.Tensor
        ``[H, candidates]`` in [0, 1].
    """
    group, window = len(queries) // len(keys), queries.shape[1]
    total = keys.new_zeros(len(keys), keys.shape[1])
    for heads, rows in _rows(queries, keys, scaling, seen):
        if gqa == "max":
            torch.maximum(total[heads], rows.sum(dim=2).amax(dim=1), out=total[heads])
        else:
            # A product with ones, which reads the rows faster than a sum over them.
            flat = rows.flatten(1, 2)
            total[heads] += torch.bmm(flat.new_ones(len(flat), 1, flat.shape[1]), flat)[:, 0]
    return total[:, :candidates].div_(group * window if gqa == "mean" else window)


def window_rows(
    queries: torch.Tensor, keys: torch.Tensor, scaling: float, *, candidates: int, seen: torch.Tensor | None = None
) -> torch.Tensor:
    """Attention of every window row on every candidate, averaged over the group only.

    As `window_attention`, before the mean over the rows: ``P[h, t, j] = mean_g softmax_j(scaling <q_{h,g,t}, k_j>)``.

    Returns
    -------
    torch.Tensor
        ``[H, W, candidates]`` in [0, 1].
    """
    total = keys.new_zeros(len(keys), queries.shape[1], candidates)
    for heads, rows in _rows(queries, keys, scaling, seen):
        total[heads] += rows.sum(dim=1)[..., :candidates]
    return total.div_(len(queries) // len(keys))


def window_deviation(
    queries: torch.Tensor, keys: torch.Tensor, scaling: float, *, candidates: int, seen: torch.Tensor | None = None
) -> torch.Tensor:
    """Standard deviation of the attention that each candidate receives over the window, averaged over the group.

    ``mean_g std_t softmax_j(scaling <q_{h,g,t}, k_j>)``, of the population; arguments as in `window_attention`.

    Returns
    -------
    torch.Tensor
        ``[H, candidates]`` >= 0.
    """
    total = keys.new_zeros(len(keys), candidates)
    for heads, rows in _rows(queries, keys, scaling, seen):
        total[heads] += rows[..., :candidates].std(dim=2, correction=0).sum(dim=1)
    return total.div_(len(queries) // len(keys))


def _rows(
    queries: torch.Tensor, keys: torch.Tensor, scaling: float, seen: torch.Tensor | None
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Attention rows ``[heads, members, W, N]`` of some query heads at a time, with their KV heads.

    All are made in the same memory, one after the other, so each is valid until the next. It is no larger than the
    keys, or holds a single query head.
    """
    window, dim = queries.shape[1:]
    n = keys.shape[1]
    grouped = (queries * scaling).view(len(keys), -1, window, dim)
    fit, group = max(len(keys) * dim // window, 1), grouped.shape[1]
    members, at_once = min(fit, group), min(max(fit // group, 1), len(keys))
    buffer = keys.new_empty(at_once * members * window * n)
    hidden = torch.ones(window, window, dtype=torch.bool, device=keys.device).triu(1) if seen is None else seen == 0
    for first in range(0, len(keys), at_once):
        heads = slice(first, first + at_once)
        for part in torch.split(grouped[heads], members, dim=1):
            rows = buffer[: part[..., 0].numel() * n].view(*part.shape[:3], n)
            torch.bmm(part.flatten(1, 2), keys[heads].mT, out=rows.flatten(1, 2))
            rows[..., n - window :].masked_fill_(hidden, -torch.inf)
            yield heads, torch.softmax(rows, dim=-1, out=rows)


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
