"""Principal components of the keys of each head, and how many directions they really use."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ecokv_cli.geometry.similarity import working
from ecokv_cli.geometry.spread import centred


@dataclass(frozen=True)
class Principal:
    """Centred principal components, per head.

    Attributes
    ----------
    mean
        ``[H, D]`` centroid of the vectors that were fitted.
    components
        ``[H, D, D]`` rows are unit directions by falling variance; the largest entry of each is positive, so
        that figures do not flip between runs.
    ratios
        ``[H, D]`` fp64 share of the variance along each, in [0, 1], summing to 1 (all 0 when all keys are equal).
    """

    mean: torch.Tensor
    components: torch.Tensor
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

    def project(self, vectors: torch.Tensor, count: int) -> torch.Tensor:
        """Coordinates ``[H, N, count]`` of `vectors` on the first `count` components of this fit."""
        shifted = working(vectors) - self.mean[:, None]
        return shifted @ self.components[:, :count].transpose(1, 2)


def principal_components(vectors: torch.Tensor) -> Principal:
    """Eigen-decomposition of the population covariance of each head.

    Parameters
    ----------
    vectors
        ``[H, N, D]``.

    Returns
    -------
    Principal
        From the D x D covariance of the centred vectors (product in fp32, eigenvalues in fp64), so memory does not
        grow with N beyond one copy. Ratios below about 1e-7 are rounding, not structure.
    """
    vectors = working(vectors)
    spread = centred(vectors)
    covariance = (spread.transpose(1, 2) @ spread).double() / vectors.shape[1]
    values, vectors_ = torch.linalg.eigh(covariance)
    values = values.flip(-1).clamp_min(0)
    components = vectors_.transpose(1, 2).flip(1)
    lead = components.gather(-1, components.abs().argmax(dim=-1, keepdim=True))
    components = components * torch.where(lead < 0, -1.0, 1.0)
    total = values.sum(-1, keepdim=True)
    ratios = torch.where(total > 0, values / total.clamp_min(1e-300), torch.zeros_like(values))
    mean = vectors.mean(dim=1, dtype=torch.float64)
    return Principal(mean.to(vectors.dtype), components.to(vectors.dtype), ratios)
