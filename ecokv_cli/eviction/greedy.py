"""Greedy choice by marginal relevance: the value of a position falls with its likeness to those already chosen."""

from __future__ import annotations

from typing import Literal

import torch

ProfileKind = Literal["constant", "segments", "quadratic"]


def greedy_order(
    rows: torch.Tensor, picks: int, spread: float, likeness: float, *, aggregate: str = "max", unit: str = "mean"
) -> torch.Tensor:
    """Pick positions one by one by ``mu_i + spread * sigma_i + likeness * u * corr(i, S)``.

    mu and sigma are mean and population standard deviation of the attention that position i receives over the
    window rows; ``corr(i, S)`` is the Pearson correlation of its attention column with those of the chosen set S,
    their maximum or mean, 0 for the empty set and for constant columns (so for a window of 1).

    Parameters
    ----------
    rows
        ``[H, W, M]`` window attention, group mean.
    picks
        How many to choose per head.
    spread, likeness
        The two coefficients; a negative `likeness` avoids what resembles the chosen (MMR).
    aggregate
        ``max`` or ``mean`` over S.
    unit
        ``mean``: u is the head's mean of mu, so that the coefficient does not depend on the prompt's length;
        ``raw``: u = 1.

    Returns
    -------
    torch.Tensor
        ``[H, M]`` ranks: `picks` for the first choice down to 1 for the last, 0 for what was not chosen; of equal
        values the lower position is chosen first. Choices for a smaller budget are the first of these.

    Notes
    -----
    Time O(picks W M) and memory O(W M) per head: columns are standardised once, and each choice costs one product
    with all of them.
    """
    mean = rows.mean(dim=1)
    centred = rows - mean[:, None]
    sigma = centred.square().mean(dim=1).sqrt()
    length = centred.norm(dim=1, keepdim=True)
    rounding = 4 * torch.finfo(rows.dtype).eps * torch.linalg.vector_norm(rows, ord=torch.inf, dim=1, keepdim=True)
    columns = centred.div_(torch.where(length > rounding, length, torch.inf))
    base = mean + spread * sigma
    weight = likeness * (mean.mean(dim=-1, keepdim=True) if unit == "mean" else torch.ones_like(mean[:, :1]))
    heads = torch.arange(len(rows), device=rows.device)
    ranks = torch.zeros_like(mean)
    resemblance = torch.zeros_like(mean)
    for done in range(min(picks, rows.shape[-1])):
        value = base + weight * (resemblance / max(done, 1) if aggregate == "mean" else resemblance)
        best = value.argmax(dim=-1)
        ranks[heads, best] = picks - done
        base[heads, best] = -torch.inf
        correlation = torch.bmm(columns[heads, :, best][:, None], columns)[:, 0]
        if aggregate == "mean" or done == 0:
            resemblance += correlation
        else:
            resemblance = torch.maximum(resemblance, correlation)
    return ranks


def at_depth(values: tuple[float, ...], profile: ProfileKind, layer: int, layers: int) -> float:
    """A coefficient at one layer; with ``x = layer / (layers - 1)`` (0 for a single layer).

    Parameters
    ----------
    values
        One value for ``constant``; those of the first, middle and last third of x for ``segments``; a, b, c of
        ``a + b x + c x^2`` for ``quadratic``.
    profile
        Which of them.
    layer, layers
        Layer number and how many there are.

    Returns
    -------
    float
        The coefficient.
    """
    last = max(layers - 1, 1)
    if profile == "constant":
        return values[0]
    if profile == "segments":
        return values[min(3 * layer // last, 2)]
    x = layer / last
    a, b, c = values
    return a + b * x + c * x * x
