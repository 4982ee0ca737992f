"""Rank correlation of two per-position scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

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
        One per head. A constant score or fewer than three positions give ``rho = None`` with the reason.
    """
    pairs = zip(first.double().cpu().numpy(), second.double().cpu().numpy(), strict=True)
    return [_one_head(a, b) for a, b in pairs]


def _one_head(a: np.ndarray, b: np.ndarray) -> RankCorrelation:
    n = len(a)
    if n < 3:
        return RankCorrelation(None, n, None, "fewer than 3 positions")
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return RankCorrelation(None, n, None, "a score is constant")
    result = stats.spearmanr(a, b)
    return RankCorrelation(float(result.statistic), n, float(result.pvalue))
