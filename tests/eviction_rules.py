"""One check per rule: what the package computes on a small layer against the naive reference. Used by the tests of the
rules, and by those that break a formula on purpose to see that its check notices."""

from dataclasses import replace

import numpy as np
import reference
import torch
from builders import random_layer

from ecokv_cli.eviction.allocation import ada_counts, largest_remainder, pyramid_counts, sparse_counts
from ecokv_cli.eviction.fidelity import HeldOut, jaccard
from ecokv_cli.eviction.greedy import at_depth
from ecokv_cli.eviction.headscores import Target, head_hits
from ecokv_cli.eviction.selection import Selection, top_mask
from ecokv_cli.eviction.spec import parse_method

W, BUDGET = 3, 11
NEAR = {"rtol": 1e-9, "atol": 1e-12}


def layer_with_received(seed=0, shift=0.3):
    layer = random_layer(seed, shift=shift)
    generator = torch.Generator().manual_seed(seed + 1)
    queries = torch.randn(6, 29, 5, generator=generator, dtype=torch.float64)
    received = reference.received_attention(queries.numpy(), layer.keys.numpy(), layer.scaling)
    return replace(layer, received_attention=torch.from_numpy(received))


def window_rows(layer, window=W):
    """Naive attention of the window, mean over the group: [H, W, N]."""
    queries = layer.window_queries[:, -window:].numpy()
    return reference.window_attention(queries, layer.keys.numpy(), layer.scaling).reshape(2, 3, window, 29).mean(1)


def scores_of(spec, layer):
    return parse_method(spec).scores(layer).final.numpy()


def attention_of(layer, window=W, **options):
    queries = layer.window_queries[:, -window:].numpy()
    return reference.snapkv_importance(queries, layer.keys.numpy(), layer.scaling, **options)


def snapkv(seed=0):
    layer = layer_with_received(seed)
    for options in ({}, {"kernel": 1}, {"kernel": 7, "pooling": "max"}, {"gqa": "max"}):
        written = "".join(f",{key}={value}" for key, value in options.items())
        wanted = attention_of(layer, **{"kernel": 5, "pooling": "avg", "gqa": "mean", **options})
        np.testing.assert_allclose(scores_of(f"snapkv[window={W}{written}]", layer), wanted, **NEAR)


def tova(seed=0):
    layer = layer_with_received(seed)
    wanted = reference.tova_score(layer.window_queries[:, -1:].numpy(), layer.keys.numpy(), layer.scaling)
    np.testing.assert_allclose(scores_of("tova", layer), wanted[:, :-1], **NEAR)
    np.testing.assert_allclose(scores_of("tova[keep_window=0]", layer), wanted, **NEAR)
    boosted = scores_of("tova+ecokv", layer)
    np.testing.assert_array_equal(boosted[0], boosted[1])


def received(seed=0):
    layer = layer_with_received(seed)
    values = layer.received_attention.numpy()
    np.testing.assert_allclose(scores_of(f"h2o[window={W}]", layer), reference.h2o_score(values, 2)[:, :-W], **NEAR)
    np.testing.assert_allclose(scores_of("observed", layer), reference.observed_score(values, 2), **NEAR)
    largest = values.reshape(2, 3, 29).max(1)
    np.testing.assert_allclose(scores_of(f"h2o[window={W},gqa=max]", layer), largest[:, :-W], **NEAR)


def key_scores(seed=0):
    layer = layer_with_received(seed)
    keys, values = layer.keys.numpy(), layer.values.numpy()
    for spec, wanted in {
        "knorm": reference.knorm(keys), "vnorm": reference.value_norm(values),
        "keydiff": reference.keydiff_score(keys), "manifoldkv": reference.manifold_score(keys),
        "manifoldkv[block=7]": reference.manifold_score(keys, 7),
    }.items():  # fmt: skip
        np.testing.assert_allclose(scores_of(spec, layer), wanted, **NEAR)


def streaming(seed=0):
    layer = random_layer(seed)
    for sinks in (0, 4, BUDGET):
        mask = parse_method(f"streaming[sinks={sinks}]").select(layer, BUDGET).mask
        wanted = reference.streaming_keep(29, BUDGET, sinks)
        assert all(row.nonzero()[:, 0].tolist() == wanted for row in mask)


def oracle(seed=0):
    layer = random_layer(seed)
    wanted = reference.oracle_score(
        layer.decode_queries.numpy(), layer.keys.numpy(), layer.decode_keys.numpy(), layer.scaling
    )
    np.testing.assert_allclose(scores_of("oracle", layer), wanted, **NEAR)


def boosters(seed=0):
    layer = layer_with_received(seed, shift=0.6)  # a negative mean cosine is clamped here, and not by MixKV
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


def ecokv(seed=0):
    layer = layer_with_received(seed, shift=0.1)
    keys, values, attention = layer.keys.numpy(), layer.values.numpy(), attention_of(layer)
    for options in READINGS:
        written = "".join(f",{k}={str(v).lower()}" for k, v in options.items())
        naive = {k: "inv" if v == "inverse" else v for k, v in options.items()}
        wanted = reference.ecokv_score(attention, keys, values, W, **naive)["F"]
        np.testing.assert_allclose(scores_of(f"snapkv+ecokv[window={W}{written}]", layer), wanted, **NEAR)


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


def mmr(seed=0):
    layer = random_layer(seed)
    rows = window_rows(layer)[..., :-W]
    for aggregate in ("max", "mean"):
        for unit, l2 in (("mean", -0.8), ("raw", 0.02)):
            method = parse_method(f"mmr[window={W},l1=0.7,l2={l2},aggregate={aggregate},unit={unit}]")
            mask = method.select(layer, BUDGET).mask
            for head in range(2):
                order = reference.mmr_order(rows[head], BUDGET - W, 0.7, l2, aggregate=aggregate, unit=unit)
                assert mask[head].nonzero()[:, 0].tolist() == sorted([*order, 26, 27, 28])


def depth_profiles(seed=0):
    for kind, values in {"constant": (2.0,), "segments": (1.0, -2.0, 5.0), "quadratic": (1.0, -3.0, 0.5)}.items():
        for layers in (1, 2, 5, 7, 28):
            for layer in range(layers):
                wanted = reference.profile_value(values, kind, layer, layers)
                np.testing.assert_allclose(at_depth(values, kind, layer, layers), wanted, rtol=1e-12)


def retentive(seed=0):
    layer = random_layer(seed)
    budget, weight = 17, 0.3
    selection = parse_method(f"retentive[window={W},mix={weight}]").select(layer, budget)
    judged = HeldOut(layer).judge(selection)
    rows = window_rows(layer)
    for head in range(2):
        keys, values = layer.keys[head].numpy(), layer.values[head].numpy()
        found = reference.retain(rows[head], keys, values, budget, W, weight)
        assert selection.mask[head].nonzero()[:, 0].tolist() == found.kept
        np.testing.assert_allclose(selection.memory.state[head], found.state, **NEAR)
        np.testing.assert_allclose(selection.memory.normaliser[head], found.normaliser, **NEAR)
        np.testing.assert_allclose(selection.memory.share[head], found.mass, **NEAR)
        errors = []
        for group in range(3):
            for step in range(4):
                query = layer.decode_queries[3 * head + group, step].numpy()
                own_keys, own_values = layer.decode_keys[head].numpy(), layer.decode_values[head].numpy()
                seen = slice(0, step + 1)

                def over(kept, keys=keys, values=values, own_keys=own_keys, own_values=own_values, seen=seen):
                    return np.concatenate([keys[kept], own_keys[seen]]), np.concatenate(
                        [values[kept], own_values[seen]]
                    )

                left = reference.retentive_output(query, *over(found.kept), found, layer.scaling)
                nothing = replace(found, mass=0.0)
                full = reference.retentive_output(query, *over(list(range(29))), nothing, layer.scaling)
                errors.append(np.linalg.norm(full - left) / np.linalg.norm(full))
        np.testing.assert_allclose(judged.error[head], np.mean(errors), rtol=1e-8)


def remainder(seed=0):
    generator = np.random.default_rng(seed)
    for _ in range(40):
        shares = generator.choice([0.0, 0.5, 1.0, 1.0, 2.7, 9.3], size=generator.integers(1, 8))
        cap, total = int(generator.integers(0, 9)), int(generator.integers(0, 40))
        found = largest_remainder(torch.from_numpy(shares), total, cap).tolist()
        assert found == reference.largest_remainder(shares.tolist(), total, cap)


def pyramid(seed=0):
    generator = np.random.default_rng(seed)
    for _ in range(40):
        window, beta = int(generator.choice([0, 1, 4, 8])), int(generator.choice([1, 5, 20]))
        layers, tokens = int(generator.choice([1, 2, 3, 7, 28])), window + int(generator.integers(1, 90))
        budget = int(generator.integers(max(window, 1), tokens + 1))
        for compat in ("exact", "reference", "kvpress"):
            found = pyramid_counts(layers, budget, window, tokens, beta, compat).tolist()
            wanted = reference.pyramid_counts(layers, budget - window, tokens - window, beta, compat, window)
            inside = window if compat == "kvpress" else 0
            assert found == [min(max(count - inside, 0), tokens - window) for count in wanted]


def ada(seed=0):
    generator = np.random.default_rng(seed)
    for _ in range(30):
        heads, candidates = int(generator.integers(1, 6)), int(generator.integers(1, 14))
        window, floor = int(generator.choice([0, 1, 4])), float(generator.choice([0, 0.2, 0.5, 1]))
        scores = generator.choice([0.1, 0.2, 0.2, 0.7, 0.9], size=(heads, candidates)) + generator.choice([0, 1e-3])
        free = int(generator.integers(window == 0, candidates + 1))
        for compat in ("exact", "reference", "kvpress"):
            for normalise in (False, True) if compat != "kvpress" else (False,):
                # Weights that differ by rounding would break ties that the scores have.
                used = scores + generator.random(scores.shape) if normalise else scores
                found = ada_counts(torch.from_numpy(used), free + window, window, floor, normalise, compat).tolist()
                wanted = reference.ada_counts(used, free, floor, normalise=normalise, compat=compat, window=window)
                assert found == [count - (window if compat == "kvpress" else 0) for count in wanted]


def sparse(seed=0):
    generator = np.random.default_rng(seed)
    for _ in range(30):
        layers, kv_heads, group = (int(generator.integers(1, n)) for n in (6, 4, 4))
        table = generator.choice([0.0, 0.0, 0.1, 0.5, 3.0], size=(layers, kv_heads * group))
        table[0, 0] += 0.01
        candidates, window, floor = int(generator.integers(1, 40)), int(generator.choice([0, 4])), 0.1
        free = int(generator.integers(0, candidates + 1))
        for compat in ("exact", "reference"):
            found = sparse_counts(
                torch.from_numpy(table), kv_heads, free + window, window, candidates + window, floor, compat
            )
            wanted = reference.sparse_counts(table, kv_heads, free, candidates, floor, compat)
            assert found.tolist() == wanted.tolist()


def selection(seed=0):
    generator = np.random.default_rng(seed)
    for _ in range(30):
        scores = generator.choice([0.0, 0.5, 1.0, 2.0], size=(3, 13))
        counts = generator.integers(0, 14, size=3)
        mask = top_mask(torch.from_numpy(scores), torch.from_numpy(counts))
        for head in range(3):
            wanted = reference.select(scores[head : head + 1], int(counts[head]))[0].tolist()
            assert mask[head].nonzero()[:, 0].tolist() == wanted


def fidelity(seed=0):
    layer = random_layer(seed)
    chosen = parse_method(f"snapkv[window={W}]").select(layer, BUDGET)
    positions, _ = chosen.indices()
    wanted = reference.fidelity(
        layer.decode_queries.numpy(), layer.keys.numpy(), layer.values.numpy(), layer.decode_keys.numpy(),
        layer.decode_values.numpy(), kept=positions.tolist(), scaling=layer.scaling,
    )  # fmt: skip
    found = HeldOut(layer).judge(chosen)
    for name, value in {"mass": found.mass, "output_error": found.error, "output_cosine": found.cosine}.items():
        np.testing.assert_allclose(value, wanted[name], **NEAR)
    other = parse_method("keydiff[window=5]").select(layer, BUDGET)
    for head, share in enumerate(jaccard(chosen, other).tolist()):
        sets = [set(m.mask[head, :24].nonzero()[:, 0].tolist()) for m in (chosen, other)]
        assert share == reference.jaccard(*sets)
    assert jaccard(Selection(chosen.mask, 29), other).tolist() == [1, 1]


def visual_heads(seed=0):
    layer = random_layer(seed)
    boxes = [("60 total", (2, 3, 7)), ("17", (1, 9, 11, 13, 5)), ("1", (0,))]
    tokens = ["60", " total ", "7", "1", ""]
    queries, answer = layer.window_queries.numpy(), layer.decode_queries.numpy()
    # Keys of right places are made attractive to some queries, so that there are hits; one loses to a decoded key.
    keys = layer.keys.clone()
    keys[:, 3], keys[:, 9] = 4 * layer.window_queries[::3, -1], 4 * layer.decode_queries[::3, 1]
    own = layer.decode_keys.clone()
    own[0, 1] = 8 * layer.decode_queries[0, 1]
    layer = replace(layer, keys=keys, decode_keys=own)
    wanted = reference.sample_head_scores(
        [queries], [keys.numpy()], [answer], [layer.decode_keys.numpy()], tokens, boxes
    )
    targets = [Target(step, tuple(where)) for step, where in ((0, boxes[0][1]), (1, boxes[0][1]), (2, boxes[1][1]))]
    assert wanted.any()
    np.testing.assert_allclose(head_hits(layer, targets), wanted[0], rtol=1e-12)


CHECKS = {
    check.__name__: check
    for check in (
        snapkv, tova, received, key_scores, streaming, oracle, boosters, ecokv, ecokv_keys, mmr, depth_profiles,
        retentive, remainder, pyramid, ada, sparse, selection, fidelity, visual_heads,
    )
}  # fmt: skip
