"""Euclidean spread of the keys of one head around their centroid."""

from __future__ import annotations

import torch

from ecokv_cli.geometry.similarity import working


def centred(vectors: torch.Tensor) -> torch.Tensor:
    """Rows minus their mean, ``k_i - c`` with ``c = mean k_i``.

    The first row is subtracted before the mean is taken, so that a tight cluster far from the origin (keys at 50
    with a spread of 1e-3, say) keeps its shape; the expanded form ``||k||^2 - 2<k, c> + ||c||^2`` loses it.

    Parameters
    ----------
    vectors
        ``[H, N, D]``.

    Returns
    -------
    torch.Tensor
        ``[H, N, D]`` in fp32 (fp64 if the input is), mean zero over N.
    """
    vectors = working(vectors)
    shifted = vectors - vectors[:, :1]
    return shifted.sub_(shifted.mean(dim=1, keepdim=True, dtype=torch.float64).to(shifted.dtype))


def centroid_distances(vectors: torch.Tensor) -> torch.Tensor:
    """Distance of every key to the centroid, ``d_i = ||k_i - c||``.

    Parameters
    ----------
    vectors
        ``[H, N, D]``.

    Returns
    -------
    torch.Tensor
        ``[H, N]`` >= 0 in the units of the keys. The scale differs from layer to layer, so compare ranks or
        ratios across layers, not values. ``sqrt(mean d^2)`` (RMS) is the square root of the total variance.
    """
    distances: torch.Tensor = torch.linalg.vector_norm(centred(vectors), dim=-1)
    return distances
