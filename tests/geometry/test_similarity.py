import numpy as np
import pytest
import reference
import torch
from builders import random_layer
from hypothesis import given
from hypothesis import strategies as st

from ecokv_cli.geometry.similarity import lengths, mean_cosine, unit_vectors


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("shift", [0.0, 3.0, 100.0])
@pytest.mark.parametrize(("tokens", "dim"), [(2, 3), (29, 5), (101, 7)])
def test_mean_cosine_equals_brute_force_over_all_pairs(tokens, dim, shift):
    keys = random_layer(tokens=tokens, dim=dim, shift=shift).keys
    np.testing.assert_allclose(mean_cosine(unit_vectors(keys)), reference.mean_cosine(keys.numpy()), rtol=1e-12)


@pytest.mark.usefixtures("_blocks")
def test_zero_keys_count_with_cosine_zero():
    keys = random_layer().keys
    keys[1, [0, 7, 28]] = 0
    np.testing.assert_allclose(mean_cosine(unit_vectors(keys)), reference.mean_cosine(keys.numpy()), rtol=1e-12)


def test_one_key_has_no_pairs_and_identical_keys_are_fully_redundant():
    assert mean_cosine(unit_vectors(torch.randn(2, 1, 5, dtype=torch.float64))).tolist() == [0, 0]
    assert mean_cosine(unit_vectors(torch.full((1, 13, 5), 0.3)))[0] == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_analysed_in_single(dtype):
    keys = (random_layer().keys * 200).to(dtype)
    np.testing.assert_allclose(mean_cosine(unit_vectors(keys)), reference.mean_cosine(keys.double()), atol=1e-6)
    np.testing.assert_allclose(lengths(keys), reference.norms(keys.double()), rtol=1e-6)


@pytest.mark.parametrize("scale", [1e25, 1e-30])
def test_huge_and_tiny_keys_keep_their_lengths_and_directions(scale):
    keys = random_layer(dtype=torch.float32).keys
    np.testing.assert_allclose(unit_vectors(keys * scale), unit_vectors(keys), rtol=1e-5)
    np.testing.assert_allclose(lengths(keys * scale) / scale, lengths(keys), rtol=1e-5)


def test_one_tiny_key_among_others_is_no_zero_key():
    keys = random_layer(dtype=torch.float32).keys
    expected = unit_vectors(keys)
    keys[0, 3] *= 1e-30
    np.testing.assert_allclose(unit_vectors(keys), expected, rtol=1e-5)
    assert unit_vectors(torch.zeros(1, 2, 3)).tolist() == [[[0, 0, 0], [0, 0, 0]]]


@given(st.integers(0, 10_000), st.floats(0.01, 100))
def test_cosine_ignores_the_length_of_each_key(seed, scale):
    keys = random_layer(seed, tokens=7).keys
    factors = torch.linspace(0.1, scale, 7, dtype=torch.float64)[:, None]
    before, after = mean_cosine(unit_vectors(keys)), mean_cosine(unit_vectors(keys * factors))
    np.testing.assert_allclose(before, after, atol=1e-12)
