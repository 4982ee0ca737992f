"""Diversity alone, in the windows and budgets of a host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ecokv_cli.eviction.boosters.base import Booster

if TYPE_CHECKING:
    import torch

    from ecokv_cli.eviction.diversity import Boosted
    from ecokv_cli.eviction.layer import Layer


@dataclass(frozen=True)
class DiversityOnly(Booster):
    """Base of pure diversity: lambda = 1, so the host gives windows and budgets only."""

    def mix(self, attention: torch.Tensor, layer: Layer) -> Boosted:
        """Diversity alone, scaled to the mean of the host's scores."""
        from ecokv_cli.eviction.diversity import Boosted, rescale

        diversity = self.diversity(layer, attention.shape[1])
        return Boosted(attention, diversity, rescale(diversity, attention), attention.new_ones(len(attention)))

    def diversity(self, layer: Layer, candidates: int) -> torch.Tensor:
        """Diversity ``[H, M]`` in [0, 1]."""
        raise NotImplementedError


@dataclass(frozen=True)
class CosineOnly(DiversityOnly):
    """Pure cosine diversity: the host's window and budgets, filled by KeyDiff's order."""

    formula: ClassVar[str] = "F = D', D = minmax(-<u_j, mean u>) scaled to the mean of A"
    source: ClassVar[str] = "the keydiff option of MixKV, arXiv 2510.20707"

    def diversity(self, layer: Layer, candidates: int) -> torch.Tensor:
        """See `cosine_diversity`."""
        from ecokv_cli.eviction.diversity import cosine_diversity

        return cosine_diversity(layer, candidates)


@dataclass(frozen=True)
class EuclidOnly(DiversityOnly):
    """Pure Euclidean diversity: the host's window and budgets, filled by ManifoldKV's order."""

    formula: ClassVar[str] = "F = E', E = minmax(||k_j - c||) scaled to the mean of A"
    source: ClassVar[str] = "ECOKV's Euclidean part, arXiv 2609.06663, alone; the order of ManifoldKV"

    def diversity(self, layer: Layer, candidates: int) -> torch.Tensor:
        """Distances to the centroid, min-max scaled."""
        from ecokv_cli.geometry.redundancy import minmax

        return minmax(layer.key_distances[:, :candidates])
