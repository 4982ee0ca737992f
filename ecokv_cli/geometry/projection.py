"""Principal components of the vectors of each head, and how many directions they really use."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from ecokv_cli.geometry.similarity import working

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIE = 0.02
"""A sum whose terms cancel to this share of their magnitudes gives a component no sign."""


@dataclass(frozen=True)
class Spectrum:
    """How the variance of each head is shared among its principal components.

    Attributes
    ----------
    ratios
        ``[H, D]`` fp64 falling shares of the variance, in [0, 1], summing to 1 (all 0 when all vectors are equal).
    """

    ratios: torch.Tensor

    @property
    def effective_rank(self) -> torch.Tensor:
        """``exp(entropy of the ratios)``, ``[H]`` in [1, D]; the number of directions in even use, 0 if none."""
        entropy = -torch.special.xlogy(self.ratios, self.ratios).sum(-1)
        return torch.where(self.ratios.sum(-1) > 0, entropy.exp(), torch.zeros_like(entropy))

    @property
    def participation_ratio(self) -> torch.Tensor:
        """``(sum v)^2 / sum v^2`` of the variances v, ``[H]`` in [1, D]; like the rank but led by the large ones."""
        squares = self.ratios.square().sum(-1)
        return torch.where(squares > 0, 1 / squares.clamp_min(1e-300), torch.zeros_like(squares))


@dataclass(frozen=True)
class Principal(Spectrum):
    """Centred principal components.

    Attributes
    ----------
    mean
        ``[H, D]`` fp64 centroid of the vectors that were fitted.
    components
        ``[H, D, D]`` fp64 rows are unit directions by falling variance, each turned as `principal_components` says, so
        that figures do not flip between runs or precisions.
    """

    mean: torch.Tensor
    components: torch.Tensor

    def project(self, vectors: torch.Tensor, count: int) -> torch.Tensor:
        """Coordinates ``[H, N, count]`` of `vectors` on the first `count` components of this fit."""
        rows = working(vectors)
        mean = self.mean[:, None].to(rows.dtype)
        rest = (self.mean[:, None] - mean.double()).to(rows.dtype)
        axes = self.components[:, :count].transpose(1, 2).to(rows.dtype)
        return (rows - mean).sub_(rest) @ axes


def spectrum(covariance: torch.Tensor) -> Spectrum:
    """Shares of the variance from covariances ``[H, D, D]``, by eigenvalues alone (no directions, so faster).

    Ratios below about 1e-7 are rounding of the covariance, not structure.
    """
    with _one_thread():
        return Spectrum(_shares(torch.linalg.eigvalsh(covariance)))


def principal_components(mean: torch.Tensor, covariance: torch.Tensor, vectors: torch.Tensor) -> Principal:
    """Principal components of the vectors of each head, each turned to where its scores have their long tail.

    The fit is that of the full cache; to show what a method keeps, project with the same fit.

    An eigenvector may as well point the other way. With the scores ``s_i`` of the vectors on it, the sign is the one
    that makes positive the first of these that is no tie:

    1. ``sum s_i^3``, the skewness: a few vectors far out stand at the right and at the top;
    2. ``sum (i - (N - 1) / 2) s_i``, the trend: where the cloud is even, late positions do;
    3. the largest entry of the component.

    A sum is a tie below 2 % of the sum of the magnitudes of its terms. Rounding of the vectors moves sums over many
    terms far less than it moves a single entry, two of which may well be equally large. Components of (nearly) equal
    variance are no directions of their own, and rounding may turn them at will.

    Parameters
    ----------
    mean, covariance
        ``[H, D]`` and ``[H, D, D]`` of `survey`.
    vectors
        ``[H, N, D]``, those that were surveyed.
    """
    with _one_thread():
        values, directions = torch.linalg.eigh(covariance)
    found = Principal(_shares(values), mean, directions.transpose(1, 2).flip(1))
    scores = found.project(vectors, vectors.shape[-1]).double()
    late = torch.arange(vectors.shape[1], dtype=torch.float64, device=scores.device)[:, None]
    lead = found.components.gather(-1, found.components.abs().argmax(dim=-1, keepdim=True))[..., 0]
    sign = torch.where(lead < 0, -1.0, 1.0)
    for terms in ((late - late.mean()) * scores, scores**3):
        total = terms.sum(1)
        sign = torch.where(total.abs() > _TIE * terms.abs().sum(1), total.sign(), sign)
    return replace(found, components=found.components * sign[..., None])


def participation_ratio(covariance: torch.Tensor) -> torch.Tensor:
    """`Spectrum.participation_ratio` without eigenvalues: ``trace^2 / ||C||_F^2``, ``[H]``, 0 where C is 0."""
    trace = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
    squares = covariance.square().sum((-2, -1))
    return torch.where(squares > 0, trace.square() / torch.where(squares > 0, squares, 1.0), 0.0)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Threads that share a matrix of D x D wait for each other longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _shares(rising: torch.Tensor) -> torch.Tensor:
    values = rising.flip(-1).clamp_min(0)
    total = values.sum(-1, keepdim=True)
    return torch.where(total > 0, values / torch.where(total > 0, total, 1.0), 0.0)
