"""From scores to kept positions, and how well those answer."""

from dataclasses import replace

import pytest
import reference
import torch
from builders import random_layer
from every_method import UNIFORM, at_window, model_of
from hypothesis import given
from hypothesis import strategies as st

from ecokv_cli.errors import DumpError, MethodError, NonFiniteError, UsageError
from ecokv_cli.eviction.fidelity import HeldOut, jaccard
from ecokv_cli.eviction.selection import Selection, top_mask
from ecokv_cli.eviction.spec import parse_method

scores = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0]), min_size=1, max_size=23)


@given(st.tuples(scores, scores).map(lambda rows: [row[: min(map(len, rows))] for row in rows]), st.data())
def test_top_mask_is_the_stable_order(rows, data):
    values = torch.tensor(rows)
    counts = [data.draw(st.integers(0, values.shape[1])) for _ in rows]
    mask = top_mask(values, torch.tensor(counts))
    for head, count in enumerate(counts):
        order = sorted(range(values.shape[1]), key=lambda j: (-values[head, j].item(), j))
        assert mask[head].nonzero()[:, 0].tolist() == sorted(order[:count])


def test_ties_go_to_the_lower_position():
    assert top_mask(torch.ones(1, 10), torch.tensor([3])).nonzero()[:, 1].tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["keydiff", "snapkv", "snapkv+mixkv", "snapkv+ecokv"])
def test_kept_positions_equal_the_naive_reference(name):
    layer, window = random_layer(shift=0.2), 3
    method = parse_method(name).with_window(0 if name == "keydiff" else window)
    queries = layer.window_queries[:, -window:].numpy()
    wanted = reference.keep(name, queries, layer.keys.numpy(), layer.values.numpy(), layer.scaling, budget=11)
    positions, valid = method.select(layer, 11).indices()
    assert valid.all()
    assert positions.tolist() == [list(row) for row in wanted]


def test_random_differs_between_heads_layers_and_seeds_only():
    layer = random_layer()
    method = parse_method("random[window=3]")
    mask = method.select(layer, 11).mask
    assert torch.equal(mask, parse_method("random[window=3,seed=0]").select(layer, 11).mask)
    assert not torch.equal(mask[0], mask[1])
    assert not torch.equal(mask, method.select(replace(layer, index=4), 11).mask)
    assert not torch.equal(mask, parse_method("random[window=3,seed=1]").select(layer, 11).mask)


def test_non_finite_scores_are_refused_by_layer_and_head():
    layer = random_layer()
    keys = layer.keys.clone()
    keys[1, 4, 2] = torch.nan
    with pytest.raises(NonFiniteError, match=r"keydiff: layer 3, KV head 1: .* scores"):
        parse_method("keydiff").select(replace(layer, keys=keys), 7)


def test_a_window_larger_than_the_dump_holds_is_refused_with_the_way_out():
    with pytest.raises(MethodError, match=r"needs the last 13 queries and the dump holds 11.*--window 13"):
        parse_method("snapkv[window=13]").select(random_layer(), 20)


def test_fidelity_equals_the_naive_reference():
    layer = random_layer()
    selection = parse_method("snapkv[window=3]").select(layer, 11)
    positions, _ = selection.indices()
    wanted = reference.fidelity(
        layer.decode_queries.numpy(), layer.keys.numpy(), layer.values.numpy(), layer.decode_keys.numpy(),
        layer.decode_values.numpy(), kept=positions.tolist(), scaling=layer.scaling,
    )  # fmt: skip
    found = HeldOut(layer).judge(selection)
    for name, value in {"mass": found.mass, "output_error": found.error, "output_cosine": found.cosine}.items():
        torch.testing.assert_close(value, torch.from_numpy(wanted[name]), rtol=1e-10, atol=1e-12)


def test_fidelity_of_ragged_heads_equals_that_of_each_head_alone():
    layer = random_layer()
    mask = torch.zeros(2, 29, dtype=torch.bool)
    mask[0, [1, 4, 28]] = True
    mask[1, [0, 2, 3, 5, 7, 11, 28]] = True
    both = HeldOut(layer).judge(Selection(mask, 1))
    for head in range(2):
        alone = HeldOut(layer).judge(Selection(mask[head].expand(2, -1), 1))
        assert both.error[head] == pytest.approx(float(alone.error[head]), rel=1e-12)
        assert both.mass[head] == pytest.approx(float(alone.mass[head]), rel=1e-12)


def test_the_full_cache_is_perfect_and_no_method_keeps_more_mass_than_the_oracle():
    (layer,) = model_of(1)
    held_out = HeldOut(layer)
    full = held_out.judge(parse_method("full").select(layer, 1))
    torch.testing.assert_close(full.mass, torch.ones(2, dtype=torch.float64))
    assert (full.error < 1e-12).all()
    best = held_out.judge(parse_method("oracle").select(layer, 11)).mass
    for name in UNIFORM:
        kept = held_out.judge(at_window(name, 3).select(layer, 11)).mass
        assert (kept <= best + 1e-12).all()


def test_overlap_leaves_the_windows_out():
    a, b = torch.zeros(1, 11, dtype=torch.bool), torch.zeros(1, 11, dtype=torch.bool)
    a[0, [0, 1, 2, 9, 10]] = True
    b[0, [2, 3, 8, 9, 10]] = True
    assert jaccard(Selection(a, 2), Selection(b, 3)).tolist() == [0.25]
    assert jaccard(Selection(a, 11), Selection(b, 3)).tolist() == [1]
    assert reference.jaccard({0, 1, 2}, {2, 3}) == 0.25


def test_a_dump_without_decoded_tokens_cannot_judge():
    layer = random_layer(steps=0)
    with pytest.raises(DumpError, match="--ignore-eos"):
        HeldOut(layer)


def test_what_is_left_is_judged_even_when_it_had_no_share_of_the_full_attention():
    layer = random_layer(dtype=torch.float32)
    keys = layer.keys.clone()
    keys[:, 5] = 1e4 * layer.decode_queries[:1].mean(1)  # takes all attention of some queries: the rest underflows
    layer = replace(layer, keys=keys)
    mask = torch.ones(2, 29, dtype=torch.bool)
    mask[:, 5] = False
    found = HeldOut(layer).judge(Selection(mask, 1))
    assert (found.mass < 1).all()
    gone = replace(
        layer, keys=torch.cat([keys[:, :5], keys[:, 6:]], 1), values=layer.values[:, [*range(5), *range(6, 29)]]
    )
    output = HeldOut(gone).output
    full = HeldOut(layer).output
    torch.testing.assert_close(
        found.error, ((full - output).norm(dim=-1) / full.norm(dim=-1)).mean(1), rtol=1e-5, atol=0
    )


def test_a_selection_of_another_sample_is_refused():
    mine, other = random_layer(), random_layer()
    other = replace(other, keys=other.keys[:, :23], values=other.values[:, :23])
    foreign = parse_method("knorm").select(other, 11)
    with pytest.raises(UsageError, match="2 KV heads and 23 tokens does not belong to 2 KV heads and 29 tokens"):
        HeldOut(mine).judge(foreign)
    with pytest.raises(UsageError, match="does not belong"):
        jaccard(foreign, parse_method("knorm").select(mine, 11))
