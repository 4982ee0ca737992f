"""The analysis of what is rare or broken: one position, equal or zero vectors, half precision, a tight cluster."""

from dataclasses import replace

import numpy as np
import pytest
import reference
import torch
from builders import random_layer
from memory_dumps import memory_dump
from small_analyses import TOKENS, layer_of, one_layer, settings

from ecokv_cli.dump.reader import NEEDED, Dump
from ecokv_cli.dump.writer import LayerWriter
from ecokv_cli.errors import NonFiniteError
from ecokv_cli.studies.analyze import analyze


def test_one_position():
    layer = random_layer(tokens=1, stored=1)
    result = one_layer(layer, pca=((0, 0),))
    row = result.geometry.where(tensor="keys").rows[0]
    nothing = ("cos_mean", "cos_std", "dist_mean", "effective_rank")
    assert [row[column] for column in ("tokens", *nothing)] == [1, 0, 0, 0, 0]
    undefined = ("cos_q50", "spearman", "cos_mean_no_sinks", "dist_mean_no_sinks")
    assert [row[column] for column in undefined] == [None] * 4
    assert row["spearman_note"] == "fewer than 3 positions"
    assert result.histogram.rows == result.sinks.rows == []
    assert [(r["pc1"], r["pc2"]) for r in result.pca] == [(0, 0), (0, 0)]
    assert result.roles.rows[0]["cos_within"] is None


def test_equal_keys():
    layer = random_layer()
    result = one_layer(replace(layer, keys=torch.full_like(layer.keys, 0.3)))
    row = result.geometry.where(tensor="keys").rows[0]
    assert row["cos_mean"] == pytest.approx(1)
    assert row["cos_q05"] == pytest.approx(1, abs=1e-6)
    assert (row["dist_mean"], row["pca_1"], row["effective_rank"], row["spearman"]) == (0, 0, 0, None)
    assert row["spearman_note"] == "a score is constant"
    assert result.roles.where(tensor="keys").rows[0]["variance_share"] is None
    assert one_layer(replace(layer, keys=torch.full_like(layer.keys, 0.3))).regions.rows[0]["dist_relative"] is None


def test_zero_keys_and_zero_values():
    layer = random_layer()
    keys = layer.keys.clone()
    keys[0, [2, 3, 5]] = 0
    result = one_layer(replace(layer, keys=keys, values=torch.zeros_like(layer.values)))
    rows = result.geometry.where(kv_head=0)
    assert [row["zero_keys"] for row in rows] == [3, TOKENS]
    assert rows.rows[0]["cos_mean"] == pytest.approx(np.mean(reference.pairwise_cosines(keys[0].numpy())))
    assert (rows.rows[1]["cos_mean"], rows.rows[1]["dist_per_norm"]) == (0, None)
    assert result.regions.where(tensor="values").rows[0]["cos_to_mean"] is None


def test_heads_of_one_dimension():
    result = one_layer(random_layer(dim=1), pca=((0, 0),))
    row = result.geometry.where(tensor="keys").rows[0]
    assert (row["pca_1"], row["pca_2"]) == (pytest.approx(1), None)
    assert set(result.pca.where(tensor="keys").numbers("pc2")) == {0}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_dumps_are_analysed_in_single(dtype):
    layer = layer_of(1)
    names = ("keys", "values", "window_queries")
    halved = {name: getattr(layer, name).to(dtype).float() for name in names}
    single, double = (
        one_layer(replace(layer, **{name: t.to(kind) for name, t in halved.items()}))
        for kind in (torch.float32, torch.float64)
    )
    for a, b in zip(single.geometry.where(tensor="keys"), double.geometry.where(tensor="keys"), strict=True):
        for column in ("cos_mean", "cos_std", "dist_mean", "effective_rank", "lambda_ecokv", "spearman"):
            assert a[column] == pytest.approx(b[column], rel=1e-5, abs=1e-6), column


def test_a_tight_cluster_far_from_the_origin():
    layer = random_layer()
    keys = (layer.keys * 1e-3 + 50).float()
    layer = replace(layer, keys=keys, values=layer.values.float(), window_queries=layer.window_queries.float())
    row = one_layer(layer).geometry.where(tensor="keys").rows[0]
    distances = reference.distances(keys.double().numpy())[0]
    assert row["dist_mean"] == pytest.approx(distances.mean(), rel=1e-4)
    rank = reference.pca(keys[0].double().numpy())["effective_rank"]
    assert row["effective_rank"] == pytest.approx(rank, rel=1e-4)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_broken_number_is_refused_by_its_place(broken, tmp_path):
    tensors = {name: getattr(layer_of(0), name).clone() for name in NEEDED}
    tensors["keys"][1, 7, 2] = broken
    writer = LayerWriter(tmp_path)
    writer.add(0, tensors, 0.37)
    dump = Dump(tmp_path, replace(memory_dump().manifest, layers=tuple(writer.records)))
    with pytest.raises(NonFiniteError, match="layer 0, KV head 1: keys holds 1 NaN or infinite numbers; dump again"):
        analyze([dump], settings(layers=(0,), pca=()))
