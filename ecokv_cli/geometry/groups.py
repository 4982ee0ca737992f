"""How groups of positions (image tokens, text tokens ...) lie within the cloud of their head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ecokv_cli.geometry.similarity import inverse, working

if TYPE_CHECKING:
    from ecokv_cli.geometry.cloud import Cloud


@dataclass(frozen=True)
class Groups:
    """Statistics of R groups of positions in H heads; fp64, undefined numbers are NaN.

    Attributes
    ----------
    cosine_within
        ``[H, R]`` in [-1, 1]: mean cosine of two different members; undefined below two members.
    cosine_rest
        ``[H, R]`` in [-1, 1]: mean cosine of a member and a non-member; undefined without either.
    variance_share
        ``[H, R]`` in [0, 1]: share of ``sum d_i^2``, the squared distances to the centroid of all positions. Groups
        that cover all positions sum to 1. Undefined where all vectors are equal.
    """

    cosine_within: torch.Tensor
    cosine_rest: torch.Tensor
    variance_share: torch.Tensor


def group_statistics(cloud: Cloud, vectors: torch.Tensor, members: torch.Tensor) -> Groups:
    """Cosines within and between groups, from sums of unit vectors.

    With ``U_r`` the sum of the unit vectors of group r, n_r members and z_r zero vectors among them::

        within = (||U_r||^2 - (n_r - z_r)) / (n_r (n_r - 1))        rest = <U_r, U - U_r> / (n_r (N - n_r))

    Parameters
    ----------
    cloud
        `survey` of `vectors`.
    vectors
        ``[H, N, D]``.
    members
        ``[R, N]`` boolean.
    """
    sums = unit_sums(cloud, vectors, members)
    total = cloud.direction[:, None] * members.shape[1]
    count = members.sum(1, dtype=torch.float64)
    rest = members.shape[1] - count
    inside = members.double()
    nonzero = (cloud.lengths > 0).double() @ inside.T
    squares = cloud.distances.square()
    whole = squares.sum(1, keepdim=True)
    return Groups(
        (sums.square().sum(-1) - nonzero) / _or_nan(count * (count - 1)),
        (sums * (total - sums)).sum(-1) / _or_nan(count * rest),
        squares @ inside.T / _or_nan(whole),
    )


def unit_sums(cloud: Cloud, vectors: torch.Tensor, members: torch.Tensor) -> torch.Tensor:
    """Sum of the unit vectors of each group, ``[H, R, D]`` fp64."""
    weights = members[None] * inverse(cloud.lengths)[:, None]
    sums = [w.to(rows.dtype) @ rows for w, rows in zip(weights, working(vectors), strict=True)]
    return torch.stack(sums).double()


def means(values: torch.Tensor, members: torch.Tensor) -> torch.Tensor:
    """Mean of `values` ``[H, N]`` over each group, ``[H, R]`` fp64; NaN for an empty group."""
    inside = members.double()
    return values.double() @ inside.T / _or_nan(inside.sum(1))


def deviations(values: torch.Tensor, members: torch.Tensor) -> torch.Tensor:
    """Population standard deviation of `values` ``[H, N]`` within each group, ``[H, R]``."""
    centred = values.double() - values.double().mean(1, keepdim=True)
    squares = means(centred.square(), members) - means(centred, members).square()
    return squares.clamp_min(0).sqrt()


def _or_nan(divisor: torch.Tensor) -> torch.Tensor:
    return torch.where(divisor > 0, divisor, torch.nan)
