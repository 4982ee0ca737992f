"""What a budget buys: the same rules for every host, booster and option."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import reference
import torch
from builders import random_layer
from every_method import BOOSTED, EVERY, OPTIONS, PLAIN, UNIFORM, at_window, model_of, protected
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_dumps import memory_dump

from ecokv_cli.errors import DumpError, MethodError
from ecokv_cli.eviction.boosters import BOOSTERS
from ecokv_cli.eviction.hosts import HOSTS
from ecokv_cli.eviction.method import Scores
from ecokv_cli.eviction.spec import parse_method
from ecokv_cli.studies.evict import EvictSettings, evict

GROUPS = [1, 4, 7, 8]
repeatable = settings(deadline=None, derandomize=True, database=None)
PUBLISHED = ["pyramidkv", "adakv", "sparsemm"]
ROUNDINGS = [
    *((host, "reference") for host in PUBLISHED),
    *((host, rule) for host in PUBLISHED[:2] for rule in ("kvcache_factory", "kvpress")),
]


@st.composite
def models(draw, evicting=False):
    """Layers of a model of any shape, a window and a budget; if `evicting`, the budget holds the window but not all."""
    shape = {"kv_heads": draw(st.integers(1, 3)), "group": draw(st.sampled_from(GROUPS))}
    layers, tokens = draw(st.integers(1, 7)), draw(st.integers(1 + evicting, 23))
    window = draw(st.integers(1, min(11, tokens - 1) if evicting else 11))
    budget = draw(st.integers(window, tokens - 1) if evicting else st.integers(1, 29))
    return model_of(layers, tokens=tokens, seed=draw(st.integers(0, 99)), **shape), window, budget


def kept(method, model, budget):
    """Selections of all layers."""
    return [method.select(layer, budget) for layer in model]


@settings(repeatable, max_examples=300)
@given(st.sampled_from(EVERY), models())
def test_the_total_is_the_budget_to_the_token(spec, drawn):
    model, window, budget = drawn
    method = at_window(spec, window)
    heads, tokens = model[0].kv_heads, model[0].tokens
    # What holds the whole prompt keeps it, though it may be less than the window.
    if budget < min(tokens, protected(method, model[0])):
        with pytest.raises(MethodError, match=r"budget \d+ (is smaller than|cannot hold) .*raise --budget to"):
            method.select(model[0], budget)
        return
    found = kept(method, model, budget)
    paid = [int(selection.counts.sum()) + heads * selection.state for selection in found]
    assert sum(paid) == len(model) * heads * min(budget, tokens)
    if not method.host.moves_layers:
        assert paid == [heads * min(budget, tokens)] * len(model)
    for selection in found:
        assert selection.mask.shape == (heads, tokens)
        assert selection.mask[:, max(tokens - window, 0) :].all()
        assert selection.exact is None
        if spec in UNIFORM:
            assert selection.counts.tolist() == [min(budget, tokens) - selection.state] * heads


@settings(repeatable, max_examples=60)
@given(st.sampled_from(ROUNDINGS), st.booleans(), models(evicting=True))
def test_published_rounding_stays_within_the_prompt_and_names_the_exact_counts(rounding, boosted, drawn):
    model, window, budget = drawn
    host, compat = rounding
    written = f"{host}[compat={compat}]{'+ecokv' * boosted}"
    for layer in model:
        published = at_window(written, window).select(layer, budget)
        exact = at_window(written.replace(compat, "exact"), window).select(layer, budget)
        assert published.mask[:, layer.tokens - window :].all()
        named = published.counts if published.exact is None else published.exact
        assert named.tolist() == exact.counts.tolist()


# One rule for each edge, the same for all methods.


@pytest.mark.parametrize("spec", [*EVERY, "full"])
@pytest.mark.parametrize("budget", [29, 30, 1000])
def test_a_budget_of_n_or_more_keeps_everything_and_says_so(spec, budget):
    for selection in kept(at_window(spec, 3), model_of(2), budget):
        assert selection.mask.all()
        assert (selection.state, selection.memory) == (0, None)
        assert bool(selection.note) == (spec != "full")


@pytest.mark.parametrize("spec", EVERY)
def test_a_budget_of_what_is_protected_keeps_nothing_else(spec):
    model, method = model_of(3), at_window(spec, 5)
    for selection in kept(method, model, protected(method, model[0])):
        assert selection.mask[:, 24:].all()
        sinks = getattr(method.host, "sinks", 0)
        assert selection.mask[:, :24].sum(1).tolist() == [sinks] * 2
        assert selection.mask[:, :sinks].all()


@pytest.mark.parametrize("spec", EVERY)
def test_a_budget_below_what_is_protected_is_refused_with_the_one_that_would_do(spec):
    (layer,), method = model_of(1), at_window(spec, 5)
    least = protected(method, layer)
    with pytest.raises(MethodError, match=rf"budget {least - 1} .*raise --budget to {least} or more"):
        method.select(layer, least - 1)
    with pytest.raises(MethodError, match="budget 4 is smaller than its window of 5 protected tokens"):
        method.select(layer, 4)


@pytest.mark.parametrize("spec", EVERY)
@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_a_prompt_no_longer_than_the_window_is_kept_whole(spec, tokens):
    """N <= W; with N = W no candidate is left (M = 0)."""
    method = at_window(spec, 7)
    model = model_of(2, tokens=tokens)
    for layer, selection in zip(model, kept(method, model, 11), strict=True):
        assert selection.mask.all()
        assert selection.window == tokens
        # Scores exist all the same: a study asks for them before it knows the budgets.
        assert method.scores(layer, 11).final.shape == (2, 1)


@pytest.mark.parametrize("spec", EVERY)
def test_a_prompt_one_longer_than_the_window_has_one_candidate(spec):
    model, method = model_of(3, tokens=8), at_window(spec, 7)
    if protected(method, model[0]) == 7:
        for selection in kept(method, model, 7):
            assert selection.mask.tolist() == [[False, *[True] * 7]] * 2
    for selection in kept(method, model, 11):
        assert selection.mask.all()


@pytest.mark.parametrize("spec", EVERY)
def test_a_single_layer_spends_its_own_budget(spec):
    (selection,) = kept(at_window(spec, 3), model_of(1), 13)
    assert int(selection.counts.sum()) + 2 * selection.state == 2 * 13


@pytest.mark.parametrize("spec", EVERY)
@pytest.mark.parametrize(("kv_heads", "group"), [*((1, g) for g in GROUPS), *((3, g) for g in GROUPS)])
def test_every_grouping_of_heads(spec, kv_heads, group):
    found = kept(at_window(spec, 3), model_of(2, kv_heads=kv_heads, group=group), 13)
    assert sum(int(s.counts.sum()) + kv_heads * s.state for s in found) == 2 * kv_heads * 13


# Properties.


@settings(repeatable, max_examples=150)
@given(st.sampled_from(UNIFORM), st.integers(7, 28), st.integers(7, 28), st.integers(0, 99))
def test_a_larger_budget_keeps_all_of_a_smaller_one(spec, first, second, seed):
    method = at_window(spec, 3)
    for layer in model_of(2, seed=seed):
        small, large = (method.select(layer, budget).mask for budget in sorted((first, second)))
        assert not (small & ~large).any()


@settings(repeatable, max_examples=150)
@given(st.sampled_from(EVERY), st.integers(7, 28), st.integers(7, 28), st.integers(0, 99))
def test_scores_made_for_a_larger_budget_serve_a_smaller_one(spec, first, second, seed):
    method, (small, large) = at_window(spec, 3), sorted((first, second))
    for layer in model_of(2, seed=seed):
        shared = method.select(layer, small, method.scores(layer, large))
        assert torch.equal(shared.mask, method.select(layer, small).mask)


def without_positions():
    """Methods that do not ask where a candidate stands: pooling off, and no sinks, blocks, draws or means by age."""
    pooled = [spec for spec in [*PLAIN, *BOOSTED] if HOSTS[spec.partition("+")[0]]().scores_attention]
    hosts = {"snapkv", "pyramidkv", "adakv", "sparsemm"}
    for spec in pooled:
        host, plus, booster = spec.partition("+")
        if host != "observed":
            yield f"{host}[kernel=1]{plus}{booster}" if host in hosts else spec
    yield from ("knorm", "vnorm", "keydiff", "manifoldkv", "oracle", "mmr", "mmr[aggregate=mean]", "retentive")
    yield from ("adakv[kernel=1,normalise=true]", "adakv[base=manifoldkv]", "snapkv[kernel=1,gqa=max]", "h2o[gqa=max]")


@settings(repeatable, max_examples=150)
@given(st.sampled_from(list(without_positions())), st.permutations(range(26)), st.integers(0, 9))
def test_permuting_candidates_permutes_what_is_kept(spec, order, seed):
    method, layer = at_window(spec, 3), model_of(3, seed=seed)[1]
    shuffled = [*order, 26, 27, 28]
    moved = replace(
        layer, keys=layer.keys[:, shuffled], values=layer.values[:, shuffled],
        received_attention=layer.received_attention[:, shuffled],
    )  # fmt: skip
    assert torch.equal(method.select(moved, 11).mask, method.select(layer, 11).mask[:, shuffled])


SHIFTABLE = [
    spec for spec in [*PLAIN, *BOOSTED, *OPTIONS]
    if HOSTS[spec.partition("+")[0].partition("[")[0]]().scores_attention and "normalise" not in spec
]  # fmt: skip


@settings(repeatable, max_examples=150)
@given(st.sampled_from(SHIFTABLE), st.floats(-3, 3), st.integers(7, 28), st.integers(0, 99))
def test_a_constant_added_to_all_scores_changes_nothing(spec, shift, budget, seed):
    method, layer = at_window(spec, 3), model_of(2, seed=seed)[1]
    scored = method.scores(layer)
    moved = Scores(scored.host + shift, scored.final + shift)
    assert torch.equal(method.select(layer, budget, scored).mask, method.select(layer, budget, moved).mask)


@settings(repeatable, max_examples=60)
@given(st.sampled_from(list(BOOSTERS)), st.integers(0, 99))
def test_lambda_one_keeps_by_diversity_and_lambda_zero_by_importance(booster, seed):
    layer = model_of(2, seed=seed)[1]
    parts = at_window(f"snapkv+{booster}", 3).boost(layer)
    ones = torch.ones(2, dtype=torch.float64)
    assert torch.equal(replace(parts, weight=0 * ones).score, parts.importance)
    full = replace(parts, weight=ones)
    assert np.array_equal(reference.select(full.score.numpy(), 11), reference.select(parts.diversity.numpy(), 11))
    assert (parts.weight >= 0).all()
    assert (parts.weight <= 1).all()
    if booster in ("keydiff", "manifold"):
        assert parts.weight.tolist() == [1, 1]


# The ledger.


def ledger_of(specs, *, layers=5, budgets=(11, 13), head_scores=None):
    dump = memory_dump(layers=layers)
    methods = tuple(at_window(spec, 3) for spec in specs)
    chosen = EvictSettings(methods, budgets, tuple(range(layers)), (0, 1), (0, 0), head_scores)
    return evict([dump], chosen).ledger, dump


def test_the_ledger_shows_what_published_rounding_spends_and_what_was_asked_for():
    table = torch.tensor(np.random.default_rng(7).random((5, 6)) ** 5)
    specs = [f"{host}[compat={compat}]" for host in PUBLISHED for compat in ("exact", "reference")]
    ledger, dump = ledger_of(specs, budgets=(12, 17), head_scores=table)
    differ = set()
    for host, budget in itertools.product(PUBLISHED, (12, 17)):
        rows = [ledger.where(method=at_window(s, 3).name, budget=budget) for s in specs if s.startswith(host)]
        exact, published = rows
        assert exact.numbers("kept") == exact.numbers("exact") == published.numbers("exact")
        assert sum(exact.numbers("kept")) == 5 * 2 * budget
        free = budget - 3
        if host == "pyramidkv":
            counts = [c for c in reference.pyramid_counts(5, free, 26, 20, "reference", 3) for _ in range(2)]
        elif host == "sparsemm":
            counts = reference.sparse_counts(table.numpy(), 2, free, 26, 0.1, "reference").flatten().tolist()
        else:
            attention = [reference.snapkv_importance(
                layer.window_queries[:, -3:].numpy(), layer.keys.numpy(), layer.scaling, kernel=5, pooling="avg",
                gqa="mean",
            ) for layer in dump.made]  # fmt: skip
            counts = [c for scores in attention for c in reference.ada_counts(scores, free, 0.2, compat="reference")]
        assert published.numbers("free_kept") == counts
        assert published.numbers("kept") == [count + 3 for count in counts]
        if sum(published.numbers("kept")) != sum(published.numbers("exact")):
            differ.add(host)
    assert differ == set(PUBLISHED)


@pytest.mark.parametrize("spec", [s for s in [*PLAIN, *OPTIONS] if not s.startswith(("h2o", "observed"))])
def test_the_ledger_of_every_method_adds_up(spec):
    table = torch.tensor(np.random.default_rng(3).random((3, 6)))
    ledger, _ = ledger_of([spec], layers=3, budgets=(11, 29), head_scores=table)
    for budget in (11, 29):
        rows = ledger.where(budget=budget)
        assert sum(row["kept"] + row["state"] for row in rows) == 3 * 2 * budget
        for row in rows:
            assert row["kept"] == row["window_kept"] + row["free_kept"]
            assert (row["nominal"], row["tokens"], row["exact"]) == (budget, 29, row["kept"])
            assert bool(row["note"]) == (budget == 29 or row["state"] > 0)


def test_a_method_without_what_it_needs_says_how_to_get_it():
    layer = random_layer()
    for spec, way in {
        "h2o": "h2o needs received attention, .*--received-attention",
        "observed+ecokv": "observed needs received attention, .*--received-attention",
        "sparsemm": r"sparsemm needs head scores, \[layers, query heads\] \[5, 6\] of this very model, and no table "
        "was given; .*ecokv headscores RUN.*--head-scores FILE",
    }.items():
        with pytest.raises(DumpError, match=way):
            at_window(spec, 3).select(layer, 11)
    other = replace(layer, head_scores=torch.ones(6, 5))
    with pytest.raises(
        DumpError, match=r"heads\] \[5, 6\] of .*, and the table given is \[6, 5\]; .*ecokv headscores RUN"
    ):
        at_window("sparsemm", 3).select(other, 11)
    with pytest.raises(DumpError, match=r"no decode queries.*--ignore-eos"):
        parse_method("oracle").select(random_layer(steps=0), 11)
