import numpy as np
import pytest
import reference
import torch
from builders import random_layer

from ecokv_cli.geometry.similarity import lengths, unit_vectors


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_measured_in_single(dtype):
    keys = (random_layer().keys * 200).to(dtype)
    np.testing.assert_allclose(lengths(keys), reference.norms(keys.double()), rtol=1e-6)
    np.testing.assert_allclose(unit_vectors(keys), reference.unit_keys(keys.double()), atol=1e-6)


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
