"""Means over samples of every analysis against plain means of all rows, with their intervals; their form."""

from dataclasses import replace

import numpy as np
import pytest
from many_samples import GEOMETRY, LENGTHS, joined, sample

from ecokv_cli.figures.overview import summaries
from ecokv_cli.figures.reduction import reduce_analysis
from ecokv_cli.studies.analyze import analyze
from ecokv_cli.studies.statistics import mean_intervals
from ecokv_cli.studies.tables import Table
from ecokv_cli.studies.wide import INTERVALS, wide

SEED = 5
LAYERS = ("cos_mean", "dist_mean", "dist_per_norm", "effective_rank", "r_euc", "lambda_ecokv", "spearman")
HERE = {"model": "tiny"}


def sinks(number):
    """Rows of sinks of one sample in layer 1: none, one or two, with numbers of their own."""
    numbers = ("attention", "attention_heads", "received", "norm_heads", "key_norm", "key_norm_relative", "value_norm",
               "value_norm_relative", "key_cos_to_mean")  # fmt: skip
    columns = ("model", "sample", "layer", "position", "token", "role", "reason", *numbers)
    table = Table("sinks", columns)
    for i in range(number % 3):
        where = {"sample": f"s{number}", "layer": 1, "position": i, "token": "x", "role": "text", "reason": "norm"}
        values = {name: 1.0 + at + number + 10 * i for at, name in enumerate(numbers)}
        table.add(**HERE | where | values | {"received": None})
    return table


@pytest.fixture(scope="module")
def analysed():
    results = [analyze([sample(number)], GEOMETRY) for number in range(len(LENGTHS))]
    return [replace(result, sinks=sinks(number)) for number, result in enumerate(results)]


@pytest.fixture(scope="module")
def found(analysed):
    """By name what the analyses of all samples come to."""
    return {each.table.name: each for each in summaries(*reduce_analysis(analysed, LAYERS), LAYERS, SEED)}


def naive(rows, by, number):
    """Per group and sample the plain mean of `number` of a row, where it is defined."""
    groups = {}
    for row in rows:
        value = number(row)
        if value is not None:
            samples = groups.setdefault(tuple(row[column] for column in by), {})
            samples.setdefault(row["sample"], []).append(value)
    return {key: [sum(v) / len(v) for v in samples.values()] for key, samples in groups.items()}


def assert_means(table, measure, wanted):
    by = table.columns[: table.columns.index("measure")]
    rows = {tuple(row[column] for column in by): row for row in table.where(measure=measure)}
    assert rows.keys() == wanted.keys()
    for key, numbers in wanted.items():
        row = rows[key]
        assert row["mean"] == pytest.approx(sum(numbers) / len(numbers), rel=1e-12, abs=1e-12), (measure, key)
        assert row["n"] == len(numbers), (measure, key)
        if len(numbers) > 1:
            low, high = mean_intervals(np.array([numbers]), SEED)[0]
            assert (row["low"], row["high"]) == pytest.approx((low, high), rel=1e-12, abs=1e-12), (measure, key)
            assert row["low"] <= row["mean"] + 1e-12
            assert row["mean"] <= row["high"] + 1e-12
        else:
            assert row["low"] is row["high"] is None


@pytest.mark.parametrize(
    ("name", "by", "some"),
    [
        ("geometry", ("tensor", "layer"), {"cos_mean", "cos_q50", "dist_max", "pca_3", "participation_ratio"}),
        ("redundancy", ("tensor", "domain", "map", "layer"), {"r_cos", "r_euc", "lambda_std"}),
        ("roles", ("tensor", "role", "layer"), {"cos_within", "cos_rest", "variance_share", "norm_std"}),
        ("regions", ("tensor", "region_row", "region_col", "layer"), {"dist_relative", "cos_to_mean", "norm_mean"}),
    ],
)
def test_every_measure_is_the_mean_over_samples_of_their_plain_means(analysed, found, name, by, some):
    rows, table = getattr(joined(analysed), name).rows, found[f"{name}_over_samples"].table
    assert table.columns == ("model", *by, "measure", "mean", "low", "high", "n")
    measured = set(table.distinct("measure")) - {"token_share", "variance_ratio"}
    assert measured >= some
    for measure in measured:
        assert_means(table, measure, naive(rows, ("model", *by), lambda row, measure=measure: row[measure]))
    assert max(table.numbers("n")) == (7 if name == "regions" else 9), "two samples have no image"


def test_ratios_of_roles_are_those_of_each_sample(analysed, found):
    rows, table = joined(analysed).roles.rows, found["roles_over_samples"].table
    tokens = {row["sample"]: LENGTHS[int(row["sample"][1:])] for row in rows}
    by = ("model", "tensor", "role", "layer")
    assert_means(table, "token_share", naive(rows, by, lambda row: row["tokens"] / tokens[row["sample"]]))
    ratio = naive(rows, by, lambda row: row["variance_share"] * tokens[row["sample"]] / row["tokens"])
    assert_means(table, "variance_ratio", ratio)


def test_layers_are_summed_up_as_ever(analysed, found):
    table = found["layers_over_samples"].table
    for measure in LAYERS:
        assert_means(
            table, measure, naive(joined(analysed).layers, ("model", "layer"), lambda r, m=measure: r[m])
        )  # fmt: skip


def test_sinks_are_counted_in_all_samples_and_described_where_there_are_any(analysed, found):
    table, every = found["sinks_over_samples"].table, joined(analysed)
    by = ("model", "layer")
    keys = every.geometry.where(tensor="keys").rows
    for measure in ("sinks", "cos_mean", "cos_mean_no_sinks"):
        assert_means(table, measure, naive(keys, by, lambda row, measure=measure: row[measure]))
    assert set(table.where(measure="sinks").numbers("n")) == {9}
    for measure in ("attention", "norm_heads", "key_norm_relative", "key_cos_to_mean"):
        assert_means(table, measure, naive(every.sinks, by, lambda row, measure=measure: row[measure]))
    assert table.where(measure="attention").numbers("n") == [6]
    assert not table.where(measure="received").rows, "not dumped"


def test_the_rows_of_all_samples_give_the_same_as_the_reduced_tables(analysed, found):
    every = joined(analysed)
    for whole in summaries(every, every.layers, LAYERS, SEED):
        rows, reduced = whole.table.rows, found[whole.table.name].table.rows
        assert len(rows) == len(reduced)
        key = lambda row: tuple(v for c, v in row.items() if c not in ("mean", "low", "high", "n"))  # noqa: E731
        others = {key(row): row for row in reduced}
        for row in rows:
            assert [row[c] for c in ("mean", "n")] == pytest.approx([others[key(row)][c] for c in ("mean", "n")])


def test_a_single_sample_has_means_without_intervals(analysed):
    one = summaries(*reduce_analysis(analysed[1:2], LAYERS), LAYERS, SEED)
    assert [each.table.name for each in one] == [
        f"{name}_over_samples" for name in ("layers", "geometry", "redundancy", "roles", "regions", "sinks")
    ]
    for each in one:
        assert each.table.rows
        assert {(row["low"], row["high"], row["n"]) for row in each.table} == {(None, None, 1)}
        for title, part in wide(each):
            assert title.endswith(": one sample")
            cells = [row[c] for row in part for c in part.columns if c in each.table.distinct("measure")]
            assert not any("[" in str(cell) for cell in cells)
    rows = analysed[1].regions.where(tensor="keys", layer=0, region_row=1, region_col=2).numbers("cos_to_mean")
    assert len(rows) == 2, "two images"
    where = {"tensor": "keys", "layer": 0, "region_row": 1, "region_col": 2, "measure": "cos_to_mean"}
    assert one[4].table.where(**where).numbers("mean") == [np.mean(rows)]


def test_samples_without_images_have_no_regions(analysed):
    texts = [analysed[i] for i in (2, 5)]
    regions = summaries(*reduce_analysis(texts, LAYERS), LAYERS, SEED)[4]
    assert (regions.table.name, regions.table.rows, list(wide(regions))) == ("regions_over_samples", [], [])


def test_every_number_has_its_cell_in_tables_that_fit_a_page(found):
    for each in found.values():
        cells = 0
        assert {measure for measures in each.sets for measure in measures} >= set(each.table.distinct("measure"))
        for _, part in wide(each):
            shown = [column for column in part.columns if column in each.table.distinct("measure")]
            assert 1 <= len(shown) <= INTERVALS
            assert [row["layer"] for row in part] in ([0, 1], [1]), "a row per layer"
            assert part.columns == ("layer", *shown)
            cells += sum(row[column] is not None for row in part for column in shown)
        assert cells == len(each.table), each.table.name
