"""Principal components of the vectors of each head, and how many directions they really use."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ecokv_cli.geometry.similarity import working

if TYPE_CHECKING:
    from collections.abc import Iterator


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
        ``[H, D, D]`` fp64 rows are unit directions by falling variance; the largest entry of each is positive, so
        that figures do not flip between runs.
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


def principal_components(mean: torch.Tensor, covariance: torch.Tensor) -> Principal:
    """Principal components from the centroids ``[H, D]`` and covariances ``[H, D, D]`` of `survey`.

    The fit is that of the full cache; to show what a method keeps, project with the same fit.
    """
    with _one_thread():
        values, vectors = torch.linalg.eigh(covariance)
    components = vectors.transpose(1, 2).flip(1)
    lead = components.gather(-1, components.abs().argmax(dim=-1, keepdim=True))
    return Principal(_shares(values), mean, components * torch.where(lead < 0, -1.0, 1.0))


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
