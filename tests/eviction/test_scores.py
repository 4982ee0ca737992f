"""Importance, diversity and boosters against an independent naive reference and hand numbers."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
from builders import random_layer

from ecokv_cli.errors import DumpError, MethodError
from ecokv_cli.eviction.boosters import EcoKV, MixKV
from ecokv_cli.eviction.importance import oracle_score, snapkv_importance
from ecokv_cli.eviction.keyscores import keydiff_score, value_norms
from ecokv_cli.eviction.layer import Layer
from ecokv_cli.eviction.method import Scores
from ecokv_cli.eviction.spec import parse_method

GOLDENS = Path(__file__).parents[1] / "goldens"
HAND = json.loads((GOLDENS / "hand_ecokv.json").read_text())
MAPS = {"sigmoid": "sigmoid", "sigmoid2": "sigmoid2", "exp": "exp", "inverse": "inv", "minmax": "minmax"}


def arrays(layer):
    return layer.window_queries.numpy(), layer.keys.numpy(), layer.values.numpy()


@pytest.mark.parametrize("window", [1, 3, 11])
@pytest.mark.parametrize(("kernel", "pooling", "gqa"), [(5, "avg", "mean"), (1, "avg", "mean"), (3, "max", "max")])
def test_snapkv_equals_the_naive_reference(window, kernel, pooling, gqa):
    layer = random_layer()
    candidates = layer.tokens - window
    found = snapkv_importance(layer, window=window, candidates=candidates, kernel=kernel, pooling=pooling, gqa=gqa)
    queries = layer.window_queries[:, -window:].numpy()
    wanted = reference.snapkv_importance(
        queries, layer.keys.numpy(), layer.scaling, kernel=kernel, pooling=pooling, gqa=gqa
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_window_that_observes_and_window_that_is_kept_are_separate():
    layer = random_layer()
    wide = snapkv_importance(layer, window=11, candidates=layer.tokens - 2, kernel=1)
    attention = reference.window_attention(layer.window_queries.numpy(), layer.keys.numpy(), layer.scaling)
    np.testing.assert_allclose(wide, attention.mean(1).reshape(2, 3, -1).mean(1)[:, :-2], rtol=1e-12)


def test_keydiff_and_value_norm_equal_the_naive_reference():
    layer = random_layer(shift=0.5)
    np.testing.assert_allclose(keydiff_score(layer, 29), reference.keydiff_score(layer.keys.numpy()), rtol=1e-10)
    np.testing.assert_allclose(value_norms(layer, 29), reference.value_norm(layer.values.numpy()), rtol=1e-12)


def test_oracle_equals_the_naive_reference():
    layer = random_layer()
    wanted = reference.oracle_score(
        layer.decode_queries.numpy(), layer.keys.numpy(), layer.decode_keys.numpy(), layer.scaling
    )
    np.testing.assert_allclose(oracle_score(layer, 29), wanted, rtol=1e-12)


@pytest.mark.parametrize("shift", [0.3, 2.0])
def test_mixkv_equals_the_naive_reference(shift):
    layer, window = random_layer(shift=shift), 3
    attention = snapkv_importance(layer, window=window, candidates=layer.tokens - window)
    wanted = reference.mixkv_score(attention.numpy(), layer.keys.numpy(), layer.values.numpy(), window)
    found = MixKV().mix(attention, layer)
    np.testing.assert_allclose(found.weight, wanted["r_cos"], rtol=1e-12)
    np.testing.assert_allclose(found.score, wanted["F"], rtol=1e-10)


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("options", [
    {}, {"alpha": 0.3, "beta": 0.9}, {"avg_domain": "candidates"}, {"div_scale": "importance"}, {"value_norm": False},
    {"temperature": 0.4}, {"alpha": 0.0}, {"alpha": 1.0}, {"beta": 1.0},
])  # fmt: skip
def test_ecokv_equals_the_naive_reference(kind, options):
    layer, window = random_layer(shift=0.3), 3
    attention = snapkv_importance(layer, window=window, candidates=layer.tokens - window)
    found = EcoKV(redundancy_map=kind, **options).mix(attention, layer)
    wanted = reference.ecokv_score(
        attention.numpy(), layer.keys.numpy(), layer.values.numpy(), window, redundancy_map=MAPS[kind], **options
    )
    np.testing.assert_allclose(found.diversity, wanted["S"], rtol=1e-10)
    np.testing.assert_allclose(found.weight, wanted["lambda"], rtol=1e-10)
    np.testing.assert_allclose(found.score, wanted["F"], rtol=1e-10)


def test_std_variant_equals_the_naive_reference():
    layer, window = random_layer(shift=0.3), 3
    attention = snapkv_importance(layer, window=window, candidates=layer.tokens - window)
    found = EcoKV(std=True).mix(attention, layer)
    wanted = reference.ecokv_score(attention.numpy(), layer.keys.numpy(), layer.values.numpy(), window, std=True)
    np.testing.assert_allclose(found.weight, wanted["lambda"], rtol=1e-10)
    np.testing.assert_allclose(found.score, wanted["F"], rtol=1e-10)


def hand_layer():
    keys = torch.tensor([[[3.0, 4], [0, 5], [4, 3], [-3, 4], [0, 1]]], dtype=torch.float64)
    values = torch.tensor([1.0, 2, 3, 5, 9], dtype=torch.float64)[None, :, None]
    query = torch.zeros(1, 1, 2, dtype=torch.float64)
    return Layer(0, 1, keys, values, query, 1.0, query, keys[:, :1], values[:, :1])


HAND_ATTENTION = torch.tensor([[0.1, 0.2, 0.3, 0.35]], dtype=torch.float64)


def test_hand_numbers_of_the_parts():
    layer = hand_layer()
    np.testing.assert_allclose(layer.key_distances[0], HAND["dist"], atol=1e-12)
    boosted = EcoKV().mix(HAND_ATTENTION, layer)
    np.testing.assert_allclose(boosted.diversity[0], HAND["S"], atol=1e-12)
    np.testing.assert_allclose(boosted.importance[0], HAND["I"], atol=1e-12)
    np.testing.assert_allclose(MixKV().weight(layer)[0], HAND["r_cos"], atol=1e-12)
    for kind, name in MAPS.items():
        np.testing.assert_allclose(EcoKV(redundancy_map=kind).r_euc(layer, 4)[0], HAND["r_euc"][name], atol=1e-12)
    np.testing.assert_allclose(EcoKV(std=True).weight(layer, 4)[0], HAND["r_euc"]["rms_std"], atol=1e-12)


@pytest.mark.parametrize("target", ["attention", "importance"])
@pytest.mark.parametrize("kind", ["sigmoid", "sigmoid2", "minmax"])
def test_hand_numbers_of_every_reading(target, kind):
    wanted = HAND[f"final_{target}_{kind}"]
    found = EcoKV(redundancy_map=kind, div_scale=target).mix(HAND_ATTENTION, hand_layer())
    np.testing.assert_allclose(found.weight[0], wanted["lam"], atol=1e-12)
    np.testing.assert_allclose(found.score[0], wanted["score"], atol=1e-12)


def test_hand_numbers_of_mixkv_which_ecokv_equals_at_alpha_and_beta_zero():
    layer = hand_layer()
    for booster in (MixKV(), EcoKV(alpha=0, beta=0)):
        found = booster.mix(HAND_ATTENTION, layer)
        np.testing.assert_allclose(found.weight[0], HAND["mixkv"]["lam"], atol=1e-12)
        np.testing.assert_allclose(found.score[0], HAND["mixkv"]["score"], atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_ecokv_at_alpha_and_beta_zero_is_mixkv_with_online_redundancy(seed):
    layer = random_layer(seed, shift=0.4)
    eco = parse_method("snapkv+ecokv[window=3,alpha=0,beta=0]")
    mix = parse_method("snapkv+mixkv[window=3]")
    np.testing.assert_allclose(eco.scores(layer).final, mix.scores(layer).final, rtol=1e-12)
    assert torch.equal(eco.select(layer, 11).mask, mix.select(layer, 11).mask)


def test_lambda_one_is_pure_diversity_and_lambda_zero_pure_importance():
    layer = random_layer()
    twin = replace(
        layer, keys=layer.keys[:, :1].expand(-1, 29, -1) * torch.linspace(1, 2, 29, dtype=torch.float64)[:, None]
    )
    pure = parse_method("snapkv+ecokv[window=3,beta=0]").boost(twin)
    np.testing.assert_allclose(pure.weight, [1, 1], atol=1e-12)
    factor = pure.score.mean(1, keepdim=True) / pure.diversity.mean(1, keepdim=True)
    np.testing.assert_allclose(pure.score, factor * pure.diversity, atol=1e-12)
    spread = replace(layer, keys=layer.keys * 1e6)
    none = parse_method("snapkv+ecokv[window=3,beta=1]").boost(spread)
    np.testing.assert_allclose(none.score, none.importance, rtol=1e-9)


def test_constant_value_norms_and_keys_give_finite_scores():
    layer = random_layer()
    flat = replace(layer, values=torch.ones_like(layer.values), keys=torch.ones_like(layer.keys))
    for spec in ("snapkv+mixkv[window=3]", "snapkv+ecokv[window=3]"):
        boosted = parse_method(spec).boost(flat)
        assert torch.isfinite(boosted.score).all()
        assert (boosted.diversity == 0).all()


def test_a_stretched_centroid_direction_tells_euclid_from_cosine():
    layer = random_layer(shift=3.0)
    keys = layer.keys.clone()
    keys[:, 5] = 10 * keys.mean(1)
    layer = replace(layer, keys=keys)
    assert (layer.key_distances.argmax(1) == 5).all()
    assert (keydiff_score(layer, 29).argmin(1) == 5).all()


def test_negative_scores_are_not_normalised_to_shares():
    layer = random_layer(shift=0.0)
    method = parse_method("adakv+ecokv[window=3,allocate=boosted,cosine=negative,alpha=0,beta=0,normalise=true]")
    ones = torch.ones(2, 26, dtype=torch.float64)
    with pytest.raises(MethodError, match=r"adakv: normalise=true .* some of these are negative; leave it out"):
        method.select(layer, 11, Scores(-ones, -ones))


def test_the_geometry_of_keys_before_rotary_embedding_needs_them():
    with pytest.raises(DumpError, match=r"ecokv\[rope=pre\] needs prerope keys, .* dump again with --prerope-keys"):
        parse_method("snapkv+ecokv[window=3,rope=pre]").select(random_layer(), 11)
