"""The geometry of keys as one would compute it at first: all pairs, and one library call per number.

What `analyze_geometry.py` compares with. Not a reference: `tests/reference` is that.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import spearmanr
from sklearn.decomposition import PCA
from sklearn.metrics import pairwise_distances
from sklearn.metrics.pairwise import cosine_similarity


def usual_script(keys: np.ndarray, importance: np.ndarray, diversity: np.ndarray) -> list[dict[str, float]]:
    """One row per head: cosines, distances, explained variance, and the correlation of two given scores."""
    found = []
    for head in range(len(keys)):
        k = keys[head]
        upper = np.triu_indices(len(k), 1)
        cosines = cosine_similarity(k)[upper]
        distances = pairwise_distances(k)[upper]
        ratios = PCA().fit(k).explained_variance_ratio_
        to_centre = np.linalg.norm(k - k.mean(0), axis=1)
        found.append({
            "cos_mean": float(cosines.mean()), "cos_std": float(cosines.std()),
            "pair_distance_rms": float(np.sqrt(np.mean(distances**2))), "dist_mean": float(to_centre.mean()),
            "pca_1": float(ratios[0]), "spearman": float(spearmanr(importance[head], diversity[head]).statistic),
        })  # fmt: skip
    return found
