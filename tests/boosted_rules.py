"""One check per booster: its scores on a small layer, with every option, against the naive reference."""

from dataclasses import replace
from functools import cache

import numpy as np
import reference
import torch
from builders import random_layer
from small_rules import BUDGET, NEAR, W, attention_of, layer_with_received, scores_of

from ecokv_cli.eviction.spec import parse_method


def boosters(seed=0):
    layer = layer_with_received(seed, shift=0.6)  # a negative mean cosine is clamped here, and not by MixKV
    layer.keys[0, 5] = 0
    keys, values = layer.keys.numpy(), layer.values.numpy()
    attention = attention_of(layer)
    for options in ({}, {"redundancy": "fixed"}, {"redundancy": "none"}, {"intrinsic": "keys"}, {"intrinsic": "none"}):
        written = "".join(f",{key}={value}" for key, value in options.items())
        wanted = reference.mixkv_score(attention, keys, values, W, **options)["F"]
        np.testing.assert_allclose(scores_of(f"snapkv+mixkv[window={W}{written}]", layer), wanted, **NEAR)
    pure = {"keydiff": reference.keydiff_booster, "manifold": reference.manifold_booster}
    for name, wanted in pure.items():
        np.testing.assert_allclose(scores_of(f"snapkv+{name}[window={W}]", layer), wanted(attention, keys, W), **NEAR)


MAPS = ("sigmoid", "sigmoid2", "exp", "inverse", "minmax", "centred")
READINGS = (
    {}, {"alpha": 0.3}, {"beta": 0.9},
    *({"normalisation": kind} for kind in ("clipped", "robust", "zscore", "rank", "softmax")),
    *({"redundancy_map": kind} for kind in MAPS),
    *({"redundancy_map": kind, "std": True} for kind in MAPS if kind != "minmax"),
    {"avg_domain": "candidates"}, {"temperature": 0.7}, {"std": True, "temperature": 0.7},
    {"value_norm": False}, {"div_scale": "importance"}, {"div_scale": "max"}, {"div_scale": "max", "alpha": 0.3},
    *(
        {"std": True, "std_of": kind, "avg_domain": domain, "ddof": ddof}
        for kind in ("distances", "coordinates", "dimensions") for domain in ("all", "candidates") for ddof in (0, 1)
    ),
    {"centroid": "candidates"}, {"centroid": "candidates", "redundancy_map": "minmax"},
    {"centroid": "candidates", "std": True}, {"norm_domain": "all"}, {"norm_domain": "all", "normalisation": "rank"},
    *(
        {"cosine": kind, "alpha": 0.3, "unit_mean": unit}
        for kind in ("negative", "half", "distance") for unit in (True, False)
    ),
    {"unit_mean": False, "normalisation": "softmax", "alpha": 0.3},
    {"scale_parts": True}, {"scale_parts": True, "div_scale": "max", "alpha": 0.3},
    {"clamp": "lambda"}, {"clamp": "none", "beta": 0.05}, {"level": "layer"}, {"level": "layer", "std": True},
)  # fmt: skip


@cache
def naive(seed, number):
    """What the reference says of one reading; computed once, for the tests that break the package on purpose."""
    layer = layer_with_received(seed, shift=0.1)
    options = {k: "inv" if v == "inverse" else v for k, v in READINGS[number].items()}
    return reference.ecokv_score(attention_of(layer), layer.keys.numpy(), layer.values.numpy(), W, **options)["F"]


def ecokv(seed=0):
    layer = layer_with_received(seed, shift=0.1)
    for number, options in enumerate(READINGS):
        written = "".join(f",{k}={str(v).lower()}" for k, v in options.items())
        found = scores_of(f"snapkv+ecokv[window={W}{written}]", layer)
        np.testing.assert_allclose(found, naive(seed, number), **NEAR)


def ecokv_keys(seed=0):
    layer = replace(layer_with_received(seed), prerope_keys=random_layer(seed + 7, shift=1.0).keys)
    wanted = reference.ecokv_score(attention_of(layer), layer.prerope_keys.numpy(), layer.values.numpy(), W)["F"]
    np.testing.assert_allclose(scores_of(f"snapkv+ecokv[window={W},rope=pre]", layer), wanted, **NEAR)
    for allocate in ("host", "boosted"):
        scores = parse_method(f"adakv+ecokv[window={W},allocate={allocate},floor=0.1]").scores(layer)
        counts = parse_method(f"adakv+ecokv[window={W},allocate={allocate},floor=0.1]").select(layer, BUDGET).counts
        shared = scores.final if allocate == "boosted" else torch.from_numpy(attention_of(layer))
        wanted = reference.ada_counts(shared.numpy(), BUDGET - W, 0.1)
        assert (counts - W).tolist() == list(wanted)
