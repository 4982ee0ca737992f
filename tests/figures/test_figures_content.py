"""Figures of the analysis draw the numbers they are given, say what is missing, and bend to odd tables."""

from __future__ import annotations

import numpy as np
import pytest
import synthetic

from ecokv_cli.figures.cosines import cosine_distribution
from ecokv_cli.figures.geometry import geometry_by_layer
from ecokv_cli.figures.planes import pca_scatter
from ecokv_cli.figures.redundancy import lambda_by_layer, spearman_by_layer
from ecokv_cli.studies.statistics import mean_intervals
from ecokv_cli.studies.tables import Table


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def histogram(*shares):
    """One layer and head; shares fall into bins that start at -1 and are 0.5 wide."""
    columns = ("model", "sample", "layer", "kv_head", "tensor", "bin_low", "bin_high", "share", "pairs", "exact")
    table = Table("cosine_histogram", columns)
    for i, share in enumerate(shares):
        span = {"bin_low": -1 + i / 2, "bin_high": -0.5 + i / 2, "share": share}
        table.add(model="m", sample="s", layer=0, kv_head=0, tensor="keys", **span, pairs=10, exact=True)
    return table


def test_ridge_marks_the_median():
    drawing = cosine_distribution(histogram(0.1, 0.1, 0.2, 0.6))
    median = drawing.figure.axes[0].lines[2].get_xdata()
    assert median == pytest.approx([0.5 + 0.5 * 0.1 / 0.6] * 2)


def test_quantiles_of_samples_have_intervals_and_the_median_is_marked():
    shares = [(0.1, 0.1, 0.2, 0.6), (0.3, 0.3, 0.2, 0.2), (0.05, 0.15, 0.5, 0.3)]
    table = histogram()
    for i, each in enumerate(shares):
        # The mean of both heads is what was given.
        for head, way in enumerate((1, -1)):
            rows = histogram(*each).rows
            table.rows += [
                row | {"sample": f"s{i}", "kv_head": head, "share": row["share"] * (1 + 0.1 * way)} for row in rows
            ]
    drawing = cosine_distribution(table)
    for quantile in (0.05, 0.25, 0.5, 0.75, 0.95):
        reached = [np.interp(quantile, [0, *np.cumsum(each)], np.arange(-1, 1.5, 0.5)) for each in shares]
        low, high = mean_intervals(np.array([reached]))[0]
        row = drawing.data.where(quantile=quantile).rows[0]
        assert [row[c] for c in ("value", "low", "high")] == pytest.approx([np.mean(reached), low, high])
        assert row["samples"] == 3
    row = drawing.data.where(quantile=0.5).rows[0]
    assert drawing.figure.axes[0].lines[2].get_xdata() == pytest.approx([row["value"]] * 2)
    band = drawing.figure.axes[0].collections[1].get_paths()[0].get_extents()
    assert (band.x0, band.x1) == pytest.approx((row["low"], row["high"]))
    assert "the mean of those of the samples, the band beside it" in drawing.caption
    assert "band" not in cosine_distribution(histogram(*shares[0])).caption


def test_the_caption_names_the_seed_of_sampled_pairs_only():
    assert "Shares are of all 10 pairs" in cosine_distribution(histogram(0.1, 0.9)).caption
    sampled = cosine_distribution(synthetic.cosine_histogram(3, 2)).caption
    assert "Shares come from 3,001 sampled pairs of a head, drawn with seed 17." in sampled


def test_ridges_average_over_heads():
    table = synthetic.cosine_histogram(3, 5)
    drawn = cosine_distribution(table).data.where(layer=1, bin_low=0.5).numbers("share")
    assert drawn == pytest.approx([np.mean(table.where(layer=1, bin_low=0.5).numbers("share"))])


@pytest.mark.parametrize("layers", [6, 28, 36])
def test_layer_ticks_are_few_and_name_real_layers(layers):
    ax = geometry_by_layer(synthetic.geometry(layers, 2)).figure.axes[0]
    named = [int(text) for text in labels(ax.xaxis)]
    assert named == list(range(0, layers, 1 if layers == 6 else 4))


def test_chosen_layers_keep_their_numbers():
    table = synthetic.geometry(28, 2)
    some = Table(table.name, table.columns, [row for row in table if row["layer"] in (0, 3, 7, 27)])
    drawing = lambda_by_layer(some)
    assert labels(drawing.figure.axes[1].xaxis) == ["0", "3", "7", "27"]


def test_profile_is_the_mean_over_heads():
    table = synthetic.geometry(6, 3)
    line = geometry_by_layer(table).figure.axes[0].lines[1].get_ydata()
    assert line == pytest.approx([np.mean(table.where(layer=i, tensor="keys").numbers("cos_mean")) for i in range(6)])


def test_undefined_correlations_are_counted_and_left_out():
    table = synthetic.undefine(synthetic.geometry(7, 2), (1, 0), (1, 1), (4, 0))
    drawing = spearman_by_layer(table)
    upper, lower = drawing.figure.axes[:2]
    assert "3 heads of 14 are undefined" in drawing.caption
    assert "n = 161 positions, 3 of 14 heads undefined" in lower.get_xlabel()
    assert np.ma.count_masked(upper.collections[0].get_array()) == 3
    medians = [bar.vertices[0, 1] if len(bar.vertices) else None for bar in lower.collections[0].get_paths()]
    assert medians[1] is None or np.isnan(medians[1])
    assert medians[4] == pytest.approx(table.where(layer=4).numbers("spearman")[0])
    limits = np.array(upper.collections[0].get_clim())
    assert limits[0] == -limits[1], "a diverging map is centred on 0"


def test_no_correlation_at_all():
    drawing = spearman_by_layer(synthetic.undefine(synthetic.geometry(1, 1), (0, 0)))
    assert "no correlation is defined" in drawing.figure.axes[1].get_xlabel()
    assert "1 head of 1 is undefined" in drawing.caption
    assert drawing.data.numbers("value") == []


def test_components_name_their_share_and_have_one_scale():
    ax = pca_scatter(synthetic.pca([(2, 1)])).figure.axes[0]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("PC 1 (41.3 %)", "PC 2 (12.7 %)")
    assert ax.get_aspect() == 1
    assert sum(len(cloud.get_offsets()) for cloud in ax.collections) == len(synthetic.Prompt().roles)


def test_keys_on_a_line():
    table = synthetic.pca([(0, 0)])
    for row in table:
        row |= {"pc2": 0.0, "ev1": 1.0, "ev2": 0.0}
    drawing = pca_scatter(table)
    assert drawing.figure.axes[0].get_ylabel() == "PC 2 (0.0 %)"
    assert "fewer directions" in drawing.caption


def test_at_most_nine_clouds():
    prompt = synthetic.Prompt(rows=2, cols=3, text=5)
    drawing = pca_scatter(synthetic.pca([(i, 0) for i in range(11)], prompt))
    assert len([ax for ax in drawing.figure.axes if ax.get_visible()]) == 9
    assert "2 further chosen heads are not drawn" in drawing.caption
    assert max(drawing.data.numbers("layer")) == 8


def test_tables_without_rows_give_no_figure():
    assert cosine_distribution(histogram()) is None
    assert pca_scatter(synthetic.pca([])) is None


def test_sharp_peaks_do_not_flatten_the_rest_of_a_ridge():
    drawing = cosine_distribution(spike(0.9))
    tops = drawing.figure.axes[0].lines[1].get_ydata()
    assert tops.min() == pytest.approx(-0.9), "the cut peak"
    whole = 0.9 * (0.1 / 19) / 0.9
    assert tops[1:-2] == pytest.approx(-3.6 * whole, rel=1e-9), "the rest, taller than beside the whole peak"
    assert "cut at 5 times the mean" in drawing.caption


def spike(peak):
    """Twenty bins, nearly everything in the last one."""
    columns = ("model", "sample", "layer", "kv_head", "tensor", "bin_low", "bin_high", "share", "pairs", "exact")
    table = Table("cosine_histogram", columns)
    for i in range(20):
        share = peak if i == 19 else (1 - peak) / 19
        span = {"bin_low": -1 + i / 10, "bin_high": -0.9 + i / 10, "share": share}
        table.add(model="m", sample="s", layer=0, kv_head=0, tensor="keys", **span, pairs=10, exact=True)
    return table
