import numpy as np
import pytest
import reference
import torch
from builders import random_layer
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import cosine_similarity

from ecokv_cli.geometry.similarity import cosine_moments, sample_cosines, unit_vectors


def off_diagonal(keys):
    cosines = cosine_similarity(keys)
    return cosines[~np.eye(len(keys), dtype=bool)]


@pytest.mark.parametrize("shift", [0.0, 3.0, 100.0])
@pytest.mark.parametrize(("tokens", "dim"), [(2, 3), (29, 5), (101, 7)])
def test_moments_equal_brute_force_over_all_pairs(tokens, dim, shift):
    keys = random_layer(tokens=tokens, dim=dim, shift=shift).keys
    moments = cosine_moments(unit_vectors(keys))
    np.testing.assert_allclose(moments.mean, reference.mean_cosine(keys.numpy()), rtol=1e-12)
    np.testing.assert_allclose(moments.std, reference.std_cosine(keys.numpy()), rtol=1e-7, atol=3e-8)
    for head in range(len(keys)):
        assert moments.mean[head] == pytest.approx(off_diagonal(keys[head]).mean(), abs=1e-12)


def test_moments_in_single_precision_survive_cosines_close_to_one():
    keys = random_layer(tokens=97, dim=13, shift=500.0, dtype=torch.float32).keys
    moments = cosine_moments(unit_vectors(keys))
    exact = keys.double().numpy()
    np.testing.assert_allclose(moments.std, reference.std_cosine(exact), rtol=2e-2)
    np.testing.assert_allclose(1 - moments.mean, 1 - reference.mean_cosine(exact), rtol=2e-2, atol=2e-7)


def test_zero_keys_count_with_cosine_zero():
    keys = random_layer().keys
    keys[1, [0, 7, 28]] = 0
    moments = cosine_moments(unit_vectors(keys))
    assert moments.zero_keys.tolist() == [0, 3]
    assert moments.mean[1] == pytest.approx(off_diagonal(keys[1]).mean(), abs=1e-12)
    assert moments.std[1] == pytest.approx(off_diagonal(keys[1]).std(), abs=1e-12)


def test_one_key_has_no_pairs_and_identical_keys_are_fully_redundant():
    one = cosine_moments(unit_vectors(torch.randn(2, 1, 5, dtype=torch.float64)))
    assert one.mean.tolist() == one.std.tolist() == [0, 0]
    same = cosine_moments(unit_vectors(torch.ones(1, 13, 5)))
    assert same.mean[0] == pytest.approx(1, abs=1e-6)
    assert same.std[0] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_analysed_in_single(dtype):
    keys = (random_layer().keys * 200).to(dtype)
    moments = cosine_moments(unit_vectors(keys))
    np.testing.assert_allclose(moments.mean, reference.mean_cosine(keys.double().numpy()), atol=1e-6)


def test_huge_keys_do_not_overflow():
    keys = random_layer(dtype=torch.float32).keys
    np.testing.assert_allclose(unit_vectors(keys * 1e25), unit_vectors(keys), rtol=1e-5)
    assert torch.isfinite(unit_vectors(keys * 1e-30)).all()


def test_all_pairs_are_used_where_there_are_few():
    keys = random_layer().keys
    sampled = sample_cosines(unit_vectors(keys), 1000, seed=0)
    assert sampled.shape == (2, 29 * 28 // 2)
    expected = cosine_similarity(keys[1])[np.triu_indices(29, 1)]
    np.testing.assert_allclose(np.sort(sampled[1]), np.sort(expected), atol=1e-12)


def test_sample_is_seeded_never_pairs_a_key_with_itself_and_estimates_the_mean():
    units = unit_vectors(random_layer(tokens=211, dim=5).keys)
    sampled = sample_cosines(units, 5000, seed=3)
    assert sampled.shape == (2, 5000)
    assert torch.equal(sampled, sample_cosines(units, 5000, seed=3))
    assert not torch.equal(sampled, sample_cosines(units, 5000, seed=4))
    assert (sampled < 1 - 1e-9).all()
    standard_error = sampled.std(dim=1) / 5000**0.5
    assert ((sampled.mean(1) - cosine_moments(units).mean).abs() < 5 * standard_error).all()


@given(st.integers(0, 10_000), st.floats(0.01, 100))
def test_cosine_ignores_the_length_of_each_key(seed, scale):
    keys = random_layer(seed, tokens=7).keys
    lengths = torch.linspace(0.1, scale, 7, dtype=torch.float64)[:, None]
    before, after = cosine_moments(unit_vectors(keys)), cosine_moments(unit_vectors(keys * lengths))
    np.testing.assert_allclose(before.mean, after.mean, atol=1e-12)
