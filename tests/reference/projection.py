"""Principal components of one head's keys."""

import math

import numpy as np
from numpy.typing import ArrayLike

from reference.basics import TOLERANCE, Array, array, mean


def pca(points: ArrayLike) -> dict[str, Array | float | None]:
    """PCA of one head's keys [N, D]: eigenvalues of the population covariance, largest first.

    `ratio` is the explained variance ratio, `effective_rank` = exp(-sum p ln p) of the ratios,
    `participation_ratio` = (sum l)^2 / sum l^2.
    All points equal: the last two are undefined (None) and the ratios are zeros.
    """
    x = array(points)
    centre = [mean(x[:, d]) for d in range(x.shape[1])]
    covariance = np.zeros((x.shape[1], x.shape[1]))
    for a in range(x.shape[1]):
        for b in range(x.shape[1]):
            covariance[a, b] = mean((row[a] - centre[a]) * (row[b] - centre[b]) for row in x)
    eigenvalues = np.array([max(float(v), 0.0) for v in np.linalg.eigvalsh(covariance)[::-1]])
    total = math.fsum(eigenvalues)
    if total <= x.shape[1] * (TOLERANCE * float(np.max(np.abs(x)))) ** 2:
        zeros = np.zeros_like(eigenvalues)
        return {"variance": zeros, "ratio": zeros, "effective_rank": None, "participation_ratio": None}
    ratio = eigenvalues / total
    return {
        "variance": eigenvalues,
        "ratio": ratio,
        "effective_rank": math.exp(-math.fsum(p * math.log(p) for p in ratio if p > 0)),
        "participation_ratio": total**2 / math.fsum(v * v for v in eigenvalues),
    }


def skewness(scores: ArrayLike) -> Array:
    """Sum of the cubes of every column of scores [N, C], over the sum of their magnitudes."""
    x = array(scores)
    return np.array(
        [math.fsum(v**3 for v in column) / math.fsum(abs(v) ** 3 for v in column) for column in x.T], dtype=np.float64
    )
