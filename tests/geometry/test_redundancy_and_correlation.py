import math

import numpy as np
import pytest
import reference
import torch
from builders import random_layer
from scipy import stats

from ecokv_cli.geometry.correlation import rank_correlation
from ecokv_cli.geometry.redundancy import (
    REDUNDANCY_MAPS,
    euclidean_redundancy,
    map_redundancy,
    minmax,
    mix_redundancy,
    root_mean_square,
)
from ecokv_cli.geometry.spread import coordinate_spread

NAMES = {"inverse": "inv"}


@pytest.mark.parametrize("kind", [kind for kind in REDUNDANCY_MAPS if kind != "minmax"])
@pytest.mark.parametrize("temperature", [None, 0.7])
def test_maps_equal_the_reference(kind, temperature):
    distances = random_layer().keys.norm(dim=-1)
    found = euclidean_redundancy(distances, 5, kind, temperature)
    tau = temperature or math.sqrt(5)
    for head in range(2):
        wanted = reference.bounded_redundancy(float(distances[head].mean()), tau, NAMES.get(kind, kind))
        assert found[head] == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("kind", REDUNDANCY_MAPS)
def test_a_tighter_cluster_is_more_redundant(kind):
    tight, loose = torch.tensor([[0.0, 0.1, 0.1, 4.0]]), torch.tensor([[0.0, 3.0, 3.5, 4.0]])
    assert euclidean_redundancy(tight, 5, kind) > euclidean_redundancy(loose, 5, kind)


def test_std_variant_is_the_sigmoid_of_the_rms_distance():
    distances = torch.tensor([[3.0, 4.0]])
    expected = 1 / (1 + math.exp(math.sqrt(12.5) / 2))
    assert map_redundancy(root_mean_square(distances), 4)[0] == pytest.approx(expected, rel=1e-12)
    assert root_mean_square(distances, 1)[0] == pytest.approx(5)
    assert root_mean_square(distances[:, :1], 1)[0] == pytest.approx(3)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_spread_of_the_coordinates_equals_numpy_far_from_the_origin_too(ddof, dtype):
    vectors = (1e-3 * random_layer().keys + torch.arange(40.0, 45.0)).to(dtype)
    exact = vectors.double().numpy()
    of_each = exact.std(axis=1, ddof=ddof).mean(-1)
    np.testing.assert_allclose(coordinate_spread(vectors, "dimensions", ddof), of_each, rtol=1e-9)
    together = exact.reshape(2, -1).std(axis=1, ddof=ddof)
    np.testing.assert_allclose(coordinate_spread(vectors, "coordinates", ddof), together, rtol=1e-9)
    assert coordinate_spread(vectors[:, :1], "dimensions", ddof).tolist() == [0, 0]


def test_negative_cosine_redundancy_counts_as_none():
    mixed = mix_redundancy(torch.tensor([0.4, 0.4]), torch.tensor([-0.2, 0.5]), 0.6)
    np.testing.assert_allclose(mixed, [0.24, 0.44])
    both = torch.tensor([0.4, 0.1]), torch.tensor([-0.2, -0.5]), 0.6
    np.testing.assert_allclose(mix_redundancy(*both, "lambda"), [0.16, 0], atol=1e-7)
    np.testing.assert_allclose(mix_redundancy(*both, "none"), [0.16, -0.14], atol=1e-7)


def test_minmax_reaches_both_ends_and_turns_constants_into_zeros():
    values = torch.tensor([[3.0, 5.0, 4.0], [7.0, 7.0, 7.0], [1.0, 1.0 + 1e-7, 1.0]])
    assert minmax(values).tolist() == [[0, 1, 0.5], [0, 0, 0], [0, 0, 0]]
    assert minmax(torch.zeros(2, 0)).shape == (2, 0)


def test_rank_correlation_equals_the_reference_with_ties():
    first = torch.tensor([[1.0, 2, 2, 5, 3, 3, 0], [5, 4, 3, 2, 1, 0, -1]])
    second = torch.tensor([[2.0, 1, 4, 4, 4, 0, 1], [1, 2, 3, 4, 5, 6, 7]])
    found = rank_correlation(first, second)
    for head in range(2):
        assert found[head].rho == pytest.approx(reference.spearman(first[head], second[head]), abs=1e-12)
        assert found[head].n == 7
    assert found[1].rho == pytest.approx(-1)
    assert found[0].p > 0.05 > found[1].p


@pytest.mark.parametrize(
    ("first", "reason"), [([[1.0, 1, 1, 1]], "a score is constant"), ([[1.0, 2]], "fewer than 3 positions")]
)
def test_undefined_correlations_say_why(first, reason):
    result = rank_correlation(torch.tensor(first), torch.arange(len(first[0]), dtype=torch.float32)[None])[0]
    assert (result.rho, result.p, result.note) == (None, None, reason)


def test_p_values_equal_scipy():
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 5, 101, generator=generator).round(decimals=1)
    for found, a, b in zip(rank_correlation(first, second), first.numpy(), second.numpy(), strict=True):
        wanted = stats.spearmanr(a, b)
        assert found.rho == pytest.approx(wanted.statistic, abs=1e-12)
        assert found.p == pytest.approx(wanted.pvalue, rel=1e-9)


def test_equal_orders_correlate_perfectly():
    found = rank_correlation(torch.tensor([[1.0, 2, 3, 4]]), torch.tensor([[1.0, 8, 27, 64]]))[0]
    assert (found.rho, found.p) == (1, 0)
