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
    minmax,
    mix_redundancy,
    std_redundancy,
)

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
    assert std_redundancy(distances, 4)[0] == pytest.approx(expected, rel=1e-12)


def test_negative_cosine_redundancy_counts_as_none():
    mixed = mix_redundancy(torch.tensor([0.4, 0.4]), torch.tensor([-0.2, 0.5]), 0.6)
    np.testing.assert_allclose(mixed, [0.24, 0.44])


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
