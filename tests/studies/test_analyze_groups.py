"""Roles, image regions and sinks in the analysis, against brute force on layers in memory."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import reference
import torch
from small_analyses import ROLES, TOKENS, WINDOW, dump_of, layer_of, one_layer, settings

from ecokv_cli.dump.schema import ImageGrid
from ecokv_cli.studies.analyze import analyze
from ecokv_cli.studies.analyze.prompt import Prompt, Region


@pytest.fixture(scope="module")
def result():
    return analyze([dump_of(*(layer_of(index) for index in range(3)))], settings())


def test_roles_equal_brute_force(result):
    rows = result.roles.where(layer=2, kv_head=1, tensor="values").rows
    assert {row["role"]: row["tokens"] for row in rows} == {"text": 8, "image": 20, "special": 1}
    head = layer_of(2).values[1].numpy()
    units = reference.unit_keys(head[None])[0]
    distances, lengths = reference.distances(head[None])[0], np.linalg.norm(head, axis=1)
    roles = np.array(ROLES)
    for row in rows:
        inside = roles == row["role"]
        wanted = {
            "norm_mean": lengths[inside].mean(), "norm_std": lengths[inside].std(),
            "dist_mean": distances[inside].mean(), "cos_rest": (units[inside] @ units[~inside].T).mean(),
            "variance_share": (distances[inside] ** 2).sum() / (distances**2).sum(),
        }  # fmt: skip
        for name, value in wanted.items():
            assert row[name] == pytest.approx(value, abs=1e-9), name
        pairs = reference.pairwise_cosines(head[inside])
        assert row["cos_within"] == (pytest.approx(np.mean(pairs)) if pairs else None)


def test_regions_are_means_over_the_parts_of_the_image(result):
    table = result.regions.where(layer=2, tensor="keys")
    assert sum(table.numbers("tokens")) == 20
    row = table.where(region_row=1, region_col=0).rows[0]
    # Rows 1 and 2 of 4 have their centres in the middle third, columns 0 and 1 of 5 in the left one.
    positions = [1 + 5 * r + c for r in (1, 2) for c in (0, 1)]
    keys = layer_of(2).keys.numpy()
    units, distances = reference.unit_keys(keys), reference.distances(keys)
    means = units.mean(1)
    cosine = np.einsum("hnd,hd->hn", units, means) / np.linalg.norm(means, axis=1)[:, None]
    assert row["tokens"] == 4
    assert row["norm_mean"] == pytest.approx(np.linalg.norm(keys[:, positions], axis=2).mean())
    assert row["dist_mean"] == pytest.approx(distances[:, positions].mean())
    assert row["dist_relative"] == pytest.approx((distances[:, positions].mean(1) / distances.mean(1)).mean())
    assert row["cos_to_mean"] == pytest.approx(cosine[:, positions].mean())


def test_all_grids_of_an_image_share_its_parts():
    grids = (
        ImageGrid(0, 0, 1, 1, (0.0, 0.0, 1.0, 1.0), 0),
        ImageGrid(0, 2, 2, 2, (0.5, 0.5, 1.0, 1.0), 1),
        ImageGrid(1, 8, 1, 3, (0.0, 0.0, 1.0, 1.0), 0),
    )
    regions = Prompt(SimpleNamespace(grids=grids, tokens=SimpleNamespace(ids=(0,) * 13))).regions
    found = {region: inside.nonzero()[:, 0].tolist() for region, inside in regions.items()}
    assert found == {
        Region(0, 1, 1): [0, 2], Region(0, 1, 2): [3], Region(0, 2, 1): [5], Region(0, 2, 2): [6],
        Region(1, 1, 0): [8], Region(1, 1, 1): [9], Region(1, 1, 2): [10],
    }  # fmt: skip


def sink_layer():
    """Position 0 draws nearly all attention and has tiny values; the key of position 9 is huge."""
    layer = layer_of(1)
    keys, values = layer.keys.clone(), layer.values.clone()
    keys[:, 9] = -100
    keys[:, 0] = 3
    values[:, 0] *= 0.01
    return replace(layer, keys=keys, values=values, window_queries=torch.full_like(layer.window_queries, 2.0))


def test_sinks_are_flagged_with_their_reason_and_left_in():
    layer = sink_layer()
    table = one_layer(layer).sinks
    found = {row["position"]: row for row in table}
    assert found[0]["reason"] == "attention"
    assert "norm" in found[9]["reason"]
    assert (found[0]["token"], found[0]["role"]) == ("t0", "special")
    window = layer.window_queries[:, -WINDOW:].numpy()
    attention = reference.window_attention(window, layer.keys.numpy(), layer.scaling).mean((0, 1))
    assert found[0]["attention"] == pytest.approx(attention[0] * TOKENS)
    values = np.linalg.norm(layer.values.numpy(), axis=2)
    assert found[0]["value_norm"] == pytest.approx(values[:, 0].mean())
    assert found[0]["value_norm_relative"] == pytest.approx((values[:, 0] / np.median(values, axis=1)).mean())
    assert found[0]["value_norm_relative"] < 0.1
    assert found[9]["norm_heads"] == 1
    assert found[0]["received"] is None


def test_statistics_without_sinks_are_those_of_the_other_positions():
    layer = sink_layer()
    result = one_layer(layer)
    sinks = [row["position"] for row in result.sinks]
    kept = [i for i in range(TOKENS) if i not in sinks]
    for row in result.geometry:
        head = getattr(layer, row["tensor"])[row["kv_head"]].numpy()[kept]
        assert row["sinks"] == len(sinks)
        assert row["cos_mean_no_sinks"] == pytest.approx(np.mean(reference.pairwise_cosines(head)), abs=1e-9)
        assert row["dist_mean_no_sinks"] == pytest.approx(reference.distances(head[None]).mean())
        assert row["participation_ratio_no_sinks"] == pytest.approx(reference.pca(head)["participation_ratio"])
    assert result.geometry.where(tensor="keys").rows[0]["participation_ratio"] < 1.5


def test_received_attention_is_a_mean_over_the_queries_that_see_the_position():
    received = torch.rand(6, TOKENS, dtype=torch.float64)
    table = one_layer(replace(sink_layer(), received_attention=received)).sinks
    for row in table:
        position = row["position"]
        assert row["received"] == pytest.approx(float(received[:, position].mean()) / (TOKENS - position))
