"""Diversity of the candidates of each head, and how it is mixed with importance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ecokv_cli.eviction.keyscores import key_norms, value_norms
from ecokv_cli.geometry.correlation import centred_ranks
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
        ``[H, M]`` before scaling; in [0, 1] unless another normalisation was asked for.
    scaled
        ``[H, M]``: diversity, scaled to the host's score.
    weight
        ``[H]`` lambda, in [0, 1] unless it was asked not to be clamped.
    """

    importance: torch.Tensor
    diversity: torch.Tensor
    scaled: torch.Tensor
    weight: torch.Tensor

    @property
    def score(self) -> torch.Tensor:
        """``[H, M]``: ``weight * scaled + (1 - weight) * importance``."""
        share = self.weight.to(self.importance.dtype)[:, None]
        return share * self.scaled + (1 - share) * self.importance


def cosine_diversity(
    layer: Layer, count: int, reading: str = "normalised", normalisation: str = "minmax", *, unit: bool = True
) -> torch.Tensor:
    """MixKV's diversity: ``-<u_j, mean_N u>`` normalised over the first `count` keys; 1 = least like the rest.

    Parameters
    ----------
    layer
        Needs keys only.
    count
        How many leading keys.
    reading
        ``normalised``, or without: ``negative`` -c, ``half`` (1 - c) / 2, ``distance`` 1 - c.
    normalisation
        See `normalised`.
    unit
        Take the cosine to the mean, c = cos(k_j, mean u), and not the product with it, which differs by the factor
        ``||mean u||`` per head. Normalisations by the row's own range do not see it.

    Returns
    -------
    torch.Tensor
        ``[H, count]``.
    """
    cosines = layer.directions.cosines
    if not unit:
        # The mean of the cosines is the length of the mean.
        cosines = cosines * cosines.mean(dim=-1, keepdim=True, dtype=torch.float64).to(cosines.dtype)
    cosines = cosines[:, :count]
    if reading == "normalised":
        return normalised(-cosines, normalisation)
    return {"negative": -cosines, "half": (1 - cosines) / 2, "distance": 1 - cosines}[reading]


def normalised(values: torch.Tensor, kind: str) -> torch.Tensor:
    """Rows made comparable, keeping their order; a row that is constant to rounding becomes all zeros.

    Parameters
    ----------
    values
        ``[H, M]``.
    kind
        ``minmax``: ``(x - min) / (max - min)``. ``clipped``: the same after clipping to the 1st and 99th percentile,
        so that single outliers do not squeeze the rest. ``robust``: ``1 / (1 + exp(-(x - median) / IQR))``; where the
        quartiles coincide, as minmax. ``zscore``: ``(x - min) / std``, the z-score moved up to begin at 0. ``rank``:
        rank among the row, from 0 to 1, equal values sharing their mean rank. ``softmax``:
        ``exp(x) / sum(exp(x))``, which sees the absolute scale.

    Returns
    -------
    torch.Tensor
        ``[H, M]`` in [0, 1], for ``zscore`` >= 0.
    """
    plain = minmax(values)
    if kind == "minmax" or values.shape[-1] == 0:
        return plain
    if kind == "clipped":
        low, high = _quantiles(values, 0.01, 0.99)
        return minmax(values.clamp(low, high))
    return torch.where((plain > 0).any(dim=-1, keepdim=True), _SCALES[kind](values), 0.0)


def _robust(values: torch.Tensor) -> torch.Tensor:
    lower, median, upper = _quantiles(values, 0.25, 0.5, 0.75)
    width = upper - lower
    squashed = torch.sigmoid((values - median) / torch.where(width > 0, width, 1.0))
    return torch.where(width > 0, squashed, minmax(values))


def _zscore(values: torch.Tensor) -> torch.Tensor:
    deviation = values.double().std(dim=-1, correction=0, keepdim=True)
    return ((values - values.amin(dim=-1, keepdim=True)) / deviation).to(values.dtype)


def _rank(values: torch.Tensor) -> torch.Tensor:
    last = max(values.shape[-1] - 1, 1)
    rows = [centred_ranks(row) / last + 0.5 for row in values.cpu().numpy()]
    return torch.from_numpy(np.stack(rows)).to(values)


def _softmax(values: torch.Tensor) -> torch.Tensor:
    return values.softmax(dim=-1)


_SCALES = {"robust": _robust, "zscore": _zscore, "rank": _rank, "softmax": _softmax}


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


def rescale(values: torch.Tensor, target: torch.Tensor, by: str = "mean") -> torch.Tensor:
    """Rows of `values` scaled so that their mean, or their ``max``, equals that of `target`.

    A row whose own mean or maximum is not positive is left alone.
    """
    own, wanted = (_size(rows, by) for rows in (values, target))
    factor = torch.where(own > 0, wanted / torch.where(own > 0, own, 1.0), 1.0)
    return values * factor.to(values.dtype)


def _size(rows: torch.Tensor, by: str) -> torch.Tensor:
    if by == "mean" or rows.shape[-1] == 0:
        return rows.mean(dim=-1, keepdim=True, dtype=torch.float64)
    return rows.amax(dim=-1, keepdim=True).double()


def with_norm(attention: torch.Tensor, layer: Layer, of: str = "values") -> torch.Tensor:
    """MixKV's importance ``A + V'``: norms, min-max scaled and brought to the mean of A, are added.

    Parameters
    ----------
    attention
        ``[H, M]`` host scores.
    layer
        The layer's tensors.
    of
        ``values``: long values count; ``keys``: short keys count; ``none``: the host scores as they are.

    Returns
    -------
    torch.Tensor
        ``[H, M]``.
    """
    if of == "none":
        return attention
    count = attention.shape[1]
    norms = value_norms(layer, count) if of == "values" else -key_norms(layer, count)
    return attention + rescale(minmax(norms), attention)
