import numpy as np
import pytest
import reference
import torch
from builders import random_layer
from sklearn.decomposition import PCA

from ecokv_cli.geometry.projection import principal_components
from ecokv_cli.geometry.spread import centroid_distances


def test_distances_equal_brute_force():
    keys = random_layer(shift=2.0).keys
    np.testing.assert_allclose(centroid_distances(keys), reference.distances(keys.numpy()), rtol=1e-12)


def test_a_tight_cluster_far_from_the_origin_keeps_its_shape():
    spread = random_layer(tokens=101, dim=7).keys * 1e-3
    keys = (spread + 50).float()
    exact = reference.distances(keys.double().numpy())
    np.testing.assert_allclose(centroid_distances(keys), exact, rtol=1e-4)
    expanded = (keys**2).sum(-1) - 2 * (keys @ keys.mean(1)[..., None])[..., 0] + (keys.mean(1) ** 2).sum(-1)[:, None]
    assert not np.allclose(expanded.clamp_min(0).sqrt(), exact, rtol=0.1), "the expanded form should fail here"


def test_mean_squared_distance_is_the_total_variance():
    keys = random_layer().keys
    d = centroid_distances(keys)
    np.testing.assert_allclose((d**2).mean(1), keys.var(dim=1, correction=0).sum(-1), rtol=1e-12)


def test_components_equal_scikit_learn():
    keys = random_layer(tokens=101, dim=7, shift=3.0).keys
    found = principal_components(keys)
    for head in range(2):
        fitted = PCA().fit(keys[head].numpy())
        np.testing.assert_allclose(found.ratios[head], fitted.explained_variance_ratio_, rtol=1e-9)
        plane = found.project(keys, 2)[head].numpy()
        np.testing.assert_allclose(np.abs(plane), np.abs(fitted.transform(keys[head].numpy())[:, :2]), atol=1e-9)


def test_effective_rank_and_participation_equal_the_reference():
    keys = random_layer(tokens=53, dim=7).keys * torch.tensor([5.0, 3, 1, 1, 0.5, 0.1, 0.01])
    found = principal_components(keys)
    for head in range(2):
        wanted = reference.pca(keys[head].numpy())
        assert found.effective_rank[head] == pytest.approx(wanted["effective_rank"], rel=1e-9)
        assert found.participation_ratio[head] == pytest.approx(wanted["participation_ratio"], rel=1e-9)


def test_even_directions_have_full_rank_and_one_direction_has_rank_one():
    corners = torch.cat([torch.eye(5), -torch.eye(5)])[None].double()
    assert principal_components(corners).effective_rank[0] == pytest.approx(5)
    line = torch.linspace(0, 1, 11, dtype=torch.float64)[None, :, None] * torch.ones(3, dtype=torch.float64)
    assert principal_components(line).participation_ratio[0] == pytest.approx(1)


def test_equal_keys_have_no_direction():
    found = principal_components(torch.full((1, 13, 3), 0.3))
    assert found.ratios.tolist() == [[0, 0, 0]]
    assert found.effective_rank.tolist() == found.participation_ratio.tolist() == [0]


def test_signs_do_not_flip():
    keys = random_layer(tokens=53).keys
    first = principal_components(keys).components
    again = principal_components(keys.flip(1)).components
    np.testing.assert_allclose(first, again, atol=1e-9)
    lead = first.gather(-1, first.abs().argmax(-1, keepdim=True))
    assert (lead > 0).all()
