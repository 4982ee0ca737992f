"""The cloud of vectors of each head: everything that one pass over them gives, for all tables of the analysis."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from ecokv_cli.geometry.similarity import BLOCK, inverse, lengths, parts, scaled, working
from ecokv_cli.geometry.spread import Centre

_LARGEST = 1e15
"""Longer vectors are surveyed in fp64: fp32 could not hold their squares."""

_STRIP = 32
"""Rows of a symmetric product that are computed at a time; narrower ones would slow the product down."""


@dataclass(frozen=True)
class Cloud:
    """Statistics of the vectors ``k_i`` of H heads with unit vectors ``u_i``; everything fp64.

    Attributes
    ----------
    lengths
        ``[H, N]``: norms ``||k_i||``, in the units of the vectors.
    distances
        ``[H, N]``: distances to the centroid, in the units of the vectors.
    alignment
        ``[H, N]``: ``<u_i, mean u>``, in [-1, 1]; how far a vector points with the rest. The mean cosine of vector i
        to all others is ``(N alignment_i - 1) / (N - 1)``.
    centroid, direction
        ``[H, D]``: mean vector and mean unit vector.
    covariance
        ``[H, D, D]``: population covariance of the vectors; its trace is the mean squared distance.
    cosine_mean
        ``[H]`` in [-1/(N-1), 1]: mean cosine over all pairs i != j; 0 by definition for a single vector.
    cosine_std
        ``[H]`` >= 0: population standard deviation of the cosine over the same pairs.
    zero
        ``[H]`` number of zero vectors; they count with cosine 0.
    """

    lengths: torch.Tensor
    distances: torch.Tensor
    alignment: torch.Tensor
    centroid: torch.Tensor
    direction: torch.Tensor
    covariance: torch.Tensor
    cosine_mean: torch.Tensor
    cosine_std: torch.Tensor
    zero: torch.Tensor


def survey(vectors: torch.Tensor) -> Cloud:
    r"""Measure the cloud of every head.

    With ``e_i = u_i - ubar``, ``ubar = mean u_i``, ``W = sum ||e_i||^2`` and z zero vectors::

        cosine_mean  = (N - z) / N - W / (N - 1)
        alignment_i  = (s + ||u_i||^2 - ||e_i||^2) / 2        with s = ||ubar||^2 = (N - z - W) / N
        sum_ij (u_i.u_j - s)^2 = 2 N sum (alignment_i - s)^2 + ||sum e_i e_i^T||_F^2
        cosine_std^2 = (that sum - (N - z)(1 - s)^2 - z s^2) / (N (N - 1)) - (cosine_mean - s)^2

    Everything comes from lengths of centred vectors, so it stays accurate where all cosines are close to 1 and for
    a tight cluster far from the origin. Vectors are read in blocks of `BLOCK` rows, so memory does not grow with N
    beyond the three ``[H, N]`` results; matrix products are fp32, sums over blocks fp64.

    Parameters
    ----------
    vectors
        ``[H, N, D]`` finite, on the CPU.

    Returns
    -------
    Cloud
        Equal to brute force over all pairs and positions.
    """
    heads = [_survey_head(head) for head in working(vectors)]
    return Cloud(**{f.name: torch.stack([getattr(head, f.name) for head in heads]) for f in fields(Cloud)})


def _survey_head(rows: torch.Tensor) -> Cloud:
    n, dim = rows.shape
    norms, centre, rough = _first_pass(rows)
    if float(norms.amax()) > _LARGEST:
        rows = rows.double()
        norms, centre, rough = _first_pass(rows)
    factors = inverse(norms)
    distances, spread = torch.empty(n, dtype=rows.dtype), torch.empty(n, dtype=rows.dtype)
    covariance, gram = _Gram(dim), _Gram(dim)
    shift = torch.zeros(dim, dtype=torch.float64)
    buffer = torch.empty(min(n, BLOCK), dim, dtype=rows.dtype)
    for part in parts(n):
        block = rows[part]
        centred = centre.subtract(block, out=buffer[: len(block)])
        torch.linalg.vector_norm(centred, dim=-1, out=distances[part])
        covariance.add(centred)
        turned = scaled(block, factors[part], out=buffer[: len(block)]).sub_(rough)
        torch.linalg.vector_norm(turned, dim=-1, out=spread[part])
        gram.add(turned)
        shift += turned.sum(0)
    shift /= n
    zero = (norms == 0).sum(dtype=torch.float64)
    squares = spread.double().square()
    total = (squares.sum() - n * shift.square().sum()).clamp_min(0)
    s = (n - zero - total) / n
    above = ((norms > 0).double() - s - squares) / 2
    unit_scatter = gram.total - n * torch.outer(shift, shift)
    mean, std = _cosine_moments(n, zero, total, 2 * n * above.square().sum() + unit_scatter.square().sum())
    return Cloud(
        lengths=norms,
        distances=distances.double(),
        alignment=above + s,
        centroid=centre.exact,
        direction=rough + shift,
        covariance=covariance.total / n,
        cosine_mean=mean,
        cosine_std=std,
        zero=zero.long(),
    )


def _first_pass(rows: torch.Tensor) -> tuple[torch.Tensor, Centre, torch.Tensor]:
    """Lengths, centroid and, up to rounding, the mean unit vector, read together: reading is what takes the time."""
    norms = torch.empty(len(rows), dtype=torch.float64)
    reference = rows[len(rows) // 2]
    near, direction = torch.zeros(2, rows.shape[1], dtype=torch.float64)
    for part in parts(len(rows)):
        norms[part] = lengths(rows[part])
        near += (rows[part] - reference).sum(0)
        direction += inverse(norms[part]).to(rows.dtype) @ rows[part]
    return norms, Centre.around(reference, near / len(rows)), (direction / len(rows)).to(rows.dtype)


class _Gram:
    """Running sum of ``rows^T rows``: symmetric, so of each strip of rows only what starts at its diagonal."""

    def __init__(self, dim: int) -> None:
        self._sum = torch.zeros(dim, dim, dtype=torch.float64)

    def add(self, rows: torch.Tensor) -> None:
        for start in range(0, len(self._sum), _STRIP):
            strip = slice(start, start + _STRIP)
            self._sum[strip, start:] += rows[:, strip].T @ rows[:, start:]

    @property
    def total(self) -> torch.Tensor:
        return self._sum.triu() + self._sum.triu(1).T


def _cosine_moments(
    n: int, zero: torch.Tensor, spread: torch.Tensor, squares: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation from W and ``sum_ij (u_i.u_j - s)^2``; see `survey`."""
    if n < 2:
        return torch.zeros_like(spread), torch.zeros_like(spread)
    s = (n - zero - spread) / n
    mean = (n - zero) / n - spread / (n - 1)
    pairs = n * (n - 1)
    variance = (squares - (n - zero) * (1 - s).square() - zero * s.square()) / pairs - (spread / pairs).square()
    return mean, variance.clamp_min(0).sqrt()
