"""Rank correlation of scores and overlap of kept sets."""

import math
from collections.abc import Iterable

from numpy.typing import ArrayLike

from reference.basics import array, mean


def average_ranks(values: ArrayLike) -> list[float]:
    """Ranks from 1, ties share their mean rank."""
    x = [float(v) for v in array(values)]
    return [sum(y < v for y in x) + (sum(y == v for y in x) + 1) / 2 for v in x]


def spearman(a: ArrayLike, b: ArrayLike) -> float | None:
    """Spearman's rank correlation: Pearson's correlation of the average ranks; None where a row is constant."""
    ra, rb = average_ranks(a), average_ranks(b)
    da, db = [x - mean(ra) for x in ra], [x - mean(rb) for x in rb]
    spread = math.sqrt(math.fsum(x * x for x in da) * math.fsum(x * x for x in db))
    return math.fsum(x * y for x, y in zip(da, db, strict=True)) / spread if spread > 0 else None


def jaccard(a: Iterable[int], b: Iterable[int]) -> float:
    """Overlap of two sets, |a and b| / |a or b|; two empty sets agree (1)."""
    first, second = {int(x) for x in a}, {int(x) for x in b}
    return len(first & second) / len(first | second) if first | second else 1.0
