import numpy as np
import pytest
import reference
import torch
from builders import random_layer

from ecokv_cli.geometry.cloud import survey
from ecokv_cli.geometry.groups import deviations, group_statistics, means
from ecokv_cli.geometry.sinks import find_sinks, mean_cosine_without, without

MEMBERS = torch.zeros(4, 29, dtype=torch.bool)
MEMBERS[0, :11] = MEMBERS[1, 11:28] = MEMBERS[2, 28:] = MEMBERS[3] = True
"""Eleven, seventeen, one and all of 29 positions."""


def keys_with_zeros():
    keys = random_layer(shift=0.4).keys
    keys[1, [0, 7, 20]] = 0
    return keys


def test_group_statistics_equal_brute_force():
    keys = keys_with_zeros()
    found = group_statistics(survey(keys), keys, MEMBERS)
    units = reference.unit_keys(keys.numpy())
    for head in range(2):
        cosines = units[head] @ units[head].T
        squares = reference.distances(keys.numpy())[head] ** 2
        for group, inside in enumerate(MEMBERS.numpy()):
            pairs = cosines[inside][:, inside][~np.eye(inside.sum(), dtype=bool)]
            across = cosines[inside][:, ~inside]
            within = found.cosine_within[head, group], pairs
            rest = found.cosine_rest[head, group], across
            for value, entries in (within, rest):
                assert value.isnan() if entries.size == 0 else value == pytest.approx(entries.mean(), abs=1e-12)
            assert found.variance_share[head, group] == pytest.approx(squares[inside].sum() / squares.sum())


def test_shares_of_equal_vectors_are_undefined():
    keys = torch.full((1, 29, 3), 0.3)
    assert group_statistics(survey(keys), keys, MEMBERS).variance_share.isnan().all()


def test_means_and_deviations_of_groups():
    values = random_layer().keys[..., 0] + 1000
    for head in range(2):
        for group, inside in enumerate(MEMBERS):
            some = values[head, inside].numpy()
            assert means(values, MEMBERS)[head, group] == pytest.approx(some.mean(), rel=1e-12)
            assert deviations(values, MEMBERS)[head, group] == pytest.approx(some.std(), rel=1e-9)
    assert means(values, torch.zeros(1, 29, dtype=torch.bool)).isnan().all()


@pytest.mark.parametrize("shift", [0.0, 30.0])
@pytest.mark.parametrize("positions", [[], [0], [0, 7, 28], list(range(27))])
def test_statistics_without_some_positions_are_those_of_the_rest(positions, shift):
    keys = keys_with_zeros() + shift
    kept = [i for i in range(29) if i not in positions]
    cloud, rest = survey(keys), survey(keys[:, kept])
    at = torch.tensor(positions, dtype=torch.long)
    found = without(cloud, keys, at)
    np.testing.assert_allclose(found.cosine_mean, rest.cosine_mean, atol=1e-12)
    np.testing.assert_allclose(mean_cosine_without(cloud, keys, at), rest.cosine_mean, atol=1e-12)
    np.testing.assert_allclose(found.distance_mean, rest.distances.mean(1), rtol=1e-12)
    ratios = [reference.pca(head[kept].numpy())["participation_ratio"] for head in keys]
    np.testing.assert_allclose(found.participation_ratio, ratios, rtol=1e-9)


def test_one_huge_vector_hides_the_others_until_it_is_left_out():
    keys = random_layer(tokens=101, dim=7, dtype=torch.float32).keys
    plain = without(survey(keys), keys, torch.tensor([0]))
    keys[:, 0] = 1000
    cloud = survey(keys)
    trimmed = without(cloud, keys, torch.tensor([0]))
    np.testing.assert_allclose(trimmed.distance_mean, plain.distance_mean, rtol=1e-5)
    np.testing.assert_allclose(trimmed.participation_ratio, plain.participation_ratio, rtol=1e-2)
    everything = without(cloud, keys, torch.tensor([], dtype=torch.long))
    assert (everything.participation_ratio < 1.01).all()


def test_nothing_is_left_to_compare():
    keys = random_layer().keys
    most = torch.arange(28)
    found = without(survey(keys), keys, most)
    assert found.cosine_mean.isnan().all()
    assert found.distance_mean.isnan().all()
    assert mean_cosine_without(survey(keys), keys, most).tolist() == [0, 0]


def test_sinks_draw_ten_times_the_even_share_in_most_heads():
    attention = torch.full((3, 97), 0.5 / 101)
    attention[:2, 0] = 10.1 / 101
    attention[:, 5] = 9.9 / 101
    attention[0, 7] = 0.5
    found = find_sinks(attention, torch.ones(3, 101))
    assert found.positions.tolist() == [0]
    assert found.attention_heads.tolist() == pytest.approx([2 / 3])
    assert found.norm_heads.tolist() == [0]
    assert found.reasons() == ["attention"]


def test_sinks_stick_out_by_their_norm_and_two_typical_norms_do_not():
    attention = torch.zeros(2, 97)
    norms = torch.cat([torch.full((2, 80), 10.0), torch.full((2, 21), 3.0)], dim=1).double()
    assert len(find_sinks(attention, norms).positions) == 0
    norms[:, 3], norms[:, 50], norms[0, 60], norms[:, 70] = 20.1, 1.49, 100, 19.9
    attention[:, 3] = 0.9
    found = find_sinks(attention, norms)
    assert found.positions.tolist() == [3, 50]
    assert found.norm_heads.tolist() == [1, 1]
    assert found.reasons() == ["attention+norm", "norm"]


def test_a_single_position_is_no_sink():
    assert len(find_sinks(torch.ones(1, 1), torch.ones(1, 1)).positions) == 0
