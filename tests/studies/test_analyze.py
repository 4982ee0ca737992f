"""Tables of the analysis, each number against its definition, on layers in memory."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import reference
import torch
from builders import random_layer
from memory_dumps import memory_dump
from scipy.special import expit

from ecokv_cli.dump.schema import ImageGrid, Tokens
from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.spec import parse_method
from ecokv_cli.geometry import cosines
from ecokv_cli.geometry.redundancy import REDUNDANCY_MAPS
from ecokv_cli.studies.analyze import GEOMETRY, AnalyzeSettings, analyze
from ecokv_cli.studies.analyze.prompt import Prompt, Region

TOKENS, WINDOW = 29, 4
ROLES = ("special", *("image",) * 20, *("text",) * 8)
GRID = ImageGrid(0, 1, 4, 5, (0.0, 0.0, 1.0, 1.0), 0)
METHOD_COLUMNS = ("r_cos", "r_euc", "lambda_ecokv", "lambda_mixkv", "lambda_std", "spearman", "spearman_n")


def settings(**changes):
    base = {
        "layers": (0, 2), "heads": (0, 1), "method": parse_method("snapkv+ecokv"), "pairs": 10_000, "seed": 0,
        "pca": ((2, 1),),
    }  # fmt: skip
    return AnalyzeSettings(**(base | changes))


def dump_of(*layers, roles=ROLES, grids=(GRID,), sample="page"):
    n = len(roles)
    tokens = Tokens(tuple(range(n)), tuple(f"t{i}" for i in range(n)), roles, *[(None,) * n] * 3)
    return memory_dump(sample, made=layers, tokens=tokens, grids=grids)


def layer_of(index, **changes):
    return replace(random_layer(index, shift=0.2 * index), index=index, layers=3, **changes)


def one_layer(layer, **changes):
    """The analysis of one layer by itself."""
    roles = ROLES if layer.tokens == TOKENS else ("text",) * layer.tokens
    grids = (GRID,) if layer.tokens == TOKENS else ()
    return analyze([dump_of(replace(layer, index=0), roles=roles, grids=grids)], settings(layers=(0,), **changes))


@pytest.fixture
def dump():
    return dump_of(*(layer_of(index) for index in range(3)))


@pytest.fixture
def result(dump):
    return analyze([dump], settings())


def off_diagonal(head):
    return reference.pairwise_cosines(head)


def test_there_is_a_row_per_layer_tensor_and_head(result):
    assert result.geometry.columns == GEOMETRY
    expected = [(layer, tensor, head) for layer in (0, 2) for tensor in ("keys", "values") for head in (0, 1)]
    assert [(r["layer"], r["tensor"], r["kv_head"]) for r in result.geometry] == expected
    assert {(r["model"], r["sample"]) for table in result.tables for r in table} == {("tiny", "page")}


@pytest.mark.parametrize("tensor", ["keys", "values"])
def test_geometry_rows_equal_their_definitions(result, tensor):
    for row in result.geometry.where(layer=2, tensor=tensor):
        head = getattr(layer_of(2), tensor)[row["kv_head"]].numpy()
        pairs = off_diagonal(head)
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
            r_cos = np.mean(off_diagonal(head[:count]))
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
        pairs = off_diagonal(head[inside])
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
        assert row["cos_mean_no_sinks"] == pytest.approx(np.mean(off_diagonal(head)), abs=1e-9)
        assert row["dist_mean_no_sinks"] == pytest.approx(reference.distances(head[None]).mean())
        assert row["participation_ratio_no_sinks"] == pytest.approx(reference.pca(head)["participation_ratio"])
    assert result.geometry.where(tensor="keys").rows[0]["participation_ratio"] < 1.5


def test_received_attention_is_a_mean_over_the_queries_that_see_the_position():
    received = torch.rand(6, TOKENS, dtype=torch.float64)
    table = one_layer(replace(sink_layer(), received_attention=received)).sinks
    for row in table:
        position = row["position"]
        assert row["received"] == pytest.approx(float(received[:, position].mean()) / (TOKENS - position))


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
    assert {(row["pairs"], row["exact"]) for row in result.histogram} == {(pairs, True)}
    rows = result.histogram.where(layer=0, kv_head=0, tensor="keys")
    np.testing.assert_allclose(rows.numbers("bin_low"), np.linspace(-1, 0.98, cosines.COARSE), atol=1e-12)
    np.testing.assert_allclose(rows.numbers("bin_high")[:-1], rows.numbers("bin_low")[1:], atol=1e-12)


def test_long_prompts_are_sampled(monkeypatch):
    monkeypatch.setattr(cosines, "EXACT_TOKENS", 20)
    result = one_layer(layer_of(1), pairs=100)
    assert {(row["cos_pairs"], row["cos_exact"]) for row in result.geometry} == {(4 * TOKENS, False)}
    assert {(row["pairs"], row["exact"]) for row in result.histogram} == {(4 * TOKENS, False)}
    assert one_layer(layer_of(1), pairs=100, seed=1).histogram.rows != result.histogram.rows


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


class TestDegenerate:
    def test_one_position(self):
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

    def test_equal_keys(self):
        layer = random_layer()
        result = one_layer(replace(layer, keys=torch.full_like(layer.keys, 0.3)))
        row = result.geometry.where(tensor="keys").rows[0]
        assert row["cos_mean"] == pytest.approx(1)
        assert row["cos_q05"] == pytest.approx(1, abs=1e-6)
        assert (row["dist_mean"], row["pca_1"], row["effective_rank"], row["spearman"]) == (0, 0, 0, None)
        assert row["spearman_note"] == "a score is constant"
        assert result.roles.where(tensor="keys").rows[0]["variance_share"] is None
        assert one_layer(replace(layer, keys=torch.full_like(layer.keys, 0.3))).regions.rows[0]["dist_relative"] is None

    def test_zero_keys_and_zero_values(self):
        layer = random_layer()
        keys = layer.keys.clone()
        keys[0, [2, 3, 5]] = 0
        result = one_layer(replace(layer, keys=keys, values=torch.zeros_like(layer.values)))
        rows = result.geometry.where(kv_head=0)
        assert [row["zero_keys"] for row in rows] == [3, TOKENS]
        assert rows.rows[0]["cos_mean"] == pytest.approx(np.mean(off_diagonal(keys[0].numpy())))
        assert (rows.rows[1]["cos_mean"], rows.rows[1]["dist_per_norm"]) == (0, None)
        assert result.regions.where(tensor="values").rows[0]["cos_to_mean"] is None

    def test_heads_of_one_dimension(self):
        result = one_layer(random_layer(dim=1), pca=((0, 0),))
        row = result.geometry.where(tensor="keys").rows[0]
        assert (row["pca_1"], row["pca_2"]) == (pytest.approx(1), None)
        assert set(result.pca.where(tensor="keys").numbers("pc2")) == {0}

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_dumps_are_analysed_in_single(self, dtype):
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

    def test_a_tight_cluster_far_from_the_origin(self):
        layer = random_layer()
        keys = (layer.keys * 1e-3 + 50).float()
        layer = replace(layer, keys=keys, values=layer.values.float(), window_queries=layer.window_queries.float())
        row = one_layer(layer).geometry.where(tensor="keys").rows[0]
        distances = reference.distances(keys.double().numpy())[0]
        assert row["dist_mean"] == pytest.approx(distances.mean(), rel=1e-4)
        rank = reference.pca(keys[0].double().numpy())["effective_rank"]
        assert row["effective_rank"] == pytest.approx(rank, rel=1e-4)


def test_every_column_is_explained(result):
    text = (Path(__file__).parents[2] / "docs" / "columns.md").read_text(encoding="utf-8")
    columns = {column for table in result.tables for column in table.columns}
    ranges = {f"cos_q{q}" for q in (25, 50, 75)} | {f"pca_{i}" for i in (2, 3, 4)}
    where = {"layer", "kv_head"}
    explained = {column for column in columns if f"`{column}`" in text or f"**{column}**" in text}
    assert columns - ranges - where - explained == set()
    for table in result.tables:
        assert f"## {table.name}.csv" in text


def test_analysis_wants_an_ecokv_booster():
    with pytest.raises(MethodError, match="needs an ecokv method"):
        settings(method=parse_method("snapkv"))
