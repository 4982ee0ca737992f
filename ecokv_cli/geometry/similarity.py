"""Lengths and unit vectors.

Vectors are ``[H, N, D]`` (heads, positions, coordinates). Work is done in fp32, or fp64 when the input is fp64, with
sums over positions in fp64. Nothing here builds an N x N matrix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 8192
"""Vectors of all heads that are worked on at a time: enough that calls cost little, few enough to stay in the cache."""

_SMALLEST, _LARGEST = 1e-15, 1e15
"""Lengths whose squares fp32 can hold and sum."""


def working(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the precision that analysis uses: half precision becomes fp32, fp64 stays."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def parts(vectors: torch.Tensor) -> Iterator[slice]:
    """Consecutive slices of positions that cover ``[H, N, D]``, each of at most `BLOCK` vectors over all heads."""
    heads, n = vectors.shape[:2]
    step = max(BLOCK // heads, 1)
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


def room(vectors: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Uninitialised memory for the largest of the `parts`."""
    return vectors.new_empty(vectors[:, next(parts(vectors))].shape, dtype=dtype)


def lengths(vectors: torch.Tensor) -> torch.Tensor:
    """Euclidean norm of each vector, ``[..., N]`` in fp64, without overflow or underflow of the squares.

    Parameters
    ----------
    vectors
        ``[..., N, D]``.

    Returns
    -------
    torch.Tensor
        ``[..., N]`` >= 0 in the units of the vectors; 0 only for a zero vector.
    """
    found: torch.Tensor = torch.linalg.vector_norm(working(vectors), dim=-1).double()
    if not tame(found):
        found = torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float64)
    return found


def unit_vectors(vectors: torch.Tensor) -> torch.Tensor:
    """Rows divided by their Euclidean norm, ``u_i = k_i / ||k_i||``; a zero row stays zero.

    Parameters
    ----------
    vectors
        ``[..., N, D]``.

    Returns
    -------
    torch.Tensor
        ``[..., N, D]``; cosines are dot products of its rows, and a zero vector has cosine 0 with everything.
    """
    return scaled(working(vectors), inverse(lengths(vectors)))


def inverse(lengths_: torch.Tensor) -> torch.Tensor:
    """``1 / ||k_i||``, and 0 for a zero vector, which so stays zero."""
    return torch.where(lengths_ > 0, 1 / lengths_, 0.0)


def scaled(vectors: torch.Tensor, factors: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Rows times fp64 factors, in the precision of the rows."""
    if tame(factors):
        return torch.mul(vectors, factors.to(vectors.dtype)[..., None], out=out)
    product = (vectors.double() * factors[..., None]).to(vectors.dtype)
    return product if out is None else out.copy_(product)


def tame(numbers: torch.Tensor) -> bool:
    """Whether fp32 can square all of the numbers, and their inverses; not if one is 0."""
    if numbers.numel() == 0:
        return True
    low, high = numbers.aminmax()
    return float(low) > _SMALLEST and float(high) < _LARGEST
