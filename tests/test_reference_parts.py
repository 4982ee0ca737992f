"""The reference's geometry, selection and fidelity against closed forms, NumPy, SciPy and small numbers."""

import math

import numpy as np
import pytest
import reference
from scipy import stats

EXACT = {"rtol": 0, "atol": 1e-12}


@pytest.fixture
def cloud():
    return np.random.default_rng(11).normal(size=(2, 19, 5)) + 0.7


def test_brute_force_cosines_meet_their_closed_form(cloud):
    cloud[0, 3] = 0
    tokens, units = cloud.shape[1], reference.unit_keys(cloud)
    squared, nonzero = np.square(units.mean(1)).sum(-1), np.array([tokens - 1, tokens])
    closed = (tokens**2 * squared - nonzero) / (tokens * (tokens - 1))
    np.testing.assert_allclose(reference.mean_cosine(cloud), closed, **EXACT)
    gram = units @ units.transpose(0, 2, 1)
    off = np.array([g[~np.eye(tokens, dtype=bool)] for g in gram])
    np.testing.assert_allclose(reference.std_cosine(cloud), off.std(1), **EXACT)
    assert reference.mean_cosine(cloud[:, :1]).tolist() == [0, 0]


def test_distances_meet_their_closed_forms(cloud):
    summary, tokens = reference.distance_summary(cloud), cloud.shape[1]
    pairs = np.square(cloud[:, :, None] - cloud[:, None]).sum(-1).sum((1, 2)) / (tokens * (tokens - 1))
    np.testing.assert_allclose(summary["rms"] ** 2 * 2 * tokens / (tokens - 1), pairs, rtol=1e-12)
    assert (summary["mean"] < summary["rms"]).all()
    assert (summary["rms"] < summary["max"]).all()


def test_pca_agrees_with_singular_values_and_with_known_spectra(cloud):
    found = reference.pca(cloud[0])
    variance = np.linalg.svd(cloud[0] - cloud[0].mean(0), compute_uv=False) ** 2 / cloud.shape[1]
    np.testing.assert_allclose(found["variance"], variance, **EXACT)
    np.testing.assert_allclose(found["ratio"], variance / variance.sum(), **EXACT)
    cross = reference.pca([[2, 0], [-2, 0], [0, 1], [0, -1]])  # variances 2 and 1/2
    np.testing.assert_allclose(cross["ratio"], [0.8, 0.2], **EXACT)
    assert cross["effective_rank"] == pytest.approx(0.8**-0.8 * 0.2**-0.2, abs=1e-12)
    assert cross["participation_ratio"] == pytest.approx(6.25 / 4.25, abs=1e-12)
    assert reference.pca([[0.1, 0.7]] * 7)["effective_rank"] is None


def test_pooling_edges():
    assert reference.pool([5, 0, 0, 10, 0], 3, "avg") == pytest.approx([5 / 3, 5 / 3, 10 / 3, 10 / 3, 10 / 3])
    assert reference.pool([-5, -7, -9], 3, "max") == [-5, -5, -7]
    with pytest.raises(ValueError, match="odd"):
        reference.pool([1, 2], 2, "avg")


def test_selection_is_ordered_by_score_then_index():
    assert reference.select([[1, 3, 3, 3, 2], [0, 0, 0, 0, 0]], 2).tolist() == [[1, 2], [0, 1]]
    with pytest.raises(ValueError, match="finite"):
        reference.select([[1, math.nan]], 1)


def test_keep_at_the_edges_of_the_budget(cloud):
    arrays = (cloud[:, -3:], cloud, cloud, 0.4)
    assert reference.keep("snapkv+ecokv", *arrays, budget=19).tolist() == [list(range(19))] * 2
    assert reference.keep("snapkv+ecokv", *arrays, budget=3).tolist() == [[16, 17, 18]] * 2
    for method in ("snapkv", "snapkv+mixkv", "snapkv+ecokv", "keydiff"):
        kept = reference.keep(method, *arrays, budget=7)
        assert kept.shape == (2, 7)
        assert (np.diff(kept) > 0).all()
    with pytest.raises(ValueError, match="below the window"):
        reference.keep("snapkv", *arrays, budget=2)


def test_ecokv_without_alpha_and_beta_is_mixkv(cloud):
    scores = reference.snapkv_importance(np.tile(cloud[:, -3:], (2, 1, 1)), cloud, 0.4)
    values = np.random.default_rng(12).normal(size=(2, 19, 7))
    mixkv = reference.mixkv_score(scores, cloud, values, 3)
    assert (mixkv["r_cos"] > 0).all()
    np.testing.assert_allclose(
        reference.ecokv_score(scores, cloud, values, 3, alpha=0, beta=0)["F"], mixkv["F"], **EXACT
    )


def test_fidelity_by_hand():
    # All logits are 0: step 0 sees 3 prompt keys and 1 decoded one, step 1 one more. Kept: the prompt's first key.
    keys, queries = np.zeros((1, 3, 2)), np.ones((1, 2, 2))
    values, decode_values = np.array([[[6.0, 0], [0, 6], [0, 0]]]), np.array([[[0.0, 0], [0, 0]]])
    found = reference.fidelity(queries, keys, values, np.zeros((1, 2, 2)), decode_values, kept=[[0]], scaling=1.0)
    # Outputs (1.5, 1.5) -> (3, 0) and (1.2, 1.2) -> (2, 0).
    assert found["mass"][0] == pytest.approx((2 / 4 + 3 / 5) / 2)
    assert found["output_error"][0] == pytest.approx((1 + math.hypot(0.8, 1.2) / math.hypot(1.2, 1.2)) / 2)
    assert found["output_cosine"][0] == pytest.approx(math.sqrt(0.5))
    np.testing.assert_allclose(reference.oracle_score(queries, keys, np.zeros((1, 2, 2)), 1.0), [[0.225] * 3], **EXACT)


def test_fidelity_of_random_heads_against_masked_softmax():
    rng = np.random.default_rng(14)
    queries, keys, values = rng.normal(size=(6, 3, 5)), rng.normal(size=(2, 11, 5)), rng.normal(size=(2, 11, 7))
    decode_keys, decode_values = rng.normal(size=(2, 3, 5)), rng.normal(size=(2, 3, 7))
    kept = [[0, 4, 10], [1, 2, 3, 7]]
    found = reference.fidelity(queries, keys, values, decode_keys, decode_values, kept=kept, scaling=0.3)
    logits = 0.3 * queries.reshape(2, 9, 5) @ np.concatenate([keys, decode_keys], 1).transpose(0, 2, 1)
    logits += np.where(np.arange(14) <= 11 + np.tile(np.arange(3), 3)[:, None], 0, -np.inf)
    weights, every = np.exp(logits), np.concatenate([values, decode_values], 1)
    attention = weights / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(
        reference.oracle_score(queries, keys, decode_keys, 0.3), attention[:, :, :11].mean(1), **EXACT
    )
    for g in range(2):
        evicted = sorted(set(range(11)) - set(kept[g]))
        left = weights[g].copy()
        left[:, evicted] = 0
        full, less = attention[g] @ every[g], left / left.sum(-1, keepdims=True) @ every[g]
        error = np.linalg.norm(full - less, axis=1) / np.linalg.norm(full, axis=1)
        cosine = (full * less).sum(1) / np.linalg.norm(full, axis=1) / np.linalg.norm(less, axis=1)
        assert found["mass"][g] == pytest.approx(1 - attention[g][:, evicted].sum(1).mean(), abs=1e-12)
        assert found["output_error"][g] == pytest.approx(error.mean(), abs=1e-12)
        assert found["output_cosine"][g] == pytest.approx(cosine.mean(), abs=1e-12)


def test_a_full_cache_loses_nothing(cloud):
    kept = [range(19)] * 2
    decoded = cloud[:, :2] * 0.5
    found = reference.fidelity(cloud[:, :2], cloud, cloud, decoded, decoded, kept=kept, scaling=0.4)
    np.testing.assert_allclose(found["mass"], 1, **EXACT)
    np.testing.assert_allclose(found["output_error"], 0, **EXACT)
    np.testing.assert_allclose(found["output_cosine"], 1, **EXACT)


def test_rank_correlation_and_overlap():
    a, b = [3, 1, 1, 7, 5, 5, 5], [2, 2, 9, 4, 4, 0, 8]
    assert reference.average_ranks(a) == [3, 1.5, 1.5, 7, 5, 5, 5]
    assert reference.spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
    assert reference.spearman(a, [-x for x in a]) == pytest.approx(-1)
    assert reference.spearman(a, [2] * 7) is None
    assert reference.jaccard([1, 2, 3], [2, 3, 5, 7]) == 2 / 5
    assert reference.jaccard([], []) == 1
