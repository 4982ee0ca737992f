"""The reference itself against recorded numbers: kvpress 0.5.5 on tiny models, and a case worked by hand."""

import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import reference
from safetensors.torch import load_file
from scipy import stats

GOLDENS = Path(__file__).parent / "goldens"
CASES = json.loads((GOLDENS / "index.json").read_text())["cases"]
HAND = json.loads((GOLDENS / "hand_ecokv.json").read_text())

# Integer keys that have the hand case's distances and cosines. Of the values only the norms matter (up to x -> ax + b).
HAND_KEYS = np.array([[[3.0, 4.0], [0.0, 5.0], [4.0, 3.0], [-3.0, 4.0], [0.0, 1.0]]])
HAND_VALUES = np.array([[[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [3.0, 4.0], [7.0, 0.0]]])
HAND_ATTENTION = np.array([[0.1, 0.2, 0.3, 0.35]])
EXACT = {"rtol": 0, "atol": 1e-12}


def case_id(case):
    return case["file"].removeprefix("kv_").removesuffix(".safetensors")


def cases(method, dtype="float32"):
    found = [case for case in CASES if case["method"] == method and case["dtype"] == dtype]
    return pytest.mark.parametrize("case", found, ids=case_id)


@cache
def tensors(file):
    """Tensors of one golden, floats as float64."""
    stored = load_file(GOLDENS / file)
    return {name: (t.double() if t.is_floating_point() else t).numpy() for name, t in stored.items()}


def layers(case):
    """One dictionary per layer: keys, q_window, scores, kept, kept_len."""
    stored = tensors(case["file"])
    for layer in range(case["layers"]):
        prefix = f"L{layer}."
        yield {name.removeprefix(prefix): t for name, t in stored.items() if name.startswith(prefix)}


def scaling_of(layer):
    return layer["keys"].shape[2] ** -0.5


def snapkv_of(case, layer):
    return reference.snapkv_importance(layer["q_window"], layer["keys"], scaling_of(layer), kernel=case["kernel"])


def worst(case, score):
    """Largest error over the layers of a case's candidate scores."""
    found = []
    for layer in layers(case):
        scores = score(layer)
        found.append(np.abs(scores - layer["scores"][:, : scores.shape[1]]).max())
    return max(found)


# What was recorded.


@cases("snapkv")
def test_snapkv_scores_equal_the_recorded_ones(case):
    for layer in layers(case):
        scores = snapkv_of(case, layer)
        recorded, candidates = layer["scores"], scores.shape[1]
        np.testing.assert_allclose(scores, recorded[:, :candidates], rtol=0, atol=2e-7)
        # The window is recorded as the largest candidate score over the heads, plus 1.
        np.testing.assert_allclose(recorded[:, candidates:], scores.max() + 1, rtol=0, atol=2e-6)


@cases("keydiff")
def test_keydiff_scores_equal_the_recorded_ones(case):
    assert worst(case, lambda layer: reference.keydiff_score(layer["keys"])) < 1e-6


@pytest.mark.parametrize("case", [c for c in CASES if c["method"] in ("snapkv", "keydiff")], ids=case_id)
def test_kept_sets_equal_the_recorded_ones(case):
    for layer in layers(case):
        arrays = (layer["q_window"], layer["keys"], layer["keys"], scaling_of(layer))
        budget = int(layer["kept_len"][0])
        kept = reference.keep(case["method"], *arrays, budget=budget, kernel=case.get("kernel", 5))
        np.testing.assert_array_equal(kept, layer["kept"])


@cases("snapkv", "bfloat16")
def test_snapkv_scores_agree_with_bfloat16_ones(case):
    # The recorded scores went through bfloat16 (8 bits) after the softmax, the pooling and the mean.
    for layer in layers(case):
        scores = snapkv_of(case, layer)
        np.testing.assert_allclose(scores, layer["scores"][:, : scores.shape[1]], rtol=4 * 2**-8, atol=2e-4)


# Wrong formulas must not pass as right ones.


def without_mask(layer, case):
    q, k = layer["q_window"], np.repeat(layer["keys"], len(layer["q_window"]) // len(layer["keys"]), axis=0)
    weights = np.exp(q @ k.transpose(0, 2, 1) * scaling_of(layer))
    attention = weights / weights.sum(-1, keepdims=True)
    return reference.reduce_attention(attention, len(layer["keys"]), kernel=case["kernel"])


def softmax_of_candidates(layer, case):
    attention = reference.window_attention(layer["q_window"], layer["keys"], scaling_of(layer))
    attention /= attention[:, :, : -case["window"]].sum(-1, keepdims=True)
    return reference.reduce_attention(attention, len(layer["keys"]), kernel=case["kernel"])


def edge_divisor(layer, case):
    scores, kernel = snapkv_of(case, layer), case["kernel"]
    size = scores.shape[1]
    inside = [sum(0 <= i < size for i in range(j - kernel // 2, j + kernel // 2 + 1)) for j in range(size)]
    return scores * kernel / np.array(inside)


def window_sum(layer, case):
    return snapkv_of(case, layer) * case["window"]


def pooled_with_the_window(layer, case):
    attention = reference.window_attention(layer["q_window"], layer["keys"], scaling_of(layer)).mean(1)
    per_head = attention.reshape(len(layer["keys"]), -1, attention.shape[1]).mean(1)
    pooled = np.array([reference.pool(row, case["kernel"], "avg") for row in per_head])
    return pooled[:, : -case["window"]]


def unscaled(layer, case):
    return reference.snapkv_importance(layer["q_window"], layer["keys"], 1.0, kernel=case["kernel"])


def maximum_over_the_group(layer, case):
    options = {"kernel": case["kernel"], "gqa": "max"}
    return reference.snapkv_importance(layer["q_window"], layer["keys"], scaling_of(layer), **options)


def interleaved_groups(layer, case):
    heads = np.arange(len(layer["q_window"])).reshape(-1, len(layer["keys"])).T.reshape(-1)
    return snapkv_of(case, {**layer, "q_window": layer["q_window"][heads]})


def maximum_pooling(layer, case):
    options = {"kernel": case["kernel"], "pooling": "max"}
    return reference.snapkv_importance(layer["q_window"], layer["keys"], scaling_of(layer), **options)


WRONG = (softmax_of_candidates, edge_divisor, pooled_with_the_window, unscaled, maximum_pooling)
WRONG_IN_A_WINDOW = (without_mask, window_sum)
WRONG_IN_A_GROUP = (maximum_over_the_group, interleaved_groups)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda f: f.__name__)
@cases("snapkv")
def test_wrong_snapkv_formulas_are_noticed(case, wrong):
    assert worst(case, lambda layer: wrong(layer, case)) > 1e-4


@pytest.mark.parametrize("wrong", WRONG_IN_A_WINDOW, ids=lambda f: f.__name__)
@cases("snapkv")
def test_wrong_windows_are_noticed_unless_the_window_is_one(case, wrong):
    error = worst(case, lambda layer: wrong(layer, case))
    assert error < 2e-7 if case["window"] == 1 else error > 1e-4


@pytest.mark.parametrize("wrong", WRONG_IN_A_GROUP, ids=lambda f: f.__name__)
@cases("snapkv")
def test_wrong_groups_are_noticed_where_heads_share_keys(case, wrong):
    error = worst(case, lambda layer: wrong(layer, case))
    assert error < 2e-7 if case["model"] == "llama_mha" else error > 1e-4


def anchored(keys, anchor):
    anchor = anchor / np.linalg.norm(anchor, axis=-1, keepdims=True)
    return -np.einsum("hnd,hd->hn", reference.unit_keys(keys), anchor)


@cases("keydiff")
def test_wrong_keydiff_formulas_are_noticed(case):
    def without_last_key(layer):
        return anchored(layer["keys"], reference.unit_keys(layer["keys"])[:, :-1].mean(1))

    def raw_mean(layer):
        return anchored(layer["keys"], layer["keys"].mean(1))

    def unnormalised_anchor(layer):
        units = reference.unit_keys(layer["keys"])
        return -np.einsum("hnd,hd->hn", units, units.mean(1))

    assert worst(case, lambda layer: anchored(layer["keys"], reference.unit_keys(layer["keys"]).mean(1))) < 1e-6
    for wrong in (
        without_last_key,
        raw_mean,
        unnormalised_anchor,
        lambda layer: -reference.keydiff_score(layer["keys"]),
    ):
        assert worst(case, wrong) > 1e-3


# The case worked by hand: N = 5, D = 2, W = 1.


def hand(**options):
    return reference.ecokv_score(HAND_ATTENTION, HAND_KEYS, HAND_VALUES, 1, **options)


@pytest.mark.parametrize("name", ["centroid", "dist", "unit_mean", "E", "C", "S", "Vt", "I"])
def test_hand_case_parts(name):
    np.testing.assert_allclose(hand()[name][0], HAND[name], **EXACT)


def test_hand_case_redundancies():
    for name, expected in HAND["r_euc"].items():
        found = hand(std=True)["lambda"] if name == "rms_std" else hand(redundancy_map=name)["r_euc"]
        np.testing.assert_allclose(found[0], expected, **EXACT)
    np.testing.assert_allclose(hand()["r_cos"][0], HAND["r_cos"], **EXACT)
    np.testing.assert_allclose(reference.distance_summary(HAND_KEYS)["mean"][0] / math.sqrt(2), HAND["x"], **EXACT)
    np.testing.assert_allclose(reference.distance_summary(HAND_KEYS)["rms"][0], math.sqrt(8), **EXACT)


@pytest.mark.parametrize("name", [name for name in HAND if name.startswith("final_")])
def test_hand_case_scores(name):
    _, div_scale, redundancy_map = name.split("_")
    found = hand(div_scale=div_scale, redundancy_map=redundancy_map)
    np.testing.assert_allclose(found["lambda"][0], HAND[name]["lam"], **EXACT)
    np.testing.assert_allclose(found["F"][0], HAND[name]["score"], **EXACT)


def test_hand_case_mixkv():
    found = reference.mixkv_score(HAND_ATTENTION, HAND_KEYS, HAND_VALUES, 1)
    np.testing.assert_allclose(found["r_cos"][0], HAND["mixkv"]["lam"], **EXACT)
    np.testing.assert_allclose(found["F"][0], HAND["mixkv"]["score"], **EXACT)
    same = hand(alpha=0, beta=0)
    np.testing.assert_allclose(same["F"][0], HAND["mixkv"]["score"], **EXACT)


def test_hand_case_first_two_tokens_swap():
    attention, importance = hand()["F"][0], hand(div_scale="importance", redundancy_map="minmax")["F"][0]
    assert attention[0] < attention[1]
    assert importance[0] > importance[1]


def test_wrong_hand_formulas_are_noticed():
    candidates = HAND_KEYS[:, :-1]
    assert np.abs(reference.distances(candidates)[0] - HAND["dist"][:4]).min() > 1e-2
    assert abs(reference.mean_cosine(candidates)[0] - HAND["r_cos"]) > 1e-2
    assert abs(np.sum(np.square(HAND["unit_mean"])) - HAND["r_cos"]) > 1e-2  # the pairs i = i counted in
    assert abs(hand(avg_domain="candidates")["r_euc"][0] - HAND["r_euc"]["sigmoid"]) > 1e-3
    assert abs(hand(temperature=2.0)["r_euc"][0] - HAND["r_euc"]["sigmoid"]) > 1e-3
    for options in ({"alpha": 0.2}, {"beta": 0.4}, {"std": True}, {"value_norm": False}):
        assert np.abs(hand(**options)["F"][0] - HAND["final_attention_sigmoid"]["score"]).max() > 1e-3


# The rest, against closed forms, NumPy, SciPy and small numbers.


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


def test_constant_geometry_leaves_the_importance():
    rng = np.random.default_rng(13)
    scores = rng.uniform(size=(1, 11))
    keys, values = np.tile(rng.normal(size=(1, 1, 5)), (1, 13, 1)), np.tile(rng.normal(size=(1, 1, 5)), (1, 13, 1))
    found = reference.ecokv_score(scores, keys, values, 2)
    for name in ("E", "C", "S", "Vt"):
        assert not found[name].any()
    assert found["lambda"][0] == pytest.approx(0.6 / 2 + 0.4, abs=1e-12)
    np.testing.assert_allclose(found["F"], (1 - found["lambda"][0]) * scores, **EXACT)
    np.testing.assert_allclose(reference.mixkv_score(scores, keys, values, 2)["F"], 0 * scores, **EXACT)


def test_keys_equal_but_for_rounding_count_as_equal():
    keys = np.tile([0.3, 0.7, -50.0], (1, 7, 1))
    keys[0, 2, 2] = np.nextafter(-50.0, 0)
    found = reference.ecokv_score(np.full((1, 5), 0.1), keys, keys, 2)
    assert np.ptp(found["dist"]) > 0
    for name in ("E", "C", "Vt"):
        assert not found[name].any()


def test_a_far_window_token_moves_the_means_but_not_the_minmax_domain():
    keys, values = np.array([[[3.0, 4], [0, 5], [4, 3], [-3, 4], [70, -90]]]), HAND_VALUES
    found = {
        (domain, std): reference.ecokv_score(HAND_ATTENTION, keys, values, 1, avg_domain=domain, std=std)
        for domain in ("all", "candidates")
        for std in (False, True)
    }
    for parts in found.values():
        assert [parts[name].max() for name in ("E", "C")] == [1, 1]
        assert [parts[name].min() for name in ("E", "C")] == [0, 0]
    dist = np.linalg.norm(keys[0] - keys[0].mean(0), axis=1)
    for (domain, std), parts in found.items():
        over = dist if domain == "all" else dist[:4]
        x = (math.sqrt(np.mean(over**2)) if std else np.mean(over)) / math.sqrt(2)
        found_r = parts["r_std" if std else "r_euc"][0]
        assert found_r == pytest.approx(1 / (1 + math.exp(x)), rel=1e-6, abs=1e-15)
        assert parts["lambda"][0] == pytest.approx(found_r if std else 0.6 * found_r + 0.4 * max(parts["r_cos"][0], 0))


def test_the_two_clamps_differ_only_below_zero():
    keys = np.array([[[2.0, 0.0], [-3.0, 0.0], [0.5, 0.1], [-1.0, 0.0]]])
    scores, values = np.array([[0.2, 0.3, 0.1]]), keys
    first = reference.ecokv_score(scores, keys, values, 1)
    second = reference.ecokv_score(scores, keys, values, 1, clamp="lambda")
    assert first["r_cos"][0] < 0
    assert first["lambda"][0] == pytest.approx(0.6 * first["r_euc"][0])
    assert (
        second["lambda"][0]
        == second["lambda_unclamped"][0]
        == pytest.approx(0.6 * first["r_euc"][0] + 0.4 * first["r_cos"][0])
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
