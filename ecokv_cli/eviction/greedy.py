"""Greedy choice by marginal relevance: the value of a position falls with its likeness to those already chosen."""

from __future__ import annotations

from typing import Literal

import torch

ProfileKind = Literal["constant", "segments", "quadratic"]


def greedy_order(
    values: torch.Tensor, vectors: torch.Tensor, picks: int, weight: torch.Tensor, aggregate: str = "max"
) -> torch.Tensor:
    """Pick positions one by one by ``value_i + weight corr(i, S)``, S what was chosen so far.

    Parameters
    ----------
    values
        ``[H, M]`` of the candidates by themselves.
    vectors
        ``[H, W, M + P]`` a vector of each position, whose products are corr; the last P positions are in S from the
        start. See `standardised`.
    picks
        How many to choose per head.
    weight
        ``[H, 1]``; where negative, what resembles the chosen is avoided (MMR).
    aggregate
        ``max`` or ``mean`` of corr over S; 0 for the empty set.

    Returns
    -------
    torch.Tensor
        ``[H, M]`` ranks: `picks` for the first choice down to 1 for the last, 0 for what was not chosen; of equal
        values the lower position is chosen first. Choices for a smaller budget are the first of these.

    Notes
    -----
    Time O(picks W M) and memory O((W + P) M) per head: each choice costs one product with all vectors.
    """
    count = values.shape[1]
    columns, chosen = vectors[..., :count], vectors[..., count:]
    heads = torch.arange(len(values), device=values.device)
    left, ranks = values.clone(), torch.zeros_like(values)
    before = torch.bmm(chosen.mT, columns)
    resemblance = torch.zeros_like(values)
    if before.shape[1]:
        resemblance = before.amax(dim=1) if aggregate == "max" else before.sum(dim=1)
    for done in range(min(picks, count)):
        size = before.shape[1] + done
        best = (left + weight * (resemblance / max(size, 1) if aggregate == "mean" else resemblance)).argmax(dim=-1)
        ranks[heads, best] = picks - done
        left[heads, best] = -torch.inf
        correlation = torch.bmm(columns[heads, :, best][:, None], columns)[:, 0]
        if aggregate == "mean" or size == 0:
            resemblance = resemblance + correlation
        else:
            resemblance = torch.maximum(resemblance, correlation)
    return ranks


def standardised(rows: torch.Tensor) -> torch.Tensor:
    """Columns of ``[H, W, n]`` less their mean and of length 1, so that their products are Pearson correlations.

    A column that is constant to rounding becomes zeros, which correlate with nothing; so do all for W = 1.
    """
    centred = rows - rows.mean(dim=1, keepdim=True)
    length = centred.norm(dim=1, keepdim=True)
    rounding = 4 * torch.finfo(rows.dtype).eps * torch.linalg.vector_norm(rows, ord=torch.inf, dim=1, keepdim=True)
    return centred.div_(torch.where(length > rounding, length, torch.inf))


def unit_of(mean: torch.Tensor, unit: str) -> torch.Tensor:
    """What one unit of likeness is worth beside a mean attention ``[H, M]``: ``[H, 1]``.

    ``mean``: the head's mean, so that a coefficient does not depend on the length of the prompt; ``range``: from the
    least to the largest; ``raw``: 1.
    """
    if unit == "mean":
        return mean.mean(dim=-1, keepdim=True)
    if unit == "range":
        return mean.amax(dim=-1, keepdim=True) - mean.amin(dim=-1, keepdim=True)
    return torch.ones_like(mean[:, :1])


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
