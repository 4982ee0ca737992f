"""Scores from keys and values alone, without any query. Higher = keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ecokv_cli.geometry.spread import centroid_distances

if TYPE_CHECKING:
    from ecokv_cli.eviction.layer import Layer


def key_norms(layer: Layer, candidates: int) -> torch.Tensor:
    """Euclidean norm of each key, ``[H, candidates]``; small norms tend to go with high attention."""
    norms: torch.Tensor = torch.linalg.vector_norm(layer.keys[:, :candidates], dim=-1)
    return norms


def value_norms(layer: Layer, candidates: int) -> torch.Tensor:
    """Euclidean norm of each value, ``[H, candidates]``; attention sinks have tiny ones."""
    norms: torch.Tensor = torch.linalg.vector_norm(layer.values[:, :candidates], dim=-1)
    return norms


def keydiff_score(layer: Layer, candidates: int) -> torch.Tensor:
    """KeyDiff: minus the cosine of each key to the mean unit key, ``-cos(k_j, mean_N u)``.

    Parameters
    ----------
    layer
        Needs keys only.
    candidates
        Number of leading positions to score; the mean is over all N.

    Returns
    -------
    torch.Tensor
        ``[H, candidates]`` in [-1, 1]; high = unlike the rest. All 0 where the mean vanishes.

    Notes
    -----
    KeyDiff, arXiv 2504.15364, scored once over the whole prompt; the paper applies it block by block.
    """
    return -layer.directions.cosines[:, :candidates]


def manifold_score(layer: Layer, candidates: int, block: int = 0) -> torch.Tensor:
    """ManifoldKV: distance of each key to the centroid of its head, ``||k_j - c||``.

    Parameters
    ----------
    layer
        Needs keys only.
    candidates
        Number of leading positions to score.
    block
        0: one centroid of all N keys. Otherwise each run of `block` positions, the last one shorter, has its own.

    Returns
    -------
    torch.Tensor
        ``[H, candidates]`` >= 0 in the units of the keys; high = far from the rest.

    Notes
    -----
    ManifoldKV, arXiv 2602.08343.
    """
    if block == 0 or block >= layer.tokens:
        return layer.key_distances[:, :candidates]
    distances = [centroid_distances(part) for part in torch.split(layer.keys, block, dim=1)]
    return torch.cat(distances, dim=1)[:, :candidates]
