"""A budget as a share of the prompt: what it comes to, and what is said where that is too little."""

import re

import numpy as np
import pytest
from builders import random_layer
from every_method import at_window, model_of
from hypothesis import given, settings
from hypothesis import strategies as st

from ecokv_cli.errors import MethodError, UsageError
from ecokv_cli.eviction.budget import in_words, tokens_of
from ecokv_cli.eviction.spec import parse_method

repeatable = settings(deadline=None, derandomize=True, database=None, max_examples=300)


@st.composite
def shares(draw):
    """A share as written in decimals, and the whole numbers over which it is one: 0.145 is 145 / 1000."""
    below = 10 ** draw(st.integers(1, 7))
    above = draw(st.integers(1, below - 1))
    return above, below


@repeatable
@given(shares(), st.integers(1, 10**6))
def test_a_share_comes_to_the_nearest_token_halves_up_and_at_least_one(share, tokens):
    above, below = share
    found = tokens_of(above / below, tokens)
    # In whole numbers: no other is nearer, and of two that are as near it is the larger.
    miss = found * below - above * tokens
    assert -below < 2 * miss <= below or (found == 1 and 2 * above * tokens < below)
    assert 1 <= found <= tokens


@pytest.mark.parametrize(
    ("share", "tokens", "size"),
    [(0.5, 3, 2), (0.5, 4, 2), (0.145, 100, 15), (0.25, 82, 21), (0.01, 7, 1), (0.99, 7, 7), (1e-9, 342, 1)],
)
def test_shares_by_hand(share, tokens, size):
    assert tokens_of(share, tokens) == size


def test_tokens_are_what_they_say_whatever_the_prompt():
    assert [tokens_of(64, n) for n in (1, 63, 10**6)] == [64] * 3
    assert isinstance(tokens_of(64, 7), int)
    assert isinstance(tokens_of(0.5, 7), int)
    assert (in_words(1024), in_words(0.25), in_words(0.125)) == (
        "1,024 tokens",
        "25 % of the prompt",
        "12.5 % of the prompt",
    )


@pytest.mark.parametrize("budget", [0, -4, 0.0, 1.0, 1.5, -0.5, 64.0, float("nan"), float("inf")])
def test_what_is_neither_tokens_nor_a_share_is_refused(budget):
    (layer,) = model_of(1)
    with pytest.raises(UsageError, match=rf"budget {budget}: "):
        parse_method("keydiff").select(layer, budget)
    assert parse_method("keydiff").select(layer, np.int64(5)).counts.tolist() == [5] * layer.kv_heads
    for odd in ("48", None, True):
        with pytest.raises(UsageError, match="give an int of tokens, or a float between 0 and 1"):
            parse_method("keydiff").select(layer, odd)


@pytest.mark.parametrize("spec", ["snapkv+ecokv", "pyramidkv", "adakv", "mmr", "streaming", "retentive", "full"])
def test_a_share_keeps_what_its_tokens_keep(spec):
    method = at_window(spec, 3)
    for layer in model_of(3):
        # 29 tokens: 17.98
        share, count = method.select(layer, 0.62), method.select(layer, 18)
        assert share.mask.equal(count.mask)
        assert (share.state, share.note) == (count.state, count.note)


def test_the_layers_of_a_route_have_the_same_share():
    route = parse_method("route[0-1=snapkv[window=3],2-=keydiff[window=2]]")
    for layer in model_of(3):
        assert route.select(layer, 0.41).counts.tolist() == [12, 12]
    with pytest.raises(MethodError, match=r"snapkv\[window=3\]: budget 0\.07, which is 2 of the prompt's 29 tokens"):
        route.require_budget(0.07, 29)


@repeatable
@given(st.integers(1, 400), st.integers(2, 40), shares())
def test_a_share_that_is_too_small_names_all_there_is_and_a_way_out_that_works(tokens, window, share):
    method, ratio = at_window("snapkv", window), share[0] / share[1]
    size = tokens_of(ratio, tokens)
    method.require_budget(ratio)  # without a prompt nobody knows
    if size >= min(window, tokens):
        method.require_budget(ratio, tokens)
        return
    with pytest.raises(MethodError) as caught:
        method.require_budget(ratio, tokens)
    said = str(caught.value)
    assert f"budget {ratio}, which is {size} of the prompt's {tokens} tokens, " in said
    assert "\n" not in said
    assert f"its window of {window} protected tokens" in said
    better = re.search(r"raise --budget-ratio to (0\.\d+) or more", said)
    if better is None:
        assert f"give --budget {window} or more in its place" in said
        assert tokens_of(0.999, tokens) < window
        return
    method.require_budget(float(better[1]), tokens)
    below = float(better[1]) - 0.001
    assert below <= 0 or tokens_of(below, tokens) < window


def test_a_share_that_cannot_hold_sinks_is_named_as_one():
    method = at_window("streaming", 3)
    with pytest.raises(
        MethodError, match=r"budget 0\.2, which is 6 of the prompt's 29 tokens, cannot hold 4 sinks"
    ) as e:
        method.require_budget(0.2, 29)
    # 6.5 of 29 tokens are rounded to 7.
    assert "raise --budget-ratio to 0.225 or more, or write streaming[sinks=3]" in str(e.value)
    method.require_budget(0.225, 29)


def test_a_share_that_cannot_hold_the_state_is_named_as_one():
    layer = random_layer(tokens=29)
    reserve = parse_method("retentive").host.reserve(layer)
    with pytest.raises(
        MethodError, match=r"budget 0\.15, which is 4 of the prompt's 29 tokens, cannot hold a window"
    ) as e:
        at_window("retentive", 3).select(layer, 0.15)
    ratio = float(re.search(r"--budget-ratio to (\S+)", str(e.value))[1])
    assert at_window("retentive", 3).select(layer, ratio).state == reserve
