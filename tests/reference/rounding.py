"""Whole numbers in proportion to shares, exact to the last unit."""

import math
from collections.abc import Sequence
from fractions import Fraction


def exact(number: float | Fraction) -> Fraction:
    """The decimal that the number was written as: 0.2 is 1/5, not the nearest binary fraction."""
    return number if isinstance(number, Fraction) else Fraction(str(number))


def water_filling(shares: Sequence[float | Fraction], total: int, cap: int) -> list[Fraction]:
    """Real quotas q_i <= cap with sum min(total, K cap), proportional to the shares as far as the cap allows.

    Entries whose quota exceeds the cap are fixed at it and the rest is shared again among the others, proportionally,
    or evenly where their shares are all 0.
    """
    weights = [Fraction(share) for share in shares]
    if any(weight < 0 for weight in weights):
        raise ValueError("shares must not be negative")
    full: set[int] = set()
    while True:
        rest = [i for i in range(len(weights)) if i not in full]
        left = Fraction(min(total, cap * len(weights)) - cap * len(full))
        whole = sum(weights[i] for i in rest)
        quotas = {i: left * weights[i] / whole if whole else left / len(rest) for i in rest}
        over = {i for i in rest if quotas[i] > cap}
        if not over:
            return [quotas.get(i, Fraction(cap)) for i in range(len(weights))]
        full |= over


def largest_remainder(shares: Sequence[float | Fraction], total: int, cap: int) -> list[int]:
    """Whole numbers 0 <= n_i <= cap with sum min(total, K cap), in proportion to the K shares.

    The water-filled quotas are rounded down; what is missing goes, one each, to the largest fractional remainders,
    ties to the lower index, never above the cap. Computed in fractions, so that equal remainders are equal.
    """
    quotas = water_filling(shares, total, cap)
    counts = [math.floor(q) for q in quotas]
    missing = min(total, cap * len(quotas)) - sum(counts)
    order = sorted(range(len(quotas)), key=lambda i: (counts[i] - quotas[i], i))
    for i in [i for i in order if counts[i] < cap][:missing]:
        counts[i] += 1
    return counts
