"""The distribution of the pairwise cosines of each head: all pairs, or a seeded sample of them where N is large."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ecokv_cli.geometry.similarity import inverse, lengths, scaled, unit_vectors, working

if TYPE_CHECKING:
    from collections.abc import Sequence

EXACT_TOKENS = 4096
"""Largest N whose N (N - 1) / 2 pairs are all counted; beyond, the time (it grows with N^2) would rule the analysis."""

COARSE = 100
"""Equal bins over [-1, 1] that `CosineHistogram.shares` returns."""

_TILE = 1024
"""Positions on either side of a block of pairs, or paired with their neighbours at a time: what caches hold."""

# Fine bins count gaps g = (1 - cos) * COARSE / 2 in [0, COARSE], in units of one coarse bin: whole gaps are edges.
# They are the fp32 numbers with the same leading bits: 2^_BITS equal bins from each power of two to the next.
_BITS = 8
_SHIFT = 23 - _BITS


def _leading_bits(gap: float) -> int:
    return int(torch.tensor(gap).view(torch.int32)) >> _SHIFT


_SMALLEST = 2.0**-18
_FIRST = _leading_bits(_SMALLEST) - 1
# Cosine -1 belongs to the lowest bin and cosine 0, of zero vectors, to the one above 0.
_LARGEST, _ORTHOGONAL = torch.nextafter(torch.tensor([float(COARSE), COARSE / 2]), torch.zeros(2)).tolist()
_BINS = _leading_bits(_LARGEST) - _FIRST + 1
_ORTHOGONAL_BIN = _leading_bits(_ORTHOGONAL) - _FIRST


def _edges() -> torch.Tensor:
    edges = (torch.arange(_FIRST, _FIRST + _BINS + 1, dtype=torch.int32) << _SHIFT).view(torch.float32).double()
    edges[0] = 0
    return edges


@dataclass(frozen=True)
class CosineHistogram:
    """Counts of pairwise cosines, in bins that narrow towards 1, where real keys crowd.

    The width of a bin is at most 1/256 of ``1 - cos`` (or 8e-8, the rounding of fp32), so that a head whose
    cosines lie between 0.997 and 1 is resolved as well as one around 0.

    Attributes
    ----------
    counts
        ``[H, bins]`` int64, by falling cosine; each row sums to `pairs`.
    pairs
        Pairs counted per head.
    exact
        Whether these are all N (N - 1) / 2 pairs; else a sample, the same pairs in every head.
    zeros
        ``[H]`` int64: pairs with a zero vector, whose cosine is 0 and not merely in the bin that ends there.
    """

    counts: torch.Tensor
    pairs: int
    exact: bool
    zeros: torch.Tensor

    def shares(self) -> torch.Tensor:
        """Share of the pairs in `COARSE` equal bins over [-1, 1], ``[H, COARSE]`` fp64 by rising cosine.

        All 0 without pairs.
        """
        coarse = _edges()[:-1].long()
        sums = torch.zeros(len(self.counts), COARSE, dtype=torch.float64)
        sums.index_add_(1, coarse, self.counts.double())
        return sums.flip(1) / max(self.pairs, 1)

    def quantiles(self, wanted: tuple[float, ...]) -> torch.Tensor | None:
        """Quantiles of the cosine, ``[H, len(wanted)]`` fp64, to the width of a bin; None without pairs.

        As ``numpy.quantile``: between the two order statistics that lie around the quantile, each placed in its bin
        as if the bin were filled evenly; pairs with a zero vector stand at 0.
        """
        if self.pairs == 0:
            return None
        rank = (1 - torch.tensor(wanted, dtype=torch.float64)) * (self.pairs - 1)
        below = rank.floor()
        above = (below + 1).clamp_max(self.pairs - 1)
        low, high = self._order_statistics(below), self._order_statistics(above)
        return 1 - torch.lerp(low, high, rank - below) * 2 / COARSE

    def _order_statistics(self, ranks: torch.Tensor) -> torch.Tensor:
        """Gaps of the given ranks, counted from the smallest gap, ``[H, len(ranks)]``."""
        cumulative = self.counts.cumsum(1).double()
        edges = _edges()
        repeated = ranks.expand(len(self.counts), -1).contiguous()
        at = torch.searchsorted(cumulative, repeated, right=True)
        exact = torch.where(at == _ORTHOGONAL_BIN, self.zeros[:, None], 0).double()
        # Exact zeros come last in their bin, at its upper edge.
        place = repeated - cumulative.gather(1, at) + self.counts.gather(1, at)
        spread = self.counts.gather(1, at) - exact
        inside = torch.where(place < spread, (place + 0.5) / spread.clamp_min(1), 1.0)
        return torch.lerp(edges[at], edges[at + 1], inside)


def cosine_histogram(vectors: torch.Tensor, sample: int, seed: int) -> CosineHistogram:
    """Count the pairwise cosines of every head.

    All pairs up to N = `EXACT_TOKENS`, from block products of the upper triangle. Beyond, the positions are shuffled,
    laid on a circle, and each is paired with its next neighbours, just as many as make `sample` pairs or more; as
    every position is in equally many pairs, the error is smaller than that of as many independent pairs. Memory is
    O(N) either way. Cosines come from ``||u_i - u_j||^2 / 2 = 1 - cos``, so that those close to 1 keep their
    differences.

    Parameters
    ----------
    vectors
        ``[H, N, D]``. A zero vector has cosine 0 with everything.
    sample
        How many pairs to count at least where N is larger; state their number, and the seed, beside the results.
    seed
        Seed of the shuffle.

    Returns
    -------
    CosineHistogram
        Without pairs for a single vector.
    """
    vectors = working(vectors)
    n = vectors.shape[1]
    if n <= EXACT_TOKENS:
        counted = [_all_pairs(head) for head in vectors]
        return _histogram(counted, n * (n - 1) // 2, exact=True)
    neighbours = min(-(-sample // n), (n - 1) // 2)
    circle = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return _histogram([_neighbours(head, circle, neighbours) for head in vectors], n * neighbours, exact=False)


def _histogram(counted: Sequence[tuple[torch.Tensor, int]], pairs: int, *, exact: bool) -> CosineHistogram:
    counts, zeros = zip(*counted, strict=True)
    return CosineHistogram(torch.stack(counts), pairs, exact, torch.tensor(zeros))


def _all_pairs(rows: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Counts of a head, and how many of its pairs have a zero vector."""
    n = len(rows)
    units = unit_vectors(rows[lengths(rows) > 0])
    counts = torch.zeros(_BINS, dtype=torch.int64)
    zeros = n * (n - 1) // 2 - len(units) * (len(units) - 1) // 2
    counts[_ORTHOGONAL_BIN] = zeros
    if len(units) < 2:
        return counts, zeros
    centred = units - units.mean(0, dtype=torch.float64).to(units.dtype)
    half = centred.square().sum(1, keepdim=True) * (COARSE / 4)
    one = torch.ones_like(half)
    # <left_i, right_j> = (||e_i||^2 + ||e_j||^2 - 2 <e_i, e_j>) * COARSE / 4, the gap.
    left = torch.cat([centred * (-COARSE / 2), half, one], dim=1)
    right = torch.cat([centred, one, half], dim=1)
    for start in range(0, len(units), _TILE):
        block = left[start : start + _TILE]
        lower = torch.ones(len(block), len(block), dtype=torch.bool).tril()
        counts += _count((block @ right[start : start + _TILE].T).masked_fill_(lower, _ORTHOGONAL))
        counts[_ORTHOGONAL_BIN] -= len(block) * (len(block) + 1) // 2
        for other in range(start + _TILE, len(units), _TILE):
            counts += _count(block @ right[other : other + _TILE].T)
    return counts, zeros


def _neighbours(rows: torch.Tensor, circle: torch.Tensor, count: int) -> tuple[torch.Tensor, int]:
    """As `_all_pairs`, of each position with the next `count` on the circle of positions ``[N]``."""
    n = len(circle)
    factors = inverse(lengths(rows))
    closed = torch.cat([circle, circle[:count]])
    gaps, difference = rows.new_empty(count, n), rows.new_empty(_TILE, rows.shape[1])
    for start in range(0, n, _TILE):
        size = min(_TILE, n - start)
        at = closed[start : start + size + count]
        units = rows.index_select(0, at)
        scaled(units, factors[at], out=units)
        for step in range(1, count + 1):
            torch.sub(units[:size], units[step : step + size], out=difference[:size])
            torch.linalg.vector_norm(difference[:size], dim=1, out=gaps[step - 1, start : start + size])
    zero = factors[closed] == 0
    either = torch.stack([zero[:n] | zero[step : step + n] for step in range(1, count + 1)])
    counts = _count(gaps.square_().mul_(COARSE / 4).masked_fill_(either, _ORTHOGONAL))
    return counts, int(either.sum())


def _count(gaps: torch.Tensor) -> torch.Tensor:
    bits = gaps.float().clamp_(_SMALLEST / 2, _LARGEST).view(torch.int32)
    bins = bits.bitwise_right_shift_(_SHIFT).sub_(_FIRST).clamp_min_(0)
    return torch.bincount(bins.flatten(), minlength=_BINS)
