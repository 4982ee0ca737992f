"""Diversity of the candidates of each head, and how it is mixed with importance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ecokv_cli.eviction.keyscores import value_norms
from ecokv_cli.geometry.redundancy import minmax

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


def cosine_diversity(layer: Layer, candidates: int, normalisation: str = "minmax") -> torch.Tensor:
    """MixKV's diversity: ``-<u_j, mean_N u>`` normalised over the candidates, ``[H, M]``; 1 = least like the rest.

    The cosine to the mean is taken instead, which differs by a factor per head that no normalisation sees.
    """
    return normalised(-layer.directions.cosines[:, :candidates], normalisation)


def euclidean_diversity(layer: Layer, candidates: int, normalisation: str = "minmax") -> torch.Tensor:
    """ECOKV's second diversity: ``||k_j - c||`` normalised over the candidates, ``[H, M]``; 1 = farthest out."""
    return normalised(layer.key_distances[:, :candidates], normalisation)


def normalised(values: torch.Tensor, kind: str) -> torch.Tensor:
    """Rows mapped to [0, 1], keeping their order; a row that is constant to rounding becomes all zeros.

    Parameters
    ----------
    values
        ``[H, M]``.
    kind
        ``minmax``: ``(x - min) / (max - min)``. ``clipped``: the same after clipping to the 1st and 99th percentile,
        so that single outliers do not squeeze the rest. ``robust``: ``1 / (1 + exp(-(x - median) / IQR))``; where the
        quartiles coincide, as minmax.

    Returns
    -------
    torch.Tensor
        ``[H, M]``.
    """
    if kind == "minmax" or values.shape[-1] == 0:
        return minmax(values)
    if kind == "clipped":
        low, high = _quantiles(values, 0.01, 0.99)
        return minmax(values.clamp(low, high))
    plain = minmax(values)
    lower, median, upper = _quantiles(values, 0.25, 0.5, 0.75)
    width = upper - lower
    squashed = torch.sigmoid((values - median) / torch.where(width > 0, width, 1.0))
    return torch.where((width > 0) & (plain > 0).any(dim=-1, keepdim=True), squashed, plain)


def _quantiles(values: torch.Tensor, *shares: float) -> list[torch.Tensor]:
    """Linearly interpolated quantiles of each row, ``[H, 1]`` each."""
    ordered = values.sort(dim=-1).values
    last = values.shape[-1] - 1
    found = []
    for share in shares:
        low = int(share * last)
        high = min(low + 1, last)
        found.append(ordered[:, low : low + 1].lerp(ordered[:, high : high + 1], share * last - low))
    return found


def rescale(values: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Rows of `values` scaled so that their mean equals the mean of `target`; a row with mean 0 is left alone."""
    own = values.mean(dim=-1, keepdim=True, dtype=torch.float64)
    wanted = target.mean(dim=-1, keepdim=True, dtype=torch.float64)
    factor = torch.where(own > 0, wanted / torch.where(own > 0, own, 1.0), 1.0)
    return values * factor.to(values.dtype)


def with_value_norm(attention: torch.Tensor, layer: Layer) -> torch.Tensor:
    """MixKV's importance ``A + V'``: value norms, min-max scaled and brought to the mean of A, are added."""
    return attention + rescale(minmax(value_norms(layer, attention.shape[1])), attention)


def combine(importance: torch.Tensor, diversity: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> Boosted:
    """``weight * diversity, scaled to the mean of target, + (1 - weight) * importance``."""
    share = weight.to(importance.dtype)[:, None]
    score = share * rescale(diversity, target) + (1 - share) * importance
    return Boosted(importance, diversity, weight, score)
