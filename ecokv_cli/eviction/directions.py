"""How the keys of a head point with one another, without unit vectors in memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

_BLOCK = 8192
"""Keys worked on at a time: with D = 128 they and a temporary of their size take 8 MiB, which a cache holds."""

_SMALLEST, _LARGEST = 1e-15, 1e15
"""Lengths whose squares fp32 can sum and whose inverses it can hold."""


@dataclass(frozen=True)
class Directions:
    """Keys ``k_j`` of H heads as unit vectors ``u_j`` (0 for a zero key) against their mean over all N.

    Attributes
    ----------
    cosines
        ``[H, N]`` in [-1, 1]: ``cos(k_j, mean_N u)``; equal keys have equal cosines, and all are 0 where the mean
        vanishes.
    zero
        ``[H]`` number of zero keys.
    """

    cosines: torch.Tensor
    zero: torch.Tensor

    @property
    def mean_cosine(self) -> torch.Tensor:
        """Mean cosine of all pairs i != j, ``(N^2 ||mean u||^2 - (N - zero)) / (N (N - 1))``.

        The mean of the cosines is ``||mean u||``, to the square of the rounding of the direction.

        Returns
        -------
        torch.Tensor
            ``[H]`` fp64 in [-1/(N-1), 1], to the precision of the keys; 0 by definition for a single key.
        """
        n = self.cosines.shape[1]
        total = n * self.cosines.mean(dim=-1, dtype=torch.float64)
        return (total.square() - (n - self.zero)) / max(n * (n - 1), 1) * (n > 1)


def directions_of(keys: torch.Tensor) -> Directions:
    """Directions of the keys of every head.

    Two passes over the keys in blocks: one for lengths and ``sum u``, one for the products with the mean. Lengths and
    products are in the precision of the keys (fp32 at least), sums over blocks fp64. Keys whose squares fp32 cannot
    hold are read again in fp64.

    Parameters
    ----------
    keys
        ``[H, N, D]`` finite.

    Returns
    -------
    Directions
        Cosines in the precision of the keys.
    """
    keys = keys.to(torch.promote_types(keys.dtype, torch.float32))
    heads, n, dim = keys.shape
    step = max(_BLOCK // heads, 1)
    lengths, inverse, cosines = keys.new_empty(3, heads, n)
    total = torch.zeros(heads, dim, dtype=torch.float64, device=keys.device)
    least = torch.finfo(keys.dtype).tiny
    blocks = tuple(
        zip(*(torch.split(tensor, step, dim=1) for tensor in (keys, lengths, inverse, cosines)), strict=True)
    )
    for rows, length, factor, _ in blocks:
        torch.linalg.vector_norm(rows, dim=-1, out=length)
        # A zero key stays zero whatever its factor.
        torch.reciprocal(length.clamp_min_(least), out=factor)
        total += torch.bmm(factor[:, None], rows)[:, 0]
    low, high = lengths.aminmax()
    if keys.dtype != torch.float64 and not (low > _SMALLEST and high < _LARGEST):
        found = directions_of(keys.double())
        return Directions(found.cosines.to(keys.dtype), found.zero)
    direction = F.normalize(total / n, dim=-1).to(keys.dtype)[:, None]
    buffer = keys.new_empty(heads, min(n, step), dim)
    for rows, _, _, cosine in blocks:
        # Not a matrix-vector product: that rounds a row differently where it stands last in a block.
        torch.sum(torch.mul(rows, direction, out=buffer[:, : rows.shape[1]]), dim=-1, out=cosine)
    return Directions(cosines.mul_(inverse), (lengths == least).sum(-1))


def unit_vectors(keys: torch.Tensor) -> torch.Tensor:
    """Keys ``[H, N, D]`` divided by their lengths; a zero key stays zero."""
    lengths = torch.linalg.vector_norm(keys.double(), dim=-1, keepdim=True)
    return (keys / torch.where(lengths > 0, lengths, 1.0)).to(keys.dtype)
