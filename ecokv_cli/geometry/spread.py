"""Euclidean spread of the vectors of a head around their centroid."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ecokv_cli.geometry.similarity import parts, room, working


class Centre(NamedTuple):
    """The centroid of each head as the sum of two vectors, ``[H, 1, D]`` each, the second one of rounding size.

    Subtracting one after the other keeps the shape of a tight cluster far from the origin: with keys at 50 and a
    spread of 1e-3 the rounding of a single fp32 centroid is 0.4 % of the spread, and the expanded form
    ``||k||^2 - 2 <k, c> + ||c||^2`` loses everything.
    """

    high: torch.Tensor
    low: torch.Tensor

    @classmethod
    def around(cls, reference: torch.Tensor, offset: torch.Tensor) -> Centre:
        """The centroid at an fp64 `offset` from one of the vectors, a typical one: then the offset is accurate."""
        return cls.split(reference.double() + offset, reference.dtype)

    @classmethod
    def split(cls, exact: torch.Tensor, dtype: torch.dtype) -> Centre:
        """An fp64 centroid as two numbers of type `dtype` per coordinate."""
        high = exact.to(dtype)
        return cls(high, (exact - high.double()).to(dtype))

    @property
    def exact(self) -> torch.Tensor:
        """The centroid in fp64."""
        return self.high.double() + self.low.double()

    def subtract(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Rows minus the centroid."""
        return torch.sub(rows, self.high, out=out).sub_(self.low)


def centroid_distances(vectors: torch.Tensor) -> torch.Tensor:
    """Distance of every vector to the centroid of its head, ``d_i = ||k_i - c||``.

    Parameters
    ----------
    vectors
        ``[H, N, D]``.

    Returns
    -------
    torch.Tensor
        ``[H, N]`` >= 0 in the units of the vectors, in working precision. The scale differs from layer to layer, so
        compare ranks or ratios across layers, not values. ``sqrt(mean d^2)`` (RMS) is the square root of the total
        variance.
    """
    vectors = working(vectors)
    found = vectors.new_empty(vectors.shape[:2])
    centred = torch.empty_like(vectors[0])
    for head, distances in zip(vectors, found, strict=True):
        # Around one of the vectors first: the mean of what is left is accurate to the spread, not to the size.
        torch.sub(head, head[len(head) // 2], out=centred)
        torch.linalg.vector_norm(centred.sub_(centred.mean(0)), dim=-1, out=distances)
    return found


def distances_from(centre: Centre, vectors: torch.Tensor) -> torch.Tensor:
    """Distance of every vector ``[H, N, D]`` to the centre of its head, ``[H, N]``."""
    found = vectors.new_empty(vectors.shape[:2])
    buffer = room(vectors, vectors.dtype)
    for part in parts(vectors):
        block = vectors[:, part]
        found[:, part] = torch.linalg.vector_norm(centre.subtract(block, buffer[:, : block.shape[1]]), dim=-1)
    return found
