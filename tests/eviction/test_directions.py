import numpy as np
import pytest
import reference
import torch
from builders import random_layer
from hypothesis import given
from hypothesis import strategies as st

from ecokv_cli.eviction import directions
from ecokv_cli.eviction.directions import directions_of


@pytest.fixture(params=[4096, 13])
def _blocks(request, monkeypatch):
    """Keys in one block and in several, the last one shorter."""
    monkeypatch.setattr(directions, "_BLOCK", request.param)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("shift", [0.0, 3.0, 100.0])
@pytest.mark.parametrize(("tokens", "dim"), [(2, 3), (29, 5), (101, 7)])
def test_mean_cosine_equals_brute_force_over_all_pairs(tokens, dim, shift):
    keys = random_layer(tokens=tokens, dim=dim, shift=shift).keys
    np.testing.assert_allclose(directions_of(keys).mean_cosine, reference.mean_cosine(keys.numpy()), rtol=1e-10)


@pytest.mark.usefixtures("_blocks")
def test_zero_keys_count_with_cosine_zero():
    keys = random_layer().keys
    keys[1, [0, 7, 28]] = 0
    found = directions_of(keys)
    np.testing.assert_allclose(found.mean_cosine, reference.mean_cosine(keys.numpy()), rtol=1e-10)
    assert found.zero.tolist() == [0, 3]


def test_one_key_has_no_pairs_and_identical_keys_are_fully_redundant():
    assert directions_of(torch.randn(2, 1, 5, dtype=torch.float64)).mean_cosine.tolist() == [0, 0]
    assert directions_of(torch.full((1, 13, 5), 0.3)).mean_cosine[0] == pytest.approx(1, abs=1e-6)


def test_opposite_keys_have_no_mean_direction():
    found = directions_of(torch.tensor([[[1.0, 0, 0], [-1, 0, 0]]]))
    assert found.mean_cosine.tolist() == [-1]
    assert found.cosines.tolist() == [[0, 0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_scored_in_single(dtype):
    keys = (random_layer().keys * 200).to(dtype)
    np.testing.assert_allclose(directions_of(keys).mean_cosine, reference.mean_cosine(keys.double()), atol=1e-6)


@given(st.integers(0, 10_000), st.floats(0.01, 100))
def test_cosine_ignores_the_length_of_each_key(seed, scale):
    keys = random_layer(seed, tokens=7).keys
    factors = torch.linspace(0.1, scale, 7, dtype=torch.float64)[:, None]
    before, after = directions_of(keys).mean_cosine, directions_of(keys * factors).mean_cosine
    np.testing.assert_allclose(before, after, atol=1e-12)
