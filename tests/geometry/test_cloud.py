import numpy as np
import pytest
import reference
import torch
from builders import random_layer

from ecokv_cli.geometry.cloud import survey

pytestmark = pytest.mark.usefixtures("_blocks")


def brute_force(head):
    """Every statistic of one head's vectors [N, D], from its definition."""
    units, centre = reference.unit_keys(head[None])[0], head.mean(0)
    cosines = reference.pairwise_cosines(head) or [0.0]
    return {
        "lengths": np.linalg.norm(head, axis=1),
        "distances": np.linalg.norm(head - centre, axis=1),
        "alignment": units @ units.mean(0),
        "centroid": centre,
        "direction": units.mean(0),
        "covariance": np.cov(head.T, bias=True),
        "cosine_mean": np.mean(cosines),
        "cosine_std": np.std(cosines),
        "zero": (head == 0).all(1).sum(),
    }


def check(vectors, *, rtol=1e-10, atol=1e-12):
    cloud = survey(vectors)
    for i, head in enumerate(vectors.double().numpy()):
        for name, value in brute_force(head).items():
            # A standard deviation of 0 is known to the root of the precision only.
            if name == "cosine_std":
                np.testing.assert_allclose(cloud.cosine_std[i], value, rtol=1e3 * rtol, atol=max(3e-8, atol))
                continue
            np.testing.assert_allclose(getattr(cloud, name)[i], value, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("shift", [0.0, 3.0])
@pytest.mark.parametrize(("tokens", "dim"), [(2, 3), (29, 5), (101, 7)])
def test_everything_equals_brute_force(tokens, dim, shift):
    check(random_layer(tokens=tokens, dim=dim, shift=shift).keys)


def test_values_have_a_dimension_of_their_own():
    check(random_layer(dim=5, value_dim=7).values)


def test_zero_vectors():
    keys = random_layer().keys
    keys[1, [0, 7, 28]] = 0
    check(keys)
    check(torch.zeros(1, 7, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_lower_precision(dtype):
    check(random_layer(tokens=101, dim=7, shift=1.0).keys.to(dtype), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("outlier", [None, 0, 50])
def test_a_tight_cluster_far_from_the_origin_keeps_its_shape(outlier):
    keys = (random_layer(tokens=101, dim=7).keys * 1e-3 + 50).float()
    if outlier is not None:
        keys[:, outlier] = 50.7
    check(keys, rtol=1e-4, atol=1e-9)


def test_cosines_close_to_one_keep_their_differences():
    keys = random_layer(tokens=97, dim=13, shift=500.0, dtype=torch.float32).keys
    cloud, exact = survey(keys), keys.double().numpy()
    np.testing.assert_allclose(cloud.cosine_std, reference.std_cosine(exact), rtol=1e-3)
    np.testing.assert_allclose(1 - cloud.cosine_mean, 1 - reference.mean_cosine(exact), rtol=1e-3)


def test_equal_vectors_have_no_spread():
    cloud = survey(torch.full((2, 13, 3), 0.3))
    assert cloud.distances.abs().max() == cloud.covariance.abs().max() == 0
    np.testing.assert_allclose(cloud.cosine_mean, 1, atol=1e-9)
    np.testing.assert_allclose(cloud.cosine_std, 0, atol=1e-7)


def test_one_vector():
    vector = torch.tensor([[[3.0, 4.0]]])
    cloud = survey(vector)
    assert cloud.lengths.tolist() == [[5]]
    assert cloud.distances.tolist() == [[0]]
    assert cloud.cosine_mean.tolist() == cloud.cosine_std.tolist() == [0]
    assert cloud.covariance.abs().max() == 0
    np.testing.assert_allclose(cloud.alignment, 1, rtol=1e-6)


def test_two_vectors_have_one_cosine():
    cloud = survey(random_layer(tokens=2, dim=7, dtype=torch.float32).keys)
    assert cloud.cosine_std.tolist() == [0, 0]


def test_huge_vectors_do_not_overflow():
    keys = random_layer(dtype=torch.float32, shift=1.0).keys
    huge, plain = survey(keys * 1e25), survey(keys)
    np.testing.assert_allclose(huge.distances / 1e25, plain.distances, rtol=1e-5)
    np.testing.assert_allclose(huge.cosine_std, plain.cosine_std, rtol=1e-5)
    assert torch.isfinite(huge.covariance).all()


def test_one_dimension():
    check(random_layer(dim=1).keys)
