"""Naive float64 reference of the eviction formulas: plain loops over tokens and heads, the oracle of the other tests.

Written apart from the package and sharing no code with it. Notation: H KV heads, Hq query heads, G = Hq / H, N prompt
positions, W window positions (the last ones of the prompt), M = N - W candidates, T decoded tokens, L layers, D key
size, Dv value size, B budget, C = B - W free slots. Arrays are keys [H, N, D], values [H, N, Dv], window queries
[Hq, W, D]. Query head h reads KV head h // G. A higher score means: keep; ties go to the lower index.
"""

from reference.adakv import ada_counts
from reference.attention import group_attention, pool, received_attention, reduce_attention, window_attention
from reference.basics import norms
from reference.boosters import keydiff_booster, manifold_booster, mixkv_score
from reference.correlation import average_ranks, jaccard, spearman
from reference.ecokv import bounded_redundancy, ecokv_score
from reference.geometry import (
    centroid,
    distance_summary,
    distances,
    keydiff_score,
    manifold_score,
    mean_cosine,
    pairwise_cosines,
    std_cosine,
    unit_keys,
)
from reference.headscores import head_scores, sample_head_scores
from reference.heldout import decode_attention, fidelity, oracle_score
from reference.importance import h2o_score, knorm, observed_score, snapkv_importance, tova_score, value_norm
from reference.mmr import mmr_order, profile_value
from reference.normalisation import minmax, normalise, rescale
from reference.projection import pca, skewness
from reference.pyramid import pyramid_counts
from reference.retentive import Retained, column_entropy, feature, retain, retentive_output, state_tokens
from reference.rounding import largest_remainder
from reference.selection import add_window, keep, select, streaming_keep
from reference.sparsemm import sparse_counts

__all__ = [
    "Retained",
    "ada_counts",
    "add_window",
    "average_ranks",
    "bounded_redundancy",
    "centroid",
    "column_entropy",
    "decode_attention",
    "distance_summary",
    "distances",
    "ecokv_score",
    "feature",
    "fidelity",
    "group_attention",
    "h2o_score",
    "head_scores",
    "jaccard",
    "keep",
    "keydiff_booster",
    "keydiff_score",
    "knorm",
    "largest_remainder",
    "manifold_booster",
    "manifold_score",
    "mean_cosine",
    "minmax",
    "mixkv_score",
    "mmr_order",
    "normalise",
    "norms",
    "observed_score",
    "oracle_score",
    "pairwise_cosines",
    "pca",
    "pool",
    "profile_value",
    "pyramid_counts",
    "received_attention",
    "reduce_attention",
    "rescale",
    "retain",
    "retentive_output",
    "sample_head_scores",
    "select",
    "skewness",
    "snapkv_importance",
    "sparse_counts",
    "spearman",
    "state_tokens",
    "std_cosine",
    "streaming_keep",
    "tova_score",
    "unit_keys",
    "value_norm",
    "window_attention",
]
