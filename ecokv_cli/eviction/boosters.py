"""Boosters: how diversity enters the final score of a host that scores by attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.importance import value_norms
from ecokv_cli.geometry.redundancy import (
    RedundancyMap,
    cosine_redundancy,
    euclidean_redundancy,
    minmax,
    mix_redundancy,
    std_redundancy,
)

if TYPE_CHECKING:
    from ecokv_cli.eviction.layer import Layer


@dataclass(frozen=True)
class Boosted:
    """The parts of a boosted score, for analysis and tests.

    Attributes
    ----------
    importance
        ``[H, M]``: host score plus scaled value norm.
    diversity
        ``[H, M]`` in [0, 1] before scaling.
    weight
        ``[H]`` lambda in [0, 1].
    score
        ``[H, M]``: ``weight * scaled diversity + (1 - weight) * importance``.
    """

    importance: torch.Tensor
    diversity: torch.Tensor
    weight: torch.Tensor
    score: torch.Tensor


def cosine_diversity(layer: Layer, candidates: int) -> torch.Tensor:
    """MixKV's diversity: ``minmax(-<u_j, mean_N u>)`` over the candidates, ``[H, M]``; 1 = least like the rest."""
    units = layer.unit_keys
    mean = units.mean(dim=1, dtype=torch.float64).to(units.dtype)
    return minmax(-torch.einsum("hnd,hd->hn", units[:, :candidates], mean))


def rescale(values: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Rows of `values` scaled so that their mean equals the mean of `target`; a row with mean 0 is left alone."""
    own = values.mean(dim=-1, keepdim=True, dtype=torch.float64)
    wanted = target.mean(dim=-1, keepdim=True, dtype=torch.float64)
    factor = torch.where(own > 0, wanted / torch.where(own > 0, own, 1.0), 1.0)
    return values * factor.to(values.dtype)


@dataclass(frozen=True)
class MixKV:
    """MixKV: importance and cosine diversity, weighted by the head's mean pairwise cosine.

    ``F = r Dv' + (1 - r) (A + V')`` with ``Dv = minmax(-<u_j, ubar>)`` and ``V = minmax(||v_j||)``, both scaled to
    the mean of A; ``r = r_cos`` of this prompt, clamped to [0, 1].

    Source: MixKV, arXiv 2510.20707. Deviations: the online redundancy of the paper's best variant, never a table
    made for another model; a constant row becomes zeros instead of 0/0.
    """

    def mix(self, attention: torch.Tensor, layer: Layer) -> Boosted:
        """Combine host scores ``[H, M]`` with the layer's diversity."""
        candidates = attention.shape[1]
        diversity = cosine_diversity(layer, candidates)
        importance = attention + rescale(minmax(value_norms(layer, candidates)), attention)
        return _combine(importance, diversity, self.weight(layer), attention)

    def weight(self, layer: Layer) -> torch.Tensor:
        """Lambda per head, ``[H]`` fp64: the clamped mean pairwise cosine."""
        return cosine_redundancy(layer.unit_keys).clamp(0, 1)


@dataclass(frozen=True)
class EcoKV:
    """ECOKV: cosine and Euclidean diversity, weighted by a redundancy from both.

    With ``E = minmax(||k_j - c||)``, ``C = minmax(-<u_j, ubar>)``, both over the candidates with means over all keys::

        S = alpha E + (1 - alpha) C            I = A + V'  (V' = value norm scaled to the mean of A)
        lambda = beta r_euc + (1 - beta) r_cos
        F = lambda S' + (1 - lambda) I         S' = S scaled to the mean of A

    Source: ECOKV, arXiv 2609.06663, of which no formulas are public beyond its summaries; the open points are the
    options below, each with the reading that agrees best with what is public as default. Deviation: a constant row
    becomes zeros, so that F falls back to ``(1 - lambda) I``.

    Attributes
    ----------
    alpha
        Weight of the Euclidean part of the diversity, in [0, 1].
    beta
        Weight of r_euc in lambda, in [0, 1]; ``alpha = beta = 0`` is MixKV with online redundancy.
    redundancy_map
        Map of the mean distance to r_euc; see `euclidean_redundancy`.
    avg_domain
        Keys over which r_euc averages its distances: ``all`` N or the ``candidates`` only. The centroid and r_cos
        are over all N either way; the ``minmax`` map is always over the candidates.
    div_scale
        What the diversity is scaled to: the mean of the ``attention`` score or of the whole ``importance``.
    value_norm
        Whether importance includes the value norm.
    std
        Use ``r_std`` alone as lambda instead of the mix.
    temperature
        ``tau`` of the redundancy maps; 0 stands for ``sqrt(D)``.
    """

    alpha: float = 0.8
    beta: float = 0.6
    redundancy_map: RedundancyMap = "sigmoid"
    avg_domain: Literal["all", "candidates"] = "all"
    div_scale: Literal["attention", "importance"] = "attention"
    value_norm: bool = True
    std: bool = False
    temperature: float = 0.0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            if not 0 <= getattr(self, name) <= 1:
                raise MethodError(f"ecokv: {name}={getattr(self, name)} is outside 0..1")
        if self.temperature < 0:
            raise MethodError(f"ecokv: temperature={self.temperature} is negative; 0 stands for sqrt(head dimension)")

    def mix(self, attention: torch.Tensor, layer: Layer) -> Boosted:
        """Combine host scores ``[H, M]`` with the layer's diversity."""
        candidates = attention.shape[1]
        euclidean = minmax(layer.key_distances[:, :candidates])
        diversity = self.alpha * euclidean + (1 - self.alpha) * cosine_diversity(layer, candidates)
        importance = attention
        if self.value_norm:
            importance = attention + rescale(minmax(value_norms(layer, candidates)), attention)
        target = attention if self.div_scale == "attention" else importance
        return _combine(importance, diversity, self.weight(layer, candidates), target)

    def weight(self, layer: Layer, candidates: int) -> torch.Tensor:
        """Lambda per head, ``[H]`` fp64."""
        if self.std:
            distances = self._averaged(layer, candidates)
            return std_redundancy(distances, layer.keys.shape[-1], self.temperature or None)
        return mix_redundancy(self.r_euc(layer, candidates), cosine_redundancy(layer.unit_keys), self.beta)

    def r_euc(self, layer: Layer, candidates: int) -> torch.Tensor:
        """Euclidean redundancy per head, ``[H]`` fp64, by this booster's map."""
        # The scale-free map averages E itself, which exists for candidates only.
        distances = (
            layer.key_distances[:, :candidates]
            if self.redundancy_map == "minmax"
            else self._averaged(layer, candidates)
        )
        return euclidean_redundancy(distances, layer.keys.shape[-1], self.redundancy_map, self.temperature or None)

    def _averaged(self, layer: Layer, candidates: int) -> torch.Tensor:
        return layer.key_distances[:, : None if self.avg_domain == "all" else candidates]


def _combine(importance: torch.Tensor, diversity: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> Boosted:
    share = weight.to(importance.dtype)[:, None]
    score = share * rescale(diversity, target) + (1 - share) * importance
    return Boosted(importance, diversity, weight, score)
