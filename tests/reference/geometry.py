"""Geometry of one head's keys: directions, cosines, distances to the mean."""

import math

import numpy as np
from numpy.typing import ArrayLike

from reference.basics import Array, array, mean, norms


def unit_keys(keys: ArrayLike) -> Array:
    """k / ||k||; a zero key stays the zero vector (its cosine with anything is 0)."""
    k = array(keys)
    lengths = norms(k)
    out = np.zeros_like(k)
    for at in np.ndindex(lengths.shape):
        if lengths[at] > 0:
            out[at] = k[at] / lengths[at]
    return out


def keydiff_score(keys: ArrayLike) -> Array:
    """KeyDiff score [H, N]: minus the cosine of each key to the mean of the unit keys of all N positions."""
    units = unit_keys(keys)
    out = np.zeros(units.shape[:2])
    for h, head in enumerate(units):
        anchor = np.array([mean(head[:, d]) for d in range(head.shape[1])])
        length = float(norms(anchor))
        for j, u in enumerate(head):
            out[h, j] = -float(u @ anchor) / length if length > 0 else 0.0
    return out


def pairwise_cosines(head_keys: ArrayLike) -> list[float]:
    """Cosines of all N (N - 1) ordered pairs i != j of one head's keys [N, D]."""
    u = unit_keys(head_keys)
    return [float(u[i] @ u[j]) for i in range(len(u)) for j in range(len(u)) if i != j]


def mean_cosine(keys: ArrayLike) -> Array:
    """Mean off-diagonal cosine [H], brute force over the pairs i != j; 0 for a single key."""
    return np.array([mean(pairwise_cosines(head) or [0.0]) for head in array(keys)])


def std_cosine(keys: ArrayLike) -> Array:
    """Population standard deviation [H] of the off-diagonal cosines, brute force; 0 for a single key."""
    out = []
    for head in array(keys):
        cosines = pairwise_cosines(head) or [0.0]
        centre = mean(cosines)
        out.append(math.sqrt(mean((c - centre) ** 2 for c in cosines)))
    return np.array(out)


def centroid(keys: ArrayLike) -> Array:
    """Mean key [H, D] over all N positions."""
    k = array(keys)
    return np.array([[mean(head[:, d]) for d in range(k.shape[2])] for head in k])


def distances(keys: ArrayLike, leading: int | None = None) -> Array:
    """Distance of each key to the centroid of its head [H, N], by direct difference; the centroid of all N keys or of
    the `leading` first."""
    k = array(keys)
    return np.array([norms(head - c) for head, c in zip(k, centroid(k[:, :leading]), strict=True)])


def coordinate_spread(head_keys: ArrayLike, of: str, ddof: int = 0) -> float:
    """Standard deviation of one head's N D coordinates taken together, or the mean over its D dimensions of theirs."""
    k = array(head_keys)
    columns = [[float(x) for x in column] for column in k.T]

    def deviation(numbers: list[float]) -> float:
        centre = mean(numbers)
        return math.sqrt(math.fsum((x - centre) ** 2 for x in numbers) / (len(numbers) - ddof))

    if of == "coordinates":
        return deviation([x for column in columns for x in column])
    return mean(deviation(column) for column in columns)


def manifold_score(keys: ArrayLike, block: int | None = None) -> Array:
    """ManifoldKV score [H, N]: distance ||k_j - c|| to the centroid of all N keys; far keys are kept.

    With `block` the positions fall into blocks of that many, from position 0 on, the last one possibly shorter; each
    key is measured against the centroid of its own block.
    """
    k = array(keys)
    size = k.shape[1] if block is None else block
    parts = [distances(k[:, start : start + size]) for start in range(0, k.shape[1], size)]
    return np.concatenate(parts, axis=1)


def distance_summary(keys: ArrayLike) -> dict[str, Array]:
    """Mean, root mean square and largest distance to the centroid, each [H]."""
    d = distances(keys)
    return {
        "mean": np.array([mean(row) for row in d]),
        "rms": np.array([math.sqrt(mean(x * x for x in row)) for row in d]),
        "max": np.array([max(row) for row in d]),
    }
