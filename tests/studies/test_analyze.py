"""Tables of the analysis, each number against its definition, on layers in memory."""

import math
from dataclasses import replace

import numpy as np
import pytest
import reference
from builders import random_layer
from scipy.special import expit
from small_analyses import ROLES, TOKENS, WINDOW, dump_of, layer_of, one_layer, settings

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.spec import parse_method
from ecokv_cli.geometry import cosines
from ecokv_cli.geometry.redundancy import REDUNDANCY_MAPS
from ecokv_cli.studies.analyze import GEOMETRY, analyze

METHOD_COLUMNS = ("r_cos", "r_euc", "lambda_ecokv", "lambda_mixkv", "lambda_std", "spearman", "spearman_n")


@pytest.fixture
def dump():
    return dump_of(*(layer_of(index) for index in range(3)))


@pytest.fixture
def result(dump):
    return analyze([dump], settings())


def test_there_is_a_row_per_layer_tensor_and_head(result):
    assert result.geometry.columns == GEOMETRY
    expected = [(layer, tensor, head) for layer in (0, 2) for tensor in ("keys", "values") for head in (0, 1)]
    assert [(r["layer"], r["tensor"], r["kv_head"]) for r in result.geometry] == expected
    assert {(r["model"], r["sample"]) for table in result.tables for r in table} == {("tiny", "page")}


@pytest.mark.parametrize("tensor", ["keys", "values"])
def test_geometry_rows_equal_their_definitions(result, tensor):
    for row in result.geometry.where(layer=2, tensor=tensor):
        head = getattr(layer_of(2), tensor)[row["kv_head"]].numpy()
        pairs = reference.pairwise_cosines(head)
        lengths, distances = np.linalg.norm(head, axis=1), reference.distances(head[None])[0]
        pca = reference.pca(head)
        wanted = {
            "tokens": TOKENS, "zero_keys": 0, "cos_mean": np.mean(pairs), "cos_std": np.std(pairs),
            "norm_mean": lengths.mean(), "norm_std": lengths.std(), "norm_min": lengths.min(),
            "norm_max": lengths.max(), "dist_mean": distances.mean(), "dist_rms": math.sqrt((distances**2).mean()),
            "dist_max": distances.max(), "dist_per_norm": distances.mean() / lengths.mean(),
            "effective_rank": pca["effective_rank"], "participation_ratio": pca["participation_ratio"],
            "cos_pairs": TOKENS * (TOKENS - 1) / 2, "cos_exact": True,
        }  # fmt: skip
        for name, value in wanted.items():
            assert row[name] == pytest.approx(value, rel=1e-9), name
        for q in (5, 25, 50, 75, 95):
            assert row[f"cos_q{q:02d}"] == pytest.approx(np.quantile(pairs, q / 100), abs=2 / 256), q
        np.testing.assert_allclose([row[f"pca_{i}"] for i in range(1, 6)], pca["ratio"][:5], rtol=1e-9)


def test_what_belongs_to_the_method_is_on_the_rows_of_the_keys_alone(result):
    for row in result.geometry:
        defined = {row[column] is not None for column in METHOD_COLUMNS}
        assert defined == {row["tensor"] == "keys"}


def test_lambda_and_correlation_equal_the_naive_reference(result):
    layer = layer_of(2)
    queries = layer.window_queries[:, -WINDOW:].numpy()
    attention = reference.snapkv_importance(queries, layer.keys.numpy(), layer.scaling)
    parts = reference.ecokv_score(attention, layer.keys.numpy(), layer.values.numpy(), WINDOW)
    for row in result.geometry.where(layer=2, tensor="keys"):
        head = row["kv_head"]
        assert row["r_cos"] == pytest.approx(parts["r_cos"][head])
        assert row["r_euc"] == pytest.approx(parts["r_euc"][head])
        assert row["lambda_ecokv"] == pytest.approx(parts["lambda"][head])
        assert row["lambda_std"] == pytest.approx(parts["r_std"][head])
        assert row["lambda_mixkv"] == pytest.approx(min(max(parts["r_cos"][head], 0), 1))
        assert row["spearman"] == pytest.approx(reference.spearman(parts["I"][head], parts["S"][head]))
        assert row["spearman_n"] == TOKENS - WINDOW


def test_redundancy_in_every_domain_and_by_every_map(result):
    table = result.redundancy.where(layer=2, kv_head=1)
    assert len(table) == 2 * 2 * len(REDUNDANCY_MAPS)
    layer = layer_of(2)
    for tensor in ("keys", "values"):
        head = getattr(layer, tensor)[1].numpy()
        distances = reference.distances(head[None])[0]
        for domain, count in (("all", TOKENS), ("candidates", TOKENS - WINDOW)):
            r_cos = np.mean(reference.pairwise_cosines(head[:count]))
            tau = math.sqrt(head.shape[1])
            for kind in REDUNDANCY_MAPS:
                (row,) = table.where(tensor=tensor, domain=domain, map=kind)
                some = distances[:count]
                if kind == "minmax":
                    r_euc = 1 - np.mean((some - some.min()) / np.ptp(some))
                else:
                    r_euc = reference.bounded_redundancy(some.mean(), tau, "inv" if kind == "inverse" else kind)
                assert row["r_cos"] == pytest.approx(r_cos, abs=1e-9)
                assert row["r_euc"] == pytest.approx(r_euc)
                assert row["lambda_ecokv"] == pytest.approx(0.6 * r_euc + 0.4 * max(r_cos, 0))
                assert row["lambda_mixkv"] == pytest.approx(max(r_cos, 0), abs=1e-9)
                assert row["lambda_std"] == pytest.approx(expit(-math.sqrt(np.mean(some**2)) / tau))


def test_the_readings_of_the_default_method_are_the_same_in_both_tables(result):
    for row in result.redundancy.where(domain="all", map="sigmoid", tensor="keys"):
        (same,) = result.geometry.where(layer=row["layer"], kv_head=row["kv_head"], tensor="keys")
        for column in METHOD_COLUMNS[:5]:
            assert row[column] == pytest.approx(same[column], rel=1e-9), column


def test_options_of_the_booster_reach_the_redundancy_table():
    method = parse_method("snapkv+ecokv[beta=0.25,temperature=3]")
    table = one_layer(layer_of(1), method=method).redundancy
    row = table.where(kv_head=0, tensor="keys", domain="all", map="exp").rows[0]
    distances = reference.distances(layer_of(1).keys.numpy())[0]
    assert row["r_euc"] == pytest.approx(math.exp(-distances.mean() / 3))
    assert row["lambda_ecokv"] == pytest.approx(0.25 * row["r_euc"] + 0.75 * max(row["r_cos"], 0))


@pytest.mark.parametrize(
    "options",
    ["", "alpha=0.3", "std=true", "div_scale=importance", "value_norm=false", "avg_domain=candidates", "window=7"],
)
@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_numbers_of_the_method_are_those_it_gives_by_itself(options, shift):
    method = parse_method(f"snapkv+ecokv[{options}]" if options else "snapkv+ecokv")
    layer = random_layer(shift=shift)
    wanted = method.boost(replace(layer))
    for row in one_layer(layer, method=method).geometry.where(tensor="keys"):
        head = row["kv_head"]
        assert row["lambda_ecokv"] == pytest.approx(float(wanted.weight[head]), rel=1e-9)
        rho = reference.spearman(wanted.importance[head], wanted.diversity[head])
        assert row["spearman"] == pytest.approx(rho, abs=1e-9)


def test_keys_before_rope_are_analysed_where_they_are_dumped():
    layer = layer_of(1, prerope_keys=random_layer(7).keys)
    result = one_layer(layer, pca=((0, 1),))
    alone = one_layer(replace(layer, keys=layer.prerope_keys, prerope_keys=None))
    for name in ("geometry", "redundancy", "roles", "regions", "histogram"):
        assert getattr(result, name).distinct("tensor") == ["keys", "values", "prerope_keys"], name
    (row,) = result.geometry.where(tensor="prerope_keys", kv_head=1)
    (same,) = alone.geometry.where(tensor="keys", kv_head=1)
    assert row["lambda_ecokv"] is None
    for column in ("cos_mean", "dist_mean", "effective_rank", "norm_max"):
        assert row[column] == pytest.approx(same[column])
    assert len(result.pca.where(tensor="prerope_keys")) == TOKENS


def test_histograms_sum_to_one_and_say_which_pairs_they_count(result):
    assert len(result.histogram) == 2 * 2 * 2 * cosines.COARSE
    for total in result.histogram.aggregate(("layer", "kv_head", "tensor"), "share", sum).values():
        assert total == pytest.approx(1)
    pairs = TOKENS * (TOKENS - 1) // 2
    assert {(row["pairs"], row["exact"], row["seed"]) for row in result.histogram} == {(pairs, True, None)}
    rows = result.histogram.where(layer=0, kv_head=0, tensor="keys")
    np.testing.assert_allclose(rows.numbers("bin_low"), np.linspace(-1, 0.98, cosines.COARSE), atol=1e-12)
    np.testing.assert_allclose(rows.numbers("bin_high")[:-1], rows.numbers("bin_low")[1:], atol=1e-12)


def test_long_prompts_are_sampled(monkeypatch):
    monkeypatch.setattr(cosines, "EXACT_TOKENS", 20)
    result = one_layer(layer_of(1), pairs=100)
    assert {(row["cos_pairs"], row["cos_exact"]) for row in result.geometry} == {(4 * TOKENS, False)}
    assert {(row["pairs"], row["exact"], row["seed"]) for row in result.histogram} == {(4 * TOKENS, False, 0)}
    other = one_layer(layer_of(1), pairs=100, seed=7).histogram
    assert other.distinct("seed") == [7]
    assert other.numbers("share") != result.histogram.numbers("share")


def test_planes_cover_the_chosen_heads_on_the_axes_of_the_full_cache(result):
    assert {(r["layer"], r["kv_head"]) for r in result.pca} == {(2, 1)}
    for tensor in ("keys", "values"):
        rows = result.pca.where(tensor=tensor)
        assert [r["role"] for r in rows] == list(ROLES)
        head = getattr(layer_of(2), tensor)[1].numpy()
        ratio = reference.pca(head)["ratio"]
        for i in (1, 2):
            assert rows.rows[0][f"ev{i}"] == pytest.approx(ratio[i - 1])
            assert np.var(rows.numbers(f"pc{i}")) == pytest.approx(ratio[i - 1] * np.var(head, axis=0).sum())


def test_layer_rows_are_means_over_the_heads_of_the_keys(result):
    assert [row["layer"] for row in result.layers] == [0, 2]
    keys = result.geometry.where(layer=2, tensor="keys")
    for column in ("cos_mean", "dist_mean", "dist_per_norm", "effective_rank", "lambda_ecokv", "spearman"):
        assert result.layers.rows[1][column] == pytest.approx(np.mean(keys.numbers(column))), column


def test_chosen_heads_are_the_rows_of_all_heads(dump, result):
    one = analyze([dump], settings(heads=(1,)))
    for name in ("geometry", "redundancy", "roles", "histogram", "pca"):
        assert getattr(one, name).rows == getattr(result, name).where(kv_head=1).rows, name
    assert one.sinks.rows == result.sinks.rows


def test_samples_follow_one_another():
    dumps = [dump_of(layer_of(0), sample=name) for name in ("a", "b")]
    seen = []
    result = analyze(dumps, settings(layers=(0,)), lambda done, total: seen.append((done, total)))
    assert result.geometry.distinct("sample") == ["a", "b"]
    assert seen == [(1, 2), (2, 2)]


def test_analysis_wants_an_ecokv_booster():
    with pytest.raises(MethodError, match="needs an ecokv method"):
        settings(method=parse_method("snapkv"))
