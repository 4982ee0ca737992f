"""Greedy selection by attention, its dispersion and its correlation with what is selected; profiles over depth."""

import math
from collections.abc import Sequence

from numpy.typing import ArrayLike

from reference.attention import pool
from reference.basics import array, constant, mean


def deviation(column: Sequence[float]) -> float:
    """Population standard deviation; 0 for a constant column."""
    centre = mean(column)
    return 0.0 if constant(column) else math.sqrt(mean((x - centre) ** 2 for x in column))


def pearson(a: Sequence[float], b: Sequence[float]) -> float:
    """Pearson's correlation of two columns; 0 where one of them is constant."""
    if constant(a) or constant(b):
        return 0.0
    covariance = mean((x - mean(a)) * (y - mean(b)) for x, y in zip(a, b, strict=True))
    return covariance / (deviation(a) * deviation(b))


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """Cosine of two vectors; 0 where one of them is zero."""
    product = math.fsum(x * y for x, y in zip(a, b, strict=True))
    lengths = math.sqrt(math.fsum(x * x for x in a)) * math.sqrt(math.fsum(y * y for y in b))
    return product / lengths if lengths > 0 else 0.0


def mmr_order(
    attention: ArrayLike,
    picks: int,
    l1: float,
    l2: float,
    *,
    aggregate: str = "max",
    unit: str = "mean",
    started: int = 0,
    keys: ArrayLike | None = None,
    members: ArrayLike | None = None,
    kernel: int = 1,
) -> list[int]:
    """Candidates in the order they are picked, from one KV head's window attention [W, M] (mean over its group).

    Each pick has the largest mu_i + l1 sigma_i + l2 corr(i, S): mean and population deviation of column i over the W
    rows, and the max or mean over the set S picked so far of the Pearson correlation of the columns, 0 for an empty S
    or a constant column. `unit` multiplies corr by the mean of mu over the candidates, or by its range. Ties: lower
    index. The last `started` columns are no candidates and in S from the start. With `keys` [M, D] corr is their
    cosine. With the attention of the group's `members` [G, W, M] sigma is the mean of their deviations. `kernel`: mu
    is averaged over so many neighbours, zeros beyond the ends.
    """
    columns = [[float(x) for x in column] for column in array(attention).T]
    count = len(columns) - started
    mu = [mean(column) for column in columns[:count]]
    size = {"mean": mean(mu), "range": max(mu) - min(mu), "raw": 1.0}[unit]
    if members is None:
        sigma = [deviation(column) for column in columns[:count]]
    else:
        sigma = [mean(deviation([float(x) for x in rows[:, i]]) for rows in array(members)) for i in range(count)]
    mu = pool(mu, kernel, "avg")
    vectors = columns if keys is None else [[float(x) for x in key] for key in array(keys)]
    likeness = pearson if keys is None else cosine
    picked: list[int] = []
    while len(picked) < min(picks, count):
        scores = {}
        for i in range(count):
            if i not in picked:
                found = [likeness(vectors[i], vectors[j]) for j in [*picked, *range(count, len(columns))]]
                corr = {"max": max(found), "mean": mean(found)}[aggregate] if found else 0.0
                scores[i] = mu[i] + l1 * sigma[i] + l2 * size * corr
        picked.append(min(scores, key=lambda i: (-scores[i], i)))
    return picked


def profile_value(values: Sequence[float], kind: str, layer: int, layers: int) -> float:
    """A coefficient at depth x = l / (L - 1), 0 for one layer alone.

    constant: the one value. segments: one value for each third of [0, 1], a boundary belonging to the upper third.
    quadratic: a + b x + c x^2.
    """
    if kind == "constant":
        return values[0]
    if kind == "segments":
        return values[min(3 * layer // (layers - 1), 2) if layers > 1 else 0]
    if kind == "quadratic":
        x = layer / (layers - 1) if layers > 1 else 0.0
        return values[0] + values[1] * x + values[2] * x**2
    raise ValueError(f"unknown profile {kind!r}")
