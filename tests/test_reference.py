"""The reference itself against recorded numbers: kvpress 0.5.5 on tiny models."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import reference
from safetensors.torch import load_file

GOLDENS = Path(__file__).parent / "goldens"
CASES = json.loads((GOLDENS / "index.json").read_text())["cases"]


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
