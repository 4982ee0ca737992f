"""Attention sinks: positions that draw attention or stick out by their norm, and the statistics without them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ecokv_cli.geometry.projection import participation_ratio
from ecokv_cli.geometry.similarity import unit_vectors, working
from ecokv_cli.geometry.spread import Centre, distances_from

if TYPE_CHECKING:
    from ecokv_cli.geometry.cloud import Cloud

UNIFORM_TIMES = 10.0
"""A sink receives more than this many times the attention that an even spread would give it."""

TAIL = 0.05
"""An outlying norm lies outside the range that is left without this share at either end ..."""

FACTOR = 2.0
"""... by more than this factor."""

HEADS = 0.5
"""Either has to hold in more than this share of the layer's KV heads."""


@dataclass(frozen=True)
class Sinks:
    """Positions of one layer that behave as sinks.

    Attributes
    ----------
    positions
        ``[S]`` ascending.
    attention_heads, norm_heads
        ``[S]`` share of the KV heads, in 0..1, in which the position draws attention, or has an outlying norm.
    """

    positions: torch.Tensor
    attention_heads: torch.Tensor
    norm_heads: torch.Tensor

    def reasons(self) -> list[str]:
        """Per position: ``attention``, ``norm`` or ``attention+norm``."""
        found = {"attention": self.attention_heads.tolist(), "norm": self.norm_heads.tolist()}
        shares = zip(*found.values(), strict=True)
        return ["+".join(name for name, share in zip(found, pair, strict=True) if share > HEADS) for pair in shares]


def find_sinks(attention: torch.Tensor, norms: torch.Tensor) -> Sinks:
    """Sinks of one layer, by what they receive or by their key norm.

    A position is a sink if one of these holds in more than half of the KV heads (single heads look at what the
    question asks for, most heads at a sink):

    * it receives more than 10 times the attention of an even spread, 1/N;
    * its key norm is less than half of the smallest, or more than twice the largest norm that is left in the head
      without 5 % at either end. Quantiles, not median and deviation: the norms of a prompt have typical sizes, of
      image and of text tokens, and neither kind is an outlier.

    Parameters
    ----------
    attention
        ``[H, M]`` mean attention received, for the first M <= N positions; the queries' own positions, which attend
        to themselves, are better left out.
    norms
        ``[H, N]`` key norms.
    """
    heads, n = norms.shape
    drawn = torch.zeros(n, dtype=torch.float64)
    drawn[: attention.shape[1]] = (attention * n > UNIFORM_TIMES).sum(0) / heads
    tail = int(TAIL * (n - 1))
    low, high = norms.kthvalue(1 + tail, 1, True).values, norms.kthvalue(n - tail, 1, True).values
    outlying = ((norms < low / FACTOR) | (norms > high * FACTOR)).sum(0) / heads
    positions = ((drawn > HEADS) | (outlying > HEADS)).nonzero()[:, 0]
    return Sinks(positions, drawn[positions], outlying[positions].double())


@dataclass(frozen=True)
class Trimmed:
    """Statistics of the cloud of each head without some positions; ``[H]`` fp64, NaN below two positions.

    Attributes
    ----------
    cosine_mean, distance_mean, participation_ratio
        As of the whole cloud, with the centroid of the remaining vectors.
    """

    cosine_mean: torch.Tensor
    distance_mean: torch.Tensor
    participation_ratio: torch.Tensor


def without(cloud: Cloud, vectors: torch.Tensor, positions: torch.Tensor) -> Trimmed:
    """Leave `positions` out of the statistics, by taking their part from the sums of all.

    Parameters
    ----------
    cloud
        `survey` of `vectors`.
    vectors
        ``[H, N, D]``.
    positions
        ``[S]`` different positions, few of them.
    """
    heads, n = cloud.lengths.shape
    left = n - len(positions)
    if left < 2:
        undefined = torch.full((heads,), torch.nan, dtype=torch.float64)
        return Trimmed(undefined, undefined, undefined)
    if len(positions) == 0:
        return Trimmed(cloud.cosine_mean, cloud.distances.mean(1), participation_ratio(cloud.covariance))
    rows = working(vectors)
    kept = torch.ones(n, dtype=torch.bool)
    kept[positions] = False
    removed = rows[:, positions].double() - cloud.centroid[:, None]
    shift = -removed.sum(1) / left
    scatter = n * cloud.covariance - removed.transpose(1, 2) @ removed - left * shift[:, :, None] * shift[:, None]
    centroid = cloud.centroid + shift
    distances = distances_from(Centre.split(centroid[:, None], rows.dtype), rows)
    mean = distances[:, kept].mean(1, dtype=torch.float64)
    return Trimmed(mean_cosine_without(cloud, rows, positions), mean, participation_ratio(scatter))


def mean_cosine_without(cloud: Cloud, vectors: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Mean pairwise cosine of the vectors at all other positions, ``[H]`` fp64; 0 by definition for one or none."""
    n = cloud.lengths.shape[1]
    left = n - len(positions)
    if left < 2:
        return torch.zeros_like(cloud.cosine_mean)
    units = cloud.direction * n - unit_vectors(vectors[:, positions]).double().sum(1)
    nonzero = (cloud.lengths > 0).sum(1) - (cloud.lengths[:, positions] > 0).sum(1)
    return (units.square().sum(1) - nonzero) / (left * (left - 1))
