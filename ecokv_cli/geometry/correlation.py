"""Rank correlation of two per-position scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's rho of one head.

    Attributes
    ----------
    rho
        In [-1, 1], or None when it is undefined.
    n
        Number of positions compared.
    p
        Two-sided p-value of rho = 0 under independent positions; positions of one prompt are not independent, so
        read it as a description, not as a test.
    note
        Why rho is undefined, else empty.
    """

    rho: float | None
    n: int
    p: float | None
    note: str = ""


def rank_correlation(first: torch.Tensor, second: torch.Tensor) -> list[RankCorrelation]:
    """Spearman's rho per head, average ranks for ties.

    Parameters
    ----------
    first, second
        ``[H, M]`` scores of the same positions.

    Returns
    -------
    list of RankCorrelation
        One per head. A constant score or fewer than three positions give ``rho = None`` with the reason. The p-value
        is that of Student's t with ``n - 2`` degrees of freedom.
    """
    return [_one_head(a, b) for a, b in zip(first.cpu().numpy(), second.cpu().numpy(), strict=True)]


def _one_head(a: np.ndarray, b: np.ndarray) -> RankCorrelation:
    n = len(a)
    if n < 3:
        return RankCorrelation(None, n, None, "fewer than 3 positions")
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return RankCorrelation(None, n, None, "a score is constant")
    x, y = centred_ranks(a), centred_ranks(b)
    # Sums and not BLAS products, whose threads stay awake beside torch's for a while.
    rho = float((x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()))
    rho = min(max(rho, -1.0), 1.0)
    t = np.inf if abs(rho) == 1 else abs(rho) * np.sqrt((n - 2) / (1 - rho * rho))
    return RankCorrelation(rho, n, float(2 * special.stdtr(n - 2, -t)))


def centred_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks minus their mean; equal values share the mean of their ranks."""
    n = len(values)
    order = np.argsort(values)
    ascending = values[order]
    places = np.arange(n) - (n - 1) / 2
    other = ascending[1:] != ascending[:-1]
    if not other.all():
        starts = np.flatnonzero(np.concatenate([[True], other]))
        sizes = np.diff(starts, append=n)
        places = np.repeat(starts + (sizes - n) / 2, sizes)
    ranks = np.empty(n)
    ranks[order] = places
    return ranks
