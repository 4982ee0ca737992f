"""Intervals over samples, comparisons of runs, and typeset tables."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecokv_cli.studies.compare import compare_tables
from ecokv_cli.studies.statistics import RESAMPLES, mean_intervals, over_samples
from ecokv_cli.studies.tables import Table
from ecokv_cli.studies.typeset import latex, markdown
from ecokv_cli.studies.wide import Summary, wide, write_wide


def table(values, name="layers"):
    """Rows of (sample, layer, head, value)."""
    made = Table(name, ("sample", "layer", "kv_head", "x"))
    for sample, layer, head, value in values:
        made.add(sample=sample, layer=layer, kv_head=head, x=value)
    return made


def test_intervals_are_those_of_plain_resampling():
    values = np.random.default_rng(3).normal(size=(3, 17))
    found = mean_intervals(values, seed=5)
    draws = np.random.default_rng(11).integers(0, 17, size=(40_000, 17))
    for row, (low, high) in zip(values, found, strict=True):
        wanted = np.quantile(row[draws].mean(1), [0.025, 0.975])
        np.testing.assert_allclose([low, high], wanted, atol=0.05 * row.std())
    np.testing.assert_array_equal(found, mean_intervals(values, seed=5))


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    draws = np.random.default_rng(0).normal(size=(400, 25))
    found = mean_intervals(draws)
    covered = ((found[:, 0] <= 0) & (found[:, 1] >= 0)).mean()
    assert 0.89 < covered < 0.98
    assert RESAMPLES >= 1000


def test_one_sample_has_no_interval_and_equal_samples_an_interval_of_no_width():
    assert np.isnan(mean_intervals(np.array([[1.0]]))).all()
    np.testing.assert_array_equal(mean_intervals(np.full((1, 5), 2.5)), [[2.5, 2.5]])


def test_a_sample_counts_once_however_many_heads_it_has():
    rows = [("a", 0, 0, 1.0), ("a", 0, 1, 3.0), ("a", 0, 2, 2.0), ("b", 0, 0, 8.0), ("b", 1, 0, 5.0), ("c", 0, 0, None)]
    found = over_samples(table(rows), ("layer",), ("x",))
    first, second = found.rows
    assert (first["mean"], first["n"]) == (5.0, 2)
    assert first["low"] == 2.0
    assert first["high"] == 8.0
    assert second == {"layer": 1, "measure": "x", "mean": 5.0, "low": None, "high": None, "n": 1}


def test_runs_with_the_same_samples_are_compared_pair_by_pair():
    noise = np.random.default_rng(1).normal(scale=10, size=9)
    one = table([(f"s{i}", 0, 0, float(v)) for i, v in enumerate(noise)])
    two = table([(f"s{i}", 0, 0, float(v) + 1) for i, v in enumerate(noise)])
    row = compare_tables(one, two, ("layer",), ("x",), "c").where(layer=0).rows[0]
    assert row["paired"]
    assert row["difference"] == pytest.approx(1)
    assert row["low"] == pytest.approx(1)
    assert row["high"] == pytest.approx(1)


def test_runs_with_other_samples_get_the_wider_interval_of_the_means():
    noise = np.random.default_rng(1).normal(scale=10, size=9)
    one = table([(f"s{i}", 0, 0, float(v)) for i, v in enumerate(noise)])
    two = table([(f"t{i}", 0, 0, float(v) + 1) for i, v in enumerate(noise)])
    row = compare_tables(one, two, ("layer",), ("x",), "c").where(layer=0).rows[0]
    assert not row["paired"]
    assert row["low"] < -3 < 5 < row["high"]


def test_a_layer_that_one_run_lacks_has_no_difference_and_no_part_in_the_overall_mean():
    one = table([("a", 0, 0, 1.0), ("a", 1, 0, 3.0)])
    two = table([("a", 0, 0, 2.0)])
    rows = {row["layer"]: row for row in compare_tables(one, two, ("layer",), ("x",), "c")}
    assert rows[0]["difference"] == 1
    assert (rows[1]["first"], rows[1]["second"], rows[1]["difference"], rows[1]["n_second"]) == (3, None, None, 0)
    assert (rows[None]["first"], rows[None]["second"], rows[None]["difference"]) == (1, 2, 1)
    assert rows[0]["low"] is None


def test_samples_that_one_run_lacks_have_no_part_where_others_are_paired():
    one = table([(name, 0, 0, value) for name, value in (("a", 1.0), ("b", 3.0), ("c", 70.0))])
    two = table([(name, 0, 0, value) for name, value in (("a", 1.5), ("b", 3.5), ("d", -90.0))])
    row = compare_tables(one, two, ("layer",), ("x",), "c").rows[0]
    assert row["paired"]
    assert (row["first"], row["second"], row["n_first"], row["n_second"]) == (2, 2.5, 2, 2)
    assert (row["difference"], row["low"], row["high"]) == (0.5, 0.5, 0.5)


def test_typeset_tables():
    made = Table("t", ("method", "x|y", "n"))
    made.add(method="snapkv_50%", n=3, **{"x|y": -0.12345})
    made.add(method="a & b", n=None, **{"x|y": None})
    assert markdown(made, made.columns).splitlines() == [
        "| method | x\\|y | n |", "| :--- | ---: | ---: |", "| snapkv_50% | -0.123 | 3 |", "| a & b | - | - |",
    ]  # fmt: skip
    assert latex(made, ("method", "x|y")).splitlines() == [
        r"\begin{tabular}{lr}", r"\toprule", r"method & x|y \\", r"\midrule", r"snapkv\_50\% & $-$0.123 \\",
        r"a \& b & - \\", r"\bottomrule", r"\end{tabular}",
    ]  # fmt: skip


def test_typeset_budgets_are_shown_as_they_were_asked_for():
    made = Table("t", ("budget", "kept"))
    made.add(budget=64, kept=64.0)
    made.add(budget=0.0625, kept=20.0)
    assert markdown(made, made.columns).splitlines()[2:] == ["| 64 | 64.000 |", "| 0.0625 | 20.000 |"]


@settings(max_examples=50)
@given(st.text(alphabet=st.characters(codec="ascii", categories=["P", "S", "L"]), min_size=1, max_size=8))
def test_no_character_of_a_name_reaches_latex_unescaped(name):
    made = Table("t", ("m",))
    made.add(m=name)
    line = latex(made, ("m",)).splitlines()[4]
    assert line.endswith(r" \\")
    for character in "&%$#_{}~^":
        assert line.count(character) <= line.count("\\" + character) + line.count("text") * 2


def summary():
    """Two measures of three layers of two tensors, one of them undefined in a layer, another nowhere defined."""
    made = Table("t", ("model", "sample", "tensor", "layer", "x", "y_1", "z"))
    for sample, tensor, layer in itertools.product(range(5), ("keys", "values"), range(3)):
        x = sample + 10.0 * layer - (2 if tensor == "values" else 0)
        y = None if (layer == 1 or (tensor, layer, sample) == ("keys", 0, 3)) else 0.1 * sample
        made.add(model="m_1", sample=f"s{sample}", tensor=tensor, layer=layer, x=x, y_1=y, z=None)
    table = over_samples(made, ("model", "tensor", "layer"), ("x", "y_1", "z"))
    return Summary(table, (("x", "y_1"), ("z",)), ("model", "tensor"))


def test_wide_tables_have_a_row_per_layer_and_a_column_per_measure():
    found = summary()
    (title, keys), (other, values) = wide(found)
    assert title == "m_1, tensor keys: mean [95 % interval] over 4 to 5 samples"
    assert other == "m_1, tensor values: mean [95 % interval] over 5 samples"
    assert keys.columns == values.columns == ("layer", "x", "y_1")
    row = found.table.where(tensor="keys", layer=2, measure="x").rows[0]
    low, high = mean_intervals(np.array([[20.0, 21, 22, 23, 24]]))[0]
    assert (row["low"], row["high"]) == (low, high)
    assert keys.rows[2]["x"] == f"22.000 [{low:.3f}, {high:.3f}]"
    assert keys.rows[1]["y_1"] is None
    assert values.rows[0]["x"].startswith("0.000 [-")


def test_wide_tables_are_typeset_one_after_the_other(tmp_path):
    write_wide(tmp_path, summary())
    text = (tmp_path / "t_over_samples.md").read_text().splitlines()
    assert text[:4] == [
        "m_1, tensor keys: mean [95 % interval] over 4 to 5 samples", "",
        "| layer | x | y_1 |", "| ---: | ---: | ---: |",
    ]  # fmt: skip
    assert text[5].endswith(" | - |")
    assert sum(line.startswith("| ") for line in text) == 2 * (2 + 3)
    lines = (tmp_path / "t_over_samples.tex").read_text().splitlines()
    assert lines[:5] == [
        r"\begin{tabular}{rrr}", r"\toprule",
        r"\multicolumn{3}{l}{m\_1, tensor keys: mean [95 \% interval] over 4 to 5 samples} \\",
        r"layer & x & y\_1 \\", r"\midrule",
    ]  # fmt: skip
    assert lines.count(r"\begin{tabular}{rrr}") == lines.count(r"\bottomrule") == 2
    assert any(line.startswith(r"0 & 0.000 [$-$") for line in lines), "a minus, not a hyphen"
