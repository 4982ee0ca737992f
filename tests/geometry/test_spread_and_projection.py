import numpy as np
import pytest
import reference
import torch
from builders import random_layer
from sklearn.decomposition import PCA

from ecokv_cli.geometry.cloud import survey
from ecokv_cli.geometry.projection import participation_ratio, principal_components, spectrum
from ecokv_cli.geometry.spread import centroid_distances


def fit(vectors):
    cloud = survey(vectors)
    return principal_components(cloud.centroid, cloud.covariance, vectors)


@pytest.mark.usefixtures("_blocks")
def test_distances_equal_brute_force():
    keys = random_layer(shift=2.0).keys
    np.testing.assert_allclose(centroid_distances(keys), reference.distances(keys.numpy()), rtol=1e-12)


@pytest.mark.usefixtures("_blocks")
def test_a_tight_cluster_far_from_the_origin_keeps_its_shape():
    spread = random_layer(tokens=101, dim=7).keys * 1e-3
    keys = (spread + 50).float()
    exact = reference.distances(keys.double().numpy())
    np.testing.assert_allclose(centroid_distances(keys), exact, rtol=1e-4)
    expanded = (keys**2).sum(-1) - 2 * (keys @ keys.mean(1)[..., None])[..., 0] + (keys.mean(1) ** 2).sum(-1)[:, None]
    assert not np.allclose(expanded.clamp_min(0).sqrt(), exact, rtol=0.1), "the expanded form should fail here"


def test_one_key_and_equal_keys_are_their_own_centroid():
    assert centroid_distances(torch.full((2, 13, 3), 0.3)).abs().max() == 0
    assert centroid_distances(torch.full((2, 1, 3), 0.3)).tolist() == [[0], [0]]


def test_mean_squared_distance_is_the_total_variance():
    keys = random_layer().keys
    d = centroid_distances(keys)
    np.testing.assert_allclose((d**2).mean(1), keys.var(dim=1, correction=0).sum(-1), rtol=1e-12)
    np.testing.assert_allclose(survey(keys).covariance.diagonal(dim1=1, dim2=2).sum(1), (d**2).mean(1), rtol=1e-12)


def test_components_equal_scikit_learn():
    keys = random_layer(tokens=101, dim=7, shift=3.0).keys
    found = fit(keys)
    for head in range(2):
        fitted = PCA().fit(keys[head].numpy())
        np.testing.assert_allclose(found.ratios[head], fitted.explained_variance_ratio_, rtol=1e-9)
        plane = found.project(keys, 2)[head].numpy()
        np.testing.assert_allclose(np.abs(plane), np.abs(fitted.transform(keys[head].numpy())[:, :2]), atol=1e-9)


def test_some_positions_are_projected_on_the_axes_of_all():
    keys = random_layer(tokens=53, dim=7).keys
    found = fit(keys)
    np.testing.assert_allclose(found.project(keys[:, 10:20], 2), found.project(keys, 2)[:, 10:20], atol=1e-12)


def test_a_tight_cluster_far_from_the_origin_is_projected_round_its_centroid():
    keys = (random_layer(tokens=101, dim=7).keys * 1e-3 + 50).float()
    plane = fit(keys).project(keys, 7)
    assert plane.mean(1).abs().max() < 1e-8
    np.testing.assert_allclose(plane.norm(dim=-1), reference.distances(keys.double().numpy()), rtol=1e-4)


def test_ranks_equal_the_reference():
    keys = random_layer(tokens=53, dim=7).keys * torch.tensor([5.0, 3, 1, 1, 0.5, 0.1, 0.01])
    covariance = survey(keys).covariance
    found = spectrum(covariance)
    np.testing.assert_allclose(found.ratios, fit(keys).ratios, rtol=1e-9)
    for head in range(2):
        wanted = reference.pca(keys[head].numpy())
        assert found.effective_rank[head] == pytest.approx(wanted["effective_rank"], rel=1e-9)
        assert found.participation_ratio[head] == pytest.approx(wanted["participation_ratio"], rel=1e-9)
        assert participation_ratio(covariance)[head] == pytest.approx(wanted["participation_ratio"], rel=1e-9)


def test_even_directions_have_full_rank_and_one_direction_has_rank_one():
    corners = torch.cat([torch.eye(5), -torch.eye(5)])[None].double()
    assert fit(corners).effective_rank[0] == pytest.approx(5)
    line = torch.linspace(0, 1, 11, dtype=torch.float64)[None, :, None] * torch.ones(3, dtype=torch.float64)
    assert fit(line).participation_ratio[0] == pytest.approx(1)


def test_equal_keys_have_no_direction():
    found = fit(torch.full((1, 13, 3), 0.3))
    assert found.ratios.tolist() == [[0, 0, 0]]
    assert found.effective_rank.tolist() == found.participation_ratio.tolist() == [0]
    assert participation_ratio(torch.zeros(1, 3, 3)).tolist() == [0]


def test_components_point_to_the_long_tail_of_their_scores():
    keys = random_layer(tokens=101, dim=7).keys.exp()
    found, backwards = fit(keys), fit(keys.flip(1))
    for head, scores in enumerate(found.project(keys, 7).numpy()):
        skewness = reference.skewness(scores)
        skewed = np.abs(skewness) > 0.03
        assert skewed.sum() > 3
        assert (skewness[skewed] > 0).all()
        np.testing.assert_allclose(backwards.components[head][skewed], found.components[head][skewed], atol=1e-9)


def even_cloud():
    """Every vector with its mirror image, so that no score is skewed; late positions lie along (1, -1, 0, ...)."""
    half = random_layer(tokens=53, dim=5).keys * torch.tensor([5.0, 3, 1, 0.5, 0.1])
    half = half.sort(dim=1).values.abs() * torch.tensor([1.0, -1, 1, 1, 1])
    half[..., 1] = -half[..., 0]
    return torch.cat([-half.flip(1), half], dim=1)


def test_components_of_an_even_cloud_point_to_late_positions():
    keys = even_cloud()
    score = fit(keys).project(keys, 1)[..., 0]
    np.testing.assert_allclose(score.pow(3).sum(1), 0, atol=1e-6)
    assert (score[:, 53:].sum(1) > 0).all()
    backwards = keys.flip(1)
    assert (fit(backwards).project(backwards, 1)[:, 53:, 0].sum(1) > 0).all()


def test_without_skewness_and_trend_the_largest_entry_is_positive():
    corners = torch.tensor([[3.0, -5], [-3, 5], [-3, 5], [3, -5]]).double()[None]
    found = fit(corners)
    assert found.components[0, 0].tolist() == pytest.approx([-3 / 34**0.5, 5 / 34**0.5])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cloud", ["skewed", "even", "ring"])
def test_rounding_turns_no_component(cloud, dtype):
    generator = torch.Generator().manual_seed(5)
    if cloud == "skewed":
        # Both of the first components have two entries of the same size.
        tall = torch.randn(31, 211, 2, generator=generator).exp() * torch.tensor([3.0, 1.5])
        keys = tall @ torch.tensor([[1.0, -1, 0, 0, 0], [0, 0, 1, -1, 0]]) / 2**0.5
    elif cloud == "even":
        keys = even_cloud().float()
    else:
        angle = torch.linspace(0, 5.5, 211) + torch.rand(31, 1, generator=generator)
        keys = torch.stack([3 * angle.cos(), -3 * angle.cos(), angle.sin(), -angle.sin(), 0 * angle], dim=-1)
    keys = keys + 0.05 * torch.randn(keys.shape, generator=generator) + 2
    exact, rounded = fit(keys).components[:, :1], fit(keys.to(dtype)).components[:, :1]
    np.testing.assert_array_less(0.9, (exact * rounded).sum(-1))


def test_eigenvalues_leave_the_number_of_threads_alone():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        fit(random_layer().keys)
        with pytest.raises(RuntimeError):
            spectrum(torch.zeros(2, 3, 5))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
