"""The ECOKV and MixKV scores of the reference: a case worked by hand (N = 5, D = 2, W = 1), and edges."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import reference

HAND = json.loads((Path(__file__).parent / "goldens" / "hand_ecokv.json").read_text())

# Integer keys that have the hand case's distances and cosines. Of the values only the norms matter (up to x -> ax + b).
HAND_KEYS = np.array([[[3.0, 4.0], [0.0, 5.0], [4.0, 3.0], [-3.0, 4.0], [0.0, 1.0]]])
HAND_VALUES = np.array([[[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [3.0, 4.0], [7.0, 0.0]]])
HAND_ATTENTION = np.array([[0.1, 0.2, 0.3, 0.35]])
EXACT = {"rtol": 0, "atol": 1e-12}


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


# Equal keys, far keys, redundancies below zero.


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
