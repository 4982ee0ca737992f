"""The reference's scores, boosters, greedy orders and states on cases small enough to work out on paper."""

import math

import numpy as np
import pytest
import reference

EXACT = {"rtol": 0, "atol": 1e-12}


def close(found, expected):
    np.testing.assert_allclose(found, expected, **EXACT)


def sig(x):
    return 1 / (1 + math.exp(-x))


# Importance. N = 3, D = 1, H = 2, Hq = 4, scaling 1/2. KV head 0 has keys 0, ln 2, ln 3 and query head 0
# the queries 2, 0, 2 (weights 1 : 2 : 3, even in the middle); other heads attend evenly (query 0 or keys 0).

KEYS = np.log([[[1.0], [2.0], [3.0]], [[1.0], [1.0], [1.0]]])
QUERIES = np.array([[[2.0], [0.0], [2.0]], [[0.0]] * 3, [[2.0]] * 3, [[7.0]] * 3])

# Head 0: rows (1), (1/2, 1/2), (1/6, 2/6, 3/6). Even: (1), (1/2, 1/2), (1/3, 1/3, 1/3).
WEIGHTED, EVEN = [5 / 3, 5 / 6, 1 / 2], [11 / 6, 5 / 6, 1 / 3]


def test_received_attention_and_its_two_means():
    received = reference.received_attention(QUERIES, KEYS, 0.5)
    close(received, [WEIGHTED, EVEN, EVEN, EVEN])
    close(reference.h2o_score(received, 2), [[7 / 4, 5 / 6, 5 / 12], EVEN])
    # Over 3, 2 and 1 queries: (5/9, 5/12, 1/2) and (11/18, 5/12, 1/3).
    close(reference.observed_score(received, 2), [[7 / 12, 5 / 12, 5 / 12], [11 / 18, 5 / 12, 1 / 3]])


def test_tova_is_the_last_query_over_all_heads():
    # (1/6, 2/6, 3/6) once and (1/3, 1/3, 1/3) three times; only the last query counts, whichever were handed over.
    close(reference.tova_score(QUERIES, KEYS, 0.5), [[7 / 24, 1 / 3, 3 / 8]] * 2)
    queries = QUERIES.copy()
    queries[:, :2] = 55
    close(reference.tova_score(queries, KEYS, 0.5), [[7 / 24, 1 / 3, 3 / 8]] * 2)


def test_a_keep_window_of_its_own():
    # Two zero queries over four keys: rows (1/3, 1/3, 1/3, 0) and 1/4 each.
    options = {"kernel": 1}
    found = reference.snapkv_importance(np.zeros((1, 2, 1)), np.zeros((1, 4, 1)), 1.0, keep_window=1, **options)
    close(found, [[7 / 24, 7 / 24, 7 / 24]])
    assert reference.snapkv_importance(np.zeros((1, 2, 1)), np.zeros((1, 4, 1)), 1.0, **options).shape == (1, 2)
    rows = [[[0.5, 0.25, 0.25]], [[0.25, 0.5, 0.25]]]
    close(reference.group_attention(rows, 1, 2), [[[0.375, 0.375]]])
    close(reference.group_attention(rows, 2, 2), [[[0.5, 0.25]], [[0.25, 0.5]]])


def test_norms_of_keys_and_values():
    vectors = [[[3.0, 4.0], [0.0, 0.0], [5.0, 12.0]]]
    assert reference.knorm(vectors).tolist() == [[-5, 0, -13]]
    assert reference.value_norm(vectors).tolist() == [[5, 0, 13]]


def test_manifold_whole_and_in_blocks():
    keys = [[[0.0], [2.0], [10.0], [14.0], [7.0]]]
    close(reference.manifold_score(keys), [[6.6, 4.6, 3.4, 7.4, 0.4]])  # mean 33/5
    close(reference.manifold_score(keys, 2), [[1, 1, 2, 2, 0]])  # means 1, 12, 7
    close(reference.manifold_score(keys, 5), reference.manifold_score(keys))


def test_a_long_key_along_the_mean_is_far_but_not_different():
    keys = [[[2.0, 1.0], [1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [10.0, 10.0]]]
    assert reference.manifold_score(keys)[0].argmax() == 4
    assert reference.keydiff_score(keys)[0].argmin() == 4


def test_streaming():
    assert reference.streaming_keep(11, 5, 2) == [0, 1, 8, 9, 10]
    assert reference.streaming_keep(11, 5, 5) == [0, 1, 2, 3, 4]
    assert reference.streaming_keep(11, 5, 0) == [6, 7, 8, 9, 10]
    assert reference.streaming_keep(5, 5, 2) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="below the 7 sinks"):
        reference.streaming_keep(11, 5, 7)


# Normalisation.


def test_normalisations_by_hand():
    close(reference.normalise([2, 4, 10], "minmax"), [0, 0.25, 1])
    # Real indices 0.02 and 1.98: low = 0.2, high = 10 + 0.98 * 90 = 98.2, so 10 is 9.8 of 98 above low.
    close(reference.normalise([0, 10, 100], "clipped"), [0, 0.1, 1])
    # 101 numbers: low = 1 and high = 99, however far the largest is.
    found = reference.normalise([*range(100), 10**6], "clipped")
    close(found[[0, 1, 2, 50, 99, 100]], [0, 0, 1 / 98, 0.5, 1, 1])
    # Median 2, quartiles 1 and 3.
    close(reference.normalise([0, 1, 2, 3, 100], "robust"), [sig(-1), sig(-0.5), 0.5, sig(0.5), sig(49)])
    # Median 3, quartiles 1.75 and 5 (real indices 0.75 and 2.25).
    close(reference.normalise([8, 1, 4, 2], "robust"), [sig(x / 3.25) for x in (5, -2, 1, -1)])
    # Mean 4, variance 6.
    close(reference.normalise([2, 2, 8, 4], "zscore"), [x / 6**0.5 for x in (0, 0, 6, 2)])
    close(reference.normalise([2, 2, 8, 4], "rank"), [1 / 6, 1 / 6, 1, 2 / 3])
    close(reference.normalise([0, math.log(3)], "softmax"), [0.25, 0.75])


def test_normalisations_of_rows_without_spread():
    close(reference.normalise([5, 5, 9, 5, 5], "robust"), [0, 0, 1, 0, 0])  # IQR 0: min-max
    # An IQR that is rounding noise counts as 0.
    close(reference.normalise([0.3, 0.1 + 0.2, 0.9, 0.3, 0.3], "robust"), [0, 0, 1, 0, 0])
    for kind in ("minmax", "clipped", "robust", "zscore", "rank", "softmax"):
        assert reference.normalise([0.7] * 5, kind).tolist() == [0] * 5
        assert reference.normalise([0, 1e-16, 2e-16, 3e-16, 1e-16], kind, scale=1.0).tolist() == [0] * 5


# Boosters. Mean key (0, 0); distances of the candidates 3, 1, 2, 2, 1; mean unit key (-1/6, -1/6), hence -<u, ubar> =
# 1/6, -1/6, -1/6, 1/6, -1/6. The last key is the window.

CROSS = np.array([[[3.0, 0], [-1, 0], [-2, 0], [0, 2], [0, -1], [0, -1]]])
LENGTHS = np.array([[[0.0], [1], [2], [3], [4], [9]]])
FLAT = np.full((1, 5), 0.1)


def test_pure_boosters_have_the_importances_mean():
    importance = [[0.1, 0.3, 0.2, 0.1, 0.3]]  # mean 0.2; both diversities have mean 0.4
    close(reference.keydiff_booster(importance, CROSS, 1), [[0.5, 0, 0, 0.5, 0]])
    close(reference.manifold_booster(importance, CROSS, 1), [[0.5, 0, 0.25, 0.25, 0]])
    for booster in (reference.keydiff_booster, reference.manifold_booster):
        assert booster(importance, np.full((1, 6, 2), 0.3), 1).tolist() == [[0] * 5]


def test_ecokv_with_robust_diversity():
    found = reference.ecokv_score(FLAT, CROSS, LENGTHS, 1, normalisation="robust")
    close(found["E"], [[sig(1), sig(-1), 0.5, 0.5, sig(-1)]])  # median 2, quartiles 1 and 2
    close(found["C"], [[sig(1), 0.5, 0.5, sig(1), 0.5]])  # median -1/6, quartiles -1/6 and 1/6
    close(found["Vt"], [[0, 0.05, 0.1, 0.15, 0.2]])  # min-max all the same
    # r_cos = (6 / 18 - 1) / 5 < 0 counts as 0; the mean distance is 10 / 6.
    weight = 0.6 * sig(-10 / 6 / math.sqrt(2))
    diversity = 0.8 * found["E"] + 0.2 * found["C"]
    close(found["F"], weight * diversity / diversity.mean() * 0.1 + (1 - weight) * (0.1 + found["Vt"]))


def test_ecokv_with_clipped_diversity():
    # Percentiles of 1, 1, 2, 2, 3: 1 and 2.96. Of the cosines: the ends themselves.
    found = reference.ecokv_score(FLAT, CROSS, LENGTHS, 1, normalisation="clipped")
    close(found["E"], [[1, 0, 1 / 1.96, 1 / 1.96, 0]])
    close(found["C"], [[1, 0, 0, 1, 0]])


@pytest.mark.parametrize("kind", ["minmax", "clipped", "robust"])
def test_the_minmax_redundancy_stays_minmax(kind):
    options = {"normalisation": kind, "redundancy_map": "minmax"}
    close(reference.ecokv_score(FLAT, CROSS, LENGTHS, 1, **options)["r_euc"], [1 - 0.4])


# Greedy orders: columns (1/2, 1/4), (1/4, 0), (0, 1/4), (1/4, 1/4): mu 3/8, 1/8, 1/8, 1/4, mean 7/32; sigma 1/8, 1/8,
# 1/8, 0; correlation with the first +1, -1, 0.

COLUMNS = np.array([[0.5, 0.25, 0, 0.25], [0.25, 0, 0.25, 0.25]])


def test_attention_and_its_dispersion_alone():
    assert reference.mmr_order(COLUMNS, 4, 0, 0) == [0, 3, 1, 2]
    assert reference.mmr_order(COLUMNS, 4, 0.99, 0) == [0, 3, 1, 2]
    assert reference.mmr_order(COLUMNS, 4, 1, 0) == [0, 1, 2, 3]  # 1/8 + 1/8 ties with 1/4
    assert reference.mmr_order(COLUMNS, 2, 0, 0) == [0, 3]
    assert reference.mmr_order(COLUMNS, 9, 0, 0) == [0, 3, 1, 2]


def test_correlation_in_units_of_the_mean_or_raw():
    # Mean: 2 has 1/8 + 7/64 < 1/4 of 3. Raw: 2 has 1/8 + 1/2. Then 1 has a correlation of +1 with 0.
    assert reference.mmr_order(COLUMNS, 4, 0, -0.5) == [0, 3, 2, 1]
    assert reference.mmr_order(COLUMNS, 4, 0, -0.5, unit="raw") == [0, 2, 3, 1]
    assert reference.mmr_order(COLUMNS, 4, 0, 0.5, unit="raw") == [0, 1, 3, 2]


def test_largest_or_mean_correlation_with_the_selected():
    columns = COLUMNS.copy()
    columns[:, 3] = 1 / 8
    # Selected {0, 2}: 1 correlates +1 and -1 with them, largest +1, mean 0; 3 is constant and scores 1/8 either way.
    assert reference.mmr_order(columns, 4, 0, -1, unit="raw") == [0, 2, 3, 1]
    assert reference.mmr_order(columns, 4, 0, -1, unit="raw", aggregate="mean") == [0, 2, 1, 3]


def test_one_row_leaves_the_attention():
    assert reference.mmr_order([[0.1, 0.4, 0.2]], 3, 5, -7) == [1, 2, 0]


def test_profiles_over_depth():
    assert [reference.profile_value([3], "constant", layer, 2) for layer in range(2)] == [3, 3]
    assert [reference.profile_value([5, 7, 9], "segments", layer, 4) for layer in range(4)] == [5, 7, 9, 9]
    assert [reference.profile_value([5, 7, 9], "segments", layer, 7) for layer in range(7)] == [5, 5, 7, 7, 9, 9, 9]
    assert [reference.profile_value([1, 2, 3], "quadratic", layer, 3) for layer in range(3)] == [1, 2.75, 6]
    for kind in ("constant", "segments", "quadratic"):
        assert reference.profile_value([5, 7, 9], kind, 0, 1) == 5


# The state of evicted tokens. D = Dv = 1, so the state costs one token; T = W = 4, M = 4, N = 8.

ROWS = np.array([[0.2, 0.4, 0.1, 0], [0, 0.4, 0.1, 0], [0, 0.4, 0, 0.04], [0, 0.4, 0, 0.04]])
STATE_KEYS = np.array([0, 0, 1, -math.log(2), 0, 0, 0, 0])[:, None]  # phi 1, 1, 2, 1/2, ...
STATE_VALUES = np.array([8.0, 10, 4, 2, 0, 0, 0, 0])[:, None]


def test_entropy_feature_and_cost():
    assert [reference.column_entropy(c) for c in ([0.3] * 3, [0, 0.3], [0, 0], [0.3])] == [1, 0, 0, 0]
    assert reference.column_entropy([0.1, 0.1, 0, 0]) == pytest.approx(0.5)
    close(reference.feature([2, 0, -math.log(2)]), [3, 1, 0.5])
    assert [reference.state_tokens(*sizes) for sizes in ((1, 1), (2, 3), (128, 128))] == [1, 2, 65]


def test_evicted_tokens_leave_a_state():
    found = reference.retain(ROWS, STATE_KEYS, STATE_VALUES, budget=6, window=4, weight=0.5)
    close(found.alpha, [0.05, 0.4, 0.05, 0.02])
    close(found.entropy, [0, 1, 0.5, 0.5])
    close(found.score, [0.5 * 3 / 38, 1, 0.5 * 3 / 38 + 0.25, 0.25])
    assert found.kept == [1, 4, 5, 6, 7]
    # S: 8, then 4 + 2*4/2 = 8, then 4 + 2/4 = 4.5. z: 1, then 1/2 + 1 = 1.5, then 3/4 + 1/4 = 1.
    close(found.state, [[4.5]])
    close(found.normaliser, [1])
    assert found.mass == pytest.approx(0.12)
    left = STATE_KEYS[found.kept], STATE_VALUES[found.kept]
    # Even attention on what is left: 10 / 5 = 2. State: 4.5.
    close(reference.retentive_output([0.0], *left, found, 1.0), [0.88 * 2 + 0.12 * 4.5])


def test_the_weight_chooses_between_attention_and_entropy():
    rows = [[0.8, 0.1, 0], [0, 0.1, 0]]  # one peak of mean 0.4 against an even 0.1; N = 5, one free slot
    arrays = (np.zeros((5, 1)), np.zeros((5, 1)))
    kept = [reference.retain(rows, *arrays, budget=4, window=2, weight=weight).kept for weight in (0, 1)]
    assert kept == [[1, 3, 4], [0, 3, 4]]


def test_reading_the_state():
    state = reference.Retained([0], *[np.zeros(1)] * 3, np.array([[3.0], [5.0]]), np.ones(2), 0.25)
    # phi(q) = (1, 2): read-out (3 + 2*5) / 3; exact attention on one token is its value.
    close(reference.retentive_output([0.0, 1.0], [[0.0, 0.0]], [[8.0]], state, 1.0), [0.75 * 8 + 0.25 * 13 / 3])


def test_no_state_leaves_exact_attention():
    whole = reference.retain(ROWS, STATE_KEYS, STATE_VALUES, budget=8, window=4, weight=0.5)
    assert whole.kept == list(range(8))
    assert whole.mass == 0
    close(reference.retentive_output([0.0], STATE_KEYS, STATE_VALUES, whole, 1.0), [3])  # 24 / 8
    # Entropy 1 everywhere: every gate is closed, the state stays empty, g counts as 0.
    even = reference.retain(np.full((4, 4), 0.1), STATE_KEYS, STATE_VALUES, budget=6, window=4, weight=0.5)
    assert even.kept == [0, 4, 5, 6, 7]
    assert even.mass == pytest.approx(0.3)
    close(reference.retentive_output([0.0], STATE_KEYS[even.kept], STATE_VALUES[even.kept], even, 1.0), [8 / 5])
    with pytest.raises(ValueError, match="does not pay"):
        reference.retain(ROWS, STATE_KEYS, STATE_VALUES, budget=4, window=4, weight=0.5)
