"""The reference's budgets over layers and heads, and the head scores, on cases small enough to work out on paper."""

from fractions import Fraction

import numpy as np
import pytest
import reference

# Largest remainder.


@pytest.mark.parametrize(
    ("shares", "total", "cap", "expected"),
    [
        ([1, 1, 1], 4, 9, [2, 1, 1]),  # 4/3 each, the tie to the lower index
        ([1, 2, 4], 10, 9, [1, 3, 6]),  # 1.43, 2.86, 5.71: two missing
        ([6, 1, 1], 10, 4, [4, 3, 3]),  # 7.5 is fixed at 4, 6 is left
        ([8, 3, 1], 12, 5, [5, 5, 2]),  # 8 is fixed at 5; then 7 * 3/4 = 5.25, fixed too
        ([5, 5, 1], 10, 4, [4, 4, 2]),
        ([1, 0, 0], 10, 5, [5, 3, 2]),  # what is left goes evenly: 2.5 each
        ([0, 0, 0], 7, 5, [3, 2, 2]),
        ([1, 0, 3], 8, 9, [2, 0, 6]),  # a share of 0 gets nothing
        ([1, 2], 9, 3, [3, 3]),  # no room for 9
        ([1, 2], 0, 3, [0, 0]),
        ([0.5, 0.5, 7], 8, 7, [1, 0, 7]),
    ],
)
def test_largest_remainder(shares, total, cap, expected):
    assert reference.largest_remainder(shares, total, cap) == expected


def test_largest_remainder_knows_equal_remainders():
    # Quotas 1/3, 4/3, 7/3 and 2: in binary their remainders differ in the last place.
    shares = [Fraction(1, 3), Fraction(4, 3), Fraction(7, 3), Fraction(2)]
    assert reference.largest_remainder(shares, 6, 9) == [1, 1, 2, 2]
    with pytest.raises(ValueError, match="negative"):
        reference.largest_remainder([1, -1], 3, 3)


def test_largest_remainder_is_exact_bounded_and_fair():
    rng = np.random.default_rng(23)
    for _ in range(97):
        shares, cap = rng.integers(0, 13, 7).tolist(), int(rng.integers(1, 11))
        total = int(rng.integers(0, 83))
        counts = reference.largest_remainder(shares, total, cap)
        assert sum(counts) == min(total, 7 * cap)
        assert all(0 <= n <= cap for n in counts)
        for i in range(7):
            for j in range(7):
                assert shares[i] < shares[j] or counts[i] >= counts[j] or (shares[i] == shares[j] and i > j)


# PyramidKV.


@pytest.mark.parametrize(
    ("layers", "free", "candidates", "expected"),
    [
        (3, 20, 100, [39, 20, 1]),  # hi = 40 - 1
        (4, 20, 100, [39, 26, 14, 1]),  # 26.33 and 13.67: one missing
        (3, 20, 30, [30, 20, 10]),  # hi = M, lo = 40 - 30
        (3, 20, 15, [15, 15, 15]),  # everything
        (1, 20, 100, [20]),
        (1, 20, 15, [15]),
        (3, 7, 100, [14, 7, 0]),  # 13.65, 7, 0.35
        (4, 15, 100, [29, 20, 10, 1]),  # 29.25, 19.75, 10.25, 0.75
        (2, 0, 100, [0, 0]),
    ],
)
def test_exact_pyramid(layers, free, candidates, expected):
    assert reference.pyramid_counts(layers, free, candidates) == expected


@pytest.mark.parametrize(
    ("layers", "free", "candidates", "expected"),
    [
        (4, 20, 100, [39, 27, 15, 3]),  # step 38 // 3 = 12: 84 slots instead of 80
        (4, 20, 39, [39, 27, 15, 3]),
        (4, 20, 30, [30, 24, 18, 12]),  # step 20 // 3 = 6
        (4, 20, 15, [15, 15, 15, 15]),  # lo = 25, step -4, clamped
        (3, 7, 100, [14, 7, 0]),  # lo = 0, hi = 14
        (1, 20, 100, [20]),
        (1, 20, 15, [15]),
    ],
)
def test_floored_pyramid(layers, free, candidates, expected):
    assert reference.pyramid_counts(layers, free, candidates, compat="reference") == expected


@pytest.mark.parametrize(
    ("layers", "budget", "tokens", "window", "expected"),
    [
        (3, 32, 64, 4, [60, 32, 4]),  # hi = 62.4 becomes 64 - 4, lo = 64 - 60
        (4, 32, 64, 4, [60, 41, 23, 4]),  # 41.33, 22.67
        (9, 40, 100, 1, [78, 68, 59, 50, 40, 30, 21, 12, 2]),  # step 9.5, halves to even
        (3, 32, 1000, 4, [32, 32, 32]),  # lo = 1.6 < 4
        (3, 2, 24, 8, [2, 2, 2]),  # a budget below the window
        (3, 0, 24, 8, [1, 1, 1]),
        (1, 32, 64, 4, [32]),
    ],
)
def test_pyramid_with_the_window(layers, budget, tokens, window, expected):
    free, candidates = budget - window, tokens - window
    assert reference.pyramid_counts(layers, free, candidates, compat="kvpress", window=window) == expected


def test_pyramid_with_another_slope():
    assert reference.pyramid_counts(3, 20, 100, beta=2) == [30, 20, 10]
    assert reference.pyramid_counts(3, 20, 100, beta=2.5) == [32, 20, 8]
    assert reference.pyramid_counts(3, 20, 100, beta=1) == [20, 20, 20]
    assert reference.pyramid_counts(3, 21, 100, beta=2, compat="reference") == [32, 21, 10]


# AdaKV: M = 5, C = 2. The four best of all are 0.9, 0.8, 0.7 and 0.6: head 0 wins three, head 1 one.

ADA = np.array([[0.1, 0.9, 0.7, 0, 0.8], [0.6, 0.2, 0, 0.1, 0.1]])


@pytest.mark.parametrize(
    ("floor", "exact", "floored"),
    [
        (0.0, [3, 1], [3, 1]),
        (0.2, [3, 1], [2, 1]),  # 2.8 and 1.2; 2.4 and 0.8, a slot lost
        (0.5, [3, 1], [2, 2]),  # 2.5 and 1.5, the tie to head 0; halves to even
        (1.0, [2, 2], [2, 2]),
    ],
)
def test_ada(floor, exact, floored):
    assert reference.ada_counts(ADA, 2, floor) == exact
    assert reference.ada_counts(ADA, 2, floor, compat="reference") == floored


def test_ada_normalises_by_the_share_of_the_best():
    # Weights 1.7 / 2.5 = 0.68 and 1: then 0.612, 0.6, 0.544, 0.5 lead, two of each head.
    scores = np.array([ADA[0], [0.6, 0.5, 0, 0, 0]])
    assert reference.ada_counts(scores, 2, 0.0) == [3, 1]
    assert reference.ada_counts(scores, 2, 0.0, normalise=True) == [2, 2]
    assert reference.ada_counts(0 * scores, 2, 0.0, normalise=True) == [4, 0]


def test_ada_ties_and_caps():
    assert reference.ada_counts(np.ones((2, 5)), 2, 0.0) == [4, 0]  # the first four of head 0
    assert reference.ada_counts(np.ones((2, 5)), 2, 0.2) == [4, 0]  # 3.6 and 0.4
    assert reference.ada_counts(np.ones((2, 5)), 2, 0.5) == [3, 1]
    for compat in ("exact", "reference"):
        assert reference.ada_counts(np.ones((2, 3)), 7, 0.2, compat=compat) == [3, 3]


@pytest.mark.parametrize(
    ("floor", "window", "expected"),
    [
        (0.2, 1, [5, 1]),  # n = 3: int(0.6) = 0, so one is safe: the window. The best four others are all head 0's
        (0.7, 1, [4, 2]),  # two are safe: the window and the best
        (1.0, 1, [3, 3]),
        (0.2, 0, [3, 1]),  # n = 2: int(0.4) = 0, so one is safe: the best
        (0.0, 0, [4, 0]),
    ],
)
def test_ada_with_the_window(floor, window, expected):
    scores = [[0.5, 0.9, 0.8, 0.7, 0.6], [0.05, 0.04, 0.03, 0.02, 0.01]]
    assert reference.ada_counts(scores, 2, floor, compat="kvpress", window=window) == expected


# SparseMM: L = 2, Hq = 4, H = 2. Grouped 3, 1, 3, 1 of 8.

HEAD_SCORES = [[1, 2, 0, 1], [3, 0, 1, 0]]


def test_sparse():
    # Each 1 + 36 p: 14.5 and 5.5, the two missing to layer 0.
    assert reference.sparse_counts(HEAD_SCORES, 2, 10, 100).tolist() == [[15, 6], [14, 5]]
    # At most 14: two are fixed, 12 are left for the other two.
    assert reference.sparse_counts(HEAD_SCORES, 2, 10, 14).tolist() == [[14, 6], [14, 6]]
    assert reference.sparse_counts(HEAD_SCORES, 2, 10, 7).tolist() == [[7, 7], [7, 7]]
    assert reference.sparse_counts(HEAD_SCORES, 2, 10, 100, floor=1).tolist() == [[10, 10], [10, 10]]


def test_floored_sparse():
    # 1 + 36 p, halves to even; a cut is lost.
    assert reference.sparse_counts(HEAD_SCORES, 2, 10, 100, compat="reference").tolist() == [[14, 6], [14, 6]]
    assert reference.sparse_counts(HEAD_SCORES, 2, 10, 12, compat="reference").tolist() == [[12, 6], [12, 6]]
    # int(0.9) = 0, so 36 p: 13.5 and 4.5.
    assert reference.sparse_counts(HEAD_SCORES, 2, 9, 100, compat="reference").tolist() == [[14, 4], [14, 4]]


@pytest.mark.parametrize("wrong", [[[0, 0]], [[2, -1]], [[1, np.nan]], [[1, np.inf]]])
def test_sparse_refuses_scores_that_are_no_shares(wrong):
    with pytest.raises(ValueError, match="head scores"):
        reference.sparse_counts(wrong, 1, 10, 100)


# Head scores: prompt keys 0 .. 3, decoded keys 4 .. 6. "Total" is in one chunk, "42" in two, "EUR" in one.

BOXES = [("Total 42", {1, 2}), ("42 EUR", {3})]


def test_head_scores_by_hand():
    prompt = np.array([[0, 0], [1, 0], [0, 1], [-1, -1]])
    written = np.array([[0, 0], [-3, 2], [-100, -100]])
    last = np.array([[1, 0], [-1, -1]])  # head 0 looks at 1, which is in R; head 1 at 3, which is not
    # Step 2 sees the decoded keys 0 and 1 only. Head 0: -x is 1 at 3, 3 at 5. Head 1: -x-y is 2 at 3, 1 at 5.
    later = np.array([[[7, 7], [-1, 0], [9, 9]], [[7, 7], [-1, -1], [9, 9]]])
    # A second KV head of zeros: every product ties, so its heads look at position 0.
    arrays = (
        [np.tile(last[:, None], (2, 1, 1))],
        [np.stack([prompt, 0 * prompt])],
        [np.tile(later, (2, 1, 1))],
        [np.stack([written, 0 * written])],
    )
    tokens = [" Total\n", "42", "EUR", " "]
    assert reference.sample_head_scores(*arrays, tokens, BOXES).tolist() == [[0.5, 1, 0, 0]]
    # The same in two layers; in the second the first query head's last query changes, so that it looks at 2.
    twice = [array * 2 for array in arrays]
    twice[0] = [arrays[0][0], np.concatenate([[[[0, 1]]], arrays[0][0][1:]])]
    assert reference.sample_head_scores(*twice, tokens, BOXES).tolist() == [[0.5, 1, 0, 0]] * 2
    # Of several window queries the last one counts.
    arrays[0][0] = np.concatenate([np.full((4, 1, 2), 50), arrays[0][0]], axis=1)
    assert reference.sample_head_scores(*arrays, tokens[:1], BOXES).tolist() == [[0.5, 0, 0, 0]]
    assert reference.sample_head_scores(*arrays, ["42", "", "  "], BOXES).tolist() == [[0, 0, 0, 0]]
    assert reference.sample_head_scores(*arrays, [""], BOXES[:1]).tolist() == [[0, 0, 0, 0]]


def test_head_scores_are_means_over_samples():
    assert reference.head_scores([[[0.5, 1]], [[1.5, 0]]]).tolist() == [[1, 0.5]]
