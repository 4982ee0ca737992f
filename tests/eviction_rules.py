"""One check per rule: what the package computes on a small layer against the naive reference. Used by the tests of the
rules, and by those that break a formula on purpose to see that its check notices."""

from dataclasses import replace
from functools import cache

import numpy as np
import reference
import torch
from boosted_rules import boosters, ecokv, ecokv_keys
from builders import random_layer
from small_rules import BUDGET, NEAR, W, attention_of, layer_with_received, scores_of, window_rows

from ecokv_cli.eviction.allocation import ada_counts, largest_remainder, pyramid_counts, sparse_counts
from ecokv_cli.eviction.fidelity import HeldOut, jaccard
from ecokv_cli.eviction.greedy import at_depth
from ecokv_cli.eviction.headscores import Target, head_hits
from ecokv_cli.eviction.selection import Selection, top_mask
from ecokv_cli.eviction.spec import parse_method


def snapkv(seed=0):
    layer = layer_with_received(seed)
    for options in ({}, {"kernel": 1}, {"kernel": 7, "pooling": "max"}, {"gqa": "max"}, {"gqa": "sum"}):
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
    for gqa, merged in {"max": values.reshape(2, 3, 29).max(1), "sum": values.reshape(2, 3, 29).sum(1)}.items():
        np.testing.assert_allclose(scores_of(f"h2o[window={W},gqa={gqa}]", layer), merged[:, :-W], **NEAR)


def key_scores(seed=0):
    layer = layer_with_received(seed)
    keys, values = layer.keys.numpy(), layer.values.numpy()
    for spec, wanted in {
        "knorm": reference.knorm(keys), "vnorm": reference.value_norm(values),
        "keydiff": reference.keydiff_score(keys), "manifoldkv": reference.manifold_score(keys),
        "manifoldkv[block=7]": reference.manifold_score(keys, 7),
    }.items():  # fmt: skip
        np.testing.assert_allclose(scores_of(spec, layer), wanted, **NEAR)


def random(seed=0):
    layer, draws = random_layer(seed), 331
    masks = [parse_method(f"random[window={W},seed={seed + i}]").select(layer, BUDGET).mask for i in range(draws)]
    other = parse_method(f"random[window={W},seed={seed}]").select(replace(layer, index=1), BUDGET).mask
    assert not torch.equal(masks[0], other)
    assert not torch.equal(masks[0][0], masks[0][1])
    kept, chance = torch.stack(masks).double().mean(0), (BUDGET - W) / (29 - W)
    assert (kept[:, -W:] == 1).all()
    # Each share is that of independent draws: six standard errors around chance.
    assert ((kept[:, :-W] - chance).abs() < 6 * (chance * (1 - chance) / draws) ** 0.5).all()


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


MMR = (
    *({"aggregate": how, "unit": unit} for how in ("max", "mean") for unit in ("mean", "range", "raw")),
    *({"start": "window", "aggregate": how} for how in ("max", "mean")),
    *({"corr": "keys", "start": start} for start in ("empty", "window")),
    {"corr": "keys", "aggregate": "mean"}, {"sigma": "heads"}, {"kernel": 5},
)  # fmt: skip
LIKENESS = {"raw": 0.02, "range": -0.8, "mean": -0.8}


@cache
def greedy(seed, number, head):
    """The naive choice; computed once, for the tests that break the package on purpose."""
    layer, options = random_layer(seed), MMR[number]
    queries, keys = layer.window_queries[:, -W:].numpy(), layer.keys.numpy()
    members = reference.window_attention(queries, keys, layer.scaling).reshape(2, 3, W, 29)[head]
    n = 29 if options.get("start") == "window" else 26
    unit = options.get("unit", "mean")
    order = reference.mmr_order(
        members.mean(0)[:, :n], BUDGET - W, 0.7, LIKENESS[unit], started=n - 26,
        aggregate=options.get("aggregate", "max"), unit=unit, keys=keys[head, :n] if "corr" in options else None,
        members=members if "sigma" in options else None, kernel=options.get("kernel", 1),
    )  # fmt: skip
    return sorted([*order, 26, 27, 28])


def mmr(seed=0):
    layer = random_layer(seed)
    for number, options in enumerate(MMR):
        written = "".join(f",{key}={value}" for key, value in options.items())
        l2 = LIKENESS[options.get("unit", "mean")]
        mask = parse_method(f"mmr[window={W},l1=0.7,l2={l2}{written}]").select(layer, BUDGET).mask
        assert [row.nonzero()[:, 0].tolist() for row in mask] == [greedy(seed, number, head) for head in range(2)]


def depth_profiles(seed=0):
    for kind, values in {"constant": (2.0,), "segments": (1.0, -2.0, 5.0), "quadratic": (1.0, -3.0, 0.5)}.items():
        for layers in (1, 2, 5, 7, 28):
            for layer in range(layers):
                wanted = reference.profile_value(values, kind, layer, layers)
                np.testing.assert_allclose(at_depth(values, kind, layer, layers), wanted, rtol=1e-12)


def retentive(seed=0):
    for entropy in ("received", "given"):
        for order in ("position", "retention"):
            retained(random_layer(seed), entropy, order)


def retained(layer, entropy, order):
    """One reading of the memory: what is kept, the state, and the error of the output."""
    budget, weight = 17, 0.3
    method = parse_method(f"retentive[window={W},mix={weight},entropy={entropy},order={order}]")
    selection = method.select(layer, budget)
    judged = HeldOut(layer).judge(selection)
    rows = window_rows(layer)
    for head in range(2):
        keys, values = layer.keys[head].numpy(), layer.values[head].numpy()
        found = reference.retain(rows[head], keys, values, budget, W, weight, entropies=entropy, order=order)
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
        for compat in ("exact", "reference", "kvcache_factory", "kvpress"):
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
        snapkv, tova, received, key_scores, random, streaming, oracle, boosters, ecokv, ecokv_keys, mmr, depth_profiles,
        retentive, remainder, pyramid, ada, sparse, selection, fidelity, visual_heads,
    )
}  # fmt: skip
