"""Attention that every position receives from all queries, without an N x N matrix."""

from __future__ import annotations

import torch

BLOCK = 256
"""Query rows per block; memory is heads x BLOCK x N."""


def received_attention(
    queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Column sums of the causal attention matrix, per query head.

    ``h[j] = sum_{t >= j} softmax(scaling q_t K^T)_j``, block by block over t.

    Parameters
    ----------
    queries
        ``[H_q, N, D]``.
    keys
        ``[H, N, D]``; query head h uses KV head ``h // (H_q / H)``.
    mask
        The model's own mask ``[1, 1, N, N]`` (bool, True = seen, or additive), or None for plain causal attention.
    scaling
        Factor on the products.

    Returns
    -------
    torch.Tensor
        ``[H_q, N]`` fp32 in [0, N]; the sum over j is N. Early positions are summed over more queries.
    """
    heads, n, dim = keys.shape
    group = queries.shape[0] // heads
    grouped = queries.float().view(heads, group, n, dim) * scaling
    turned = keys.float().transpose(1, 2)[:, None]
    columns = torch.arange(n, device=keys.device)
    total = torch.zeros(heads, group, n, dtype=torch.float64, device=keys.device)
    for start in range(0, n, BLOCK):
        rows = slice(start, min(start + BLOCK, n))
        logits = grouped[:, :, rows] @ turned
        if mask is None:
            logits.masked_fill_(columns > columns[rows, None], -torch.inf)
        elif mask.dtype == torch.bool:
            logits.masked_fill_(~mask[0, :, rows, :n], -torch.inf)
        else:
            logits += mask[0, :, rows, :n]
        total += logits.softmax(dim=-1).sum(dim=2, dtype=torch.float64)
    return total.view(heads * group, n).float()
