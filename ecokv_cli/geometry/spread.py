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


def centroid_distances(vectors: torch.Tensor, leading: int | None = None) -> torch.Tensor:
    """Distance of every vector to the centroid of its head, ``d_i = ||k_i - c||``.

    Parameters
    ----------
    vectors
        ``[H, N, D]``.
    leading
        How many of the first vectors make the centroid; None for all.

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
        torch.linalg.vector_norm(centred.sub_(centred[:leading].mean(0)), dim=-1, out=distances)
    return found


def coordinate_spread(vectors: torch.Tensor, of: str, ddof: int = 0) -> torch.Tensor:
    """Standard deviation of the coordinates of each head.

    Parameters
    ----------
    vectors
        ``[H, N, D]``.
    of
        ``coordinates``: of all N D numbers about their one mean, ``sqrt(sum (k_id - m)^2 / (N D - ddof))``.
        ``dimensions``: the mean over d of ``sqrt(sum_i (k_id - c_d)^2 / (N - ddof))``.
    ddof
        0 for the population, 1 for the estimate from a sample.

    Returns
    -------
    torch.Tensor
        ``[H]`` fp64 >= 0 in the units of the vectors.
    """
    heads, n, dim = vectors.shape
    # Head by head and around one of the vectors, as for the distances.
    start = vectors[:, n // 2].double()
    offset, squares = torch.empty_like(start), torch.empty_like(start)
    for head in range(heads):
        centred = vectors[head].double() - start[head]
        offset[head] = centred.mean(0)
        squares[head] = (centred - offset[head]).square().sum(0)
    if of == "dimensions":
        return (squares / max(n - ddof, 1)).sqrt().mean(-1)
    centre = start + offset
    between = n * (centre - centre.mean(-1, keepdim=True)).square()
    return ((squares + between).sum(-1) / max(n * dim - ddof, 1)).sqrt()


def distances_from(centre: Centre, vectors: torch.Tensor) -> torch.Tensor:
    """Distance of every vector ``[H, N, D]`` to the centre of its head, ``[H, N]``."""
    found = vectors.new_empty(vectors.shape[:2])
    buffer = room(vectors, vectors.dtype)
    for part in parts(vectors):
        block = vectors[:, part]
        found[:, part] = torch.linalg.vector_norm(centre.subtract(block, buffer[:, : block.shape[1]]), dim=-1)
    return found
