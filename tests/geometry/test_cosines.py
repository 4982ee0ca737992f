import numpy as np
import pytest
import reference
import torch
from builders import random_layer
from hypothesis import given
from hypothesis import strategies as st

from ecokv_cli.geometry import cosines
from ecokv_cli.geometry.cosines import CosineHistogram, cosine_histogram

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def all_cosines(head):
    """Every unordered pair once, in fp64."""
    units = reference.unit_keys(head[None])[0]
    return (units @ units.T)[np.triu_indices(len(head), 1)]


def check_against(histogram, head, wanted):
    assert histogram.counts[head].sum() == histogram.pairs
    edges = np.linspace(-1, 1, cosines.COARSE + 1)
    np.testing.assert_allclose(histogram.shares()[head], np.histogram(wanted, edges)[0] / len(wanted), atol=1e-12)
    found = histogram.quantiles(QUANTILES)[head].numpy()
    exact = np.quantile(wanted, QUANTILES)
    np.testing.assert_allclose(1 - found, 1 - exact, rtol=1 / 256, atol=2e-7)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("shift", [0.0, 1.0, 30.0])
@pytest.mark.parametrize(("tokens", "dim"), [(2, 3), (29, 5), (101, 7)])
def test_all_pairs_are_counted_once(tokens, dim, shift):
    keys = random_layer(tokens=tokens, dim=dim, shift=shift).keys
    histogram = cosine_histogram(keys, 10, seed=0)
    assert (histogram.pairs, histogram.exact) == (tokens * (tokens - 1) // 2, True)
    for head, rows in enumerate(keys.numpy()):
        check_against(histogram, head, all_cosines(rows))


@pytest.mark.usefixtures("_blocks")
def test_zero_vectors_have_cosine_zero_with_everything():
    keys = random_layer().keys
    keys[1, [0, 7, 28]] = 0
    histogram = cosine_histogram(keys, 10, seed=0)
    check_against(histogram, 1, all_cosines(keys[1].numpy()))
    nothing = cosine_histogram(torch.zeros(1, 7, 3), 10, seed=0)
    assert nothing.pairs == nothing.counts.sum() == 21
    assert nothing.quantiles(QUANTILES).tolist() == [[0] * len(QUANTILES)]


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("limit", [4096, 10])
def test_quantiles_among_the_pairs_of_zero_vectors_are_zero(monkeypatch, limit):
    monkeypatch.setattr(cosines, "EXACT_TOKENS", limit)
    keys = random_layer().keys
    keys[0, 3:20] = 0
    found = cosine_histogram(keys, 10**9, seed=0).quantiles(QUANTILES)[0].numpy()
    exact = np.quantile(all_cosines(keys[0].numpy()), QUANTILES)
    assert (exact == 0).sum() >= 3
    assert found[exact == 0].tolist() == [0] * (exact == 0).sum()
    assert (found[exact != 0] != 0).all()
    np.testing.assert_allclose(1 - found, 1 - exact, rtol=1 / 256)


def test_cosines_crowding_at_one_are_told_apart():
    keys = random_layer(tokens=101, dim=7, shift=30.0).keys.float()
    wanted = all_cosines(keys[0].double().numpy())
    assert 0.996 < wanted.min() < np.quantile(wanted, 0.95) < 0.9999
    found = cosine_histogram(keys, 10, seed=0).quantiles(QUANTILES[1:-1])[0]
    np.testing.assert_allclose(1 - found, 1 - np.quantile(wanted, QUANTILES[1:-1]), rtol=1 / 128)


def test_opposite_and_equal_vectors_fall_into_the_outer_bins():
    histogram = cosine_histogram(torch.tensor([[[1.0, 0], [1, 0], [-1, 0]]]), 10, seed=0)
    shares = histogram.shares()[0]
    assert shares[-1] == pytest.approx(1 / 3)
    assert shares[0] == pytest.approx(2 / 3)


def test_one_vector_has_no_pairs():
    histogram = cosine_histogram(torch.ones(2, 1, 3), 10, seed=0)
    assert (histogram.pairs, histogram.quantiles((0.5,))) == (0, None)
    assert histogram.shares().sum() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    keys = (random_layer(tokens=53).keys * 200).to(dtype)
    check_against(cosine_histogram(keys, 10, seed=0), 1, all_cosines(keys[1].double().numpy()))


class TestSample:
    @pytest.fixture(autouse=True)
    def _small_limit(self, monkeypatch):
        monkeypatch.setattr(cosines, "EXACT_TOKENS", 100)

    @pytest.mark.usefixtures("_blocks")
    def test_every_position_is_paired_with_its_next_neighbours_on_a_shuffled_circle(self):
        keys = random_layer(tokens=101, dim=7).keys
        keys[0, 5] = 0
        histogram = cosine_histogram(keys, 250, seed=3)
        assert (histogram.pairs, histogram.exact) == (303, False)
        circle = torch.randperm(101, generator=torch.Generator().manual_seed(3)).numpy()
        for head, rows in enumerate(reference.unit_keys(keys)):
            walk = rows[circle]
            wanted = np.concatenate([(walk * np.roll(walk, -step, axis=0)).sum(1) for step in (1, 2, 3)])
            check_against(histogram, head, wanted)

    def test_the_seed_chooses_the_pairs(self):
        keys = random_layer(tokens=101).keys
        counts = [cosine_histogram(keys, 150, seed).counts for seed in (3, 3, 4)]
        assert counts[0].equal(counts[1])
        assert not counts[0].equal(counts[2])

    def test_a_sample_of_everything_holds_all_pairs(self):
        keys = random_layer(tokens=101).keys
        histogram = cosine_histogram(keys, 10**9, seed=0)
        assert histogram.pairs == 101 * 100 // 2
        check_against(histogram, 0, all_cosines(keys[0].numpy()))

    def test_it_estimates_the_distribution(self):
        keys = random_layer(tokens=211, dim=3).keys
        keys[:, 100:] += 3
        found = cosine_histogram(keys, 4000, seed=1).quantiles((0.25, 0.5, 0.75))
        for head, rows in enumerate(keys.numpy()):
            np.testing.assert_allclose(found[head], np.quantile(all_cosines(rows), (0.25, 0.5, 0.75)), atol=0.03)


@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=50))
def test_quantiles_of_any_cosines(values):
    gaps = torch.tensor([(1 - v) * cosines.COARSE / 2 for v in values])
    histogram = CosineHistogram(cosines._count(gaps)[None], len(values), True, torch.zeros(1, dtype=torch.int64))
    found = histogram.quantiles((0.0, 0.3, 1.0))[0].numpy()
    np.testing.assert_allclose(1 - found, 1 - np.quantile(values, (0.0, 0.3, 1.0)), rtol=1 / 256, atol=2e-7)
