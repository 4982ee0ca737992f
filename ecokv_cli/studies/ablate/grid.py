"""The grid of alpha and beta: means, the optimum, and how sure it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ecokv_cli.studies.ablate.scores import differences, means
from ecokv_cli.studies.statistics import RESAMPLES, mean_intervals
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ecokv_cli.studies.ablate.scores import Scored

    Array = npt.NDArray[np.float64]

_PAIRED = ("difference", "difference_low", "difference_high", "p")
GRID = (
    "model", "budget", "alpha", "beta", "method", "mean", "low", "high", "wins", "best", "reference", *_PAIRED, "n",
)  # fmt: skip
OPTIMUM = (
    "model", "budget", "alpha", "beta", "method", "mean", "low", "high", "wins", "tied", "level", "cells", "against",
    *_PAIRED, "n",
)  # fmt: skip

_TIE = 1e-9
"""Means that differ by less come from the order of summation."""


def grid_tables(found: Sequence[Scored], seed: int = 0) -> list[Table]:
    """Cells of the grid and its optimum.

    Parameters
    ----------
    found
        The grid at each budget.
    seed
        Seed of the resampling.

    Returns
    -------
    list of Table
        ``grid``: mean score of every cell with its 95 % bootstrap interval over samples, its paired difference to the
        reference (the method with its options as given), and `wins`, see `winning_shares`. ``grid_optimum``: the cell
        with the largest mean; of several the reference, or else the first. `tied` cells share that mean, and `level`
        ones cannot be told from it, as the interval of the paired difference holds 0. The optimum is chosen and judged
        on the same samples, so its mean and difference are optimistic.
    """
    grid, optimum = Table("grid", GRID), Table("grid_optimum", OPTIMUM)
    for one in found:
        variants, against = one.experiment.variants, one.experiment.reference.name
        wins, average = winning_shares(one.scores, seed), one.scores.mean(axis=1)
        best = average >= average.max() - _TIE
        top = max(np.flatnonzero(best), key=lambda i: (variants[i].method.name == against, -i))
        paired = differences(one.scores - one.reference, seed)
        rows = [
            {"model": one.model, "budget": one.budget, "method": variant.method.name, "wins": float(win),
             **variant.levels, **mean, **difference}
            for variant, win, mean, difference in zip(variants, wins, means(one.scores, seed), paired, strict=True)
        ]  # fmt: skip
        for row, is_best in zip(rows, best, strict=True):
            grid.add(best=bool(is_best), reference=row["method"] == against, **row)
        behind = mean_intervals(one.scores[top] - one.scores, seed)[:, 0]
        level = int((behind <= 0).sum()) if one.scores.shape[1] > 1 else None
        optimum.add(tied=int(best.sum()), level=level, cells=len(rows), against=against, **rows[top])
    return [grid, optimum]


def winning_shares(scores: Array, seed: int = 0) -> Array:
    """How often each arm has the largest mean when the samples are drawn anew.

    Parameters
    ----------
    scores
        ``[arms, samples]``.
    seed
        Seed of the resampling.

    Returns
    -------
    numpy.ndarray
        ``[arms]`` shares that sum to 1, over 2000 bootstrap resamples of the samples; arms that tie share a win. Near
        1: a sure optimum; about 1 / arms everywhere: a flat one.
    """
    samples = scores.shape[1]
    counts = np.random.default_rng(seed).multinomial(samples, np.full(samples, 1 / samples), size=RESAMPLES)
    averages = counts @ scores.T / samples
    winners = averages >= averages.max(axis=1, keepdims=True) - _TIE
    shares: Array = (winners / winners.sum(axis=1, keepdims=True)).mean(axis=0)
    return shares
