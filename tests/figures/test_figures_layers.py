"""Figures over layers draw means over samples and heads, with the bands they promise."""

from __future__ import annotations

import album
import numpy as np
import pytest
import synthetic

from ecokv_cli.figures.geometry import dimension_by_layer, geometry_by_layer, keys_and_values, rope_by_layer
from ecokv_cli.figures.parts import log_axis
from ecokv_cli.figures.profiles import profile
from ecokv_cli.figures.readings import lambda_by_map, redundancy_by_head
from ecokv_cli.figures.redundancy import lambda_by_layer, spearman_by_layer
from ecokv_cli.figures.regions import image_regions
from ecokv_cli.figures.roles import cosine_by_role, variance_by_role
from ecokv_cli.figures.scale import distance_scale, norm_spread
from ecokv_cli.figures.sinks import sinks_by_layer
from ecokv_cli.figures.style import look, new_figure
from ecokv_cli.studies.statistics import mean_intervals, over_samples
from ecokv_cli.studies.tables import Table

MANY = synthetic.sampled(synthetic.geometry(7, 3), 5)
FAR = ((1.1, 1.3, 0.9), (1.5,), (0.7, 0.8, 1.2))
"""Relative distances of the images of three samples."""


def band(ax, number):
    """Lower and upper edge of a filled band per layer."""
    points = ax.collections[number].get_paths()[0].vertices
    places = sorted({x for x, _ in points})
    return np.array([[min(y for x, y in points if x == p), max(y for x, y in points if x == p)] for p in places]).T


def test_a_profile_counts_every_sample_once():
    table = Table("geometry", ("sample", "layer", "kv_head", "x"))
    for sample, head, x in (("a", 0, 1.0), ("a", 1, 3.0), ("b", 0, 8.0), ("b", 1, None)):
        table.add(sample=sample, layer=4, kv_head=head, x=x)
    found = profile(table, "x")
    assert (found.layers, found.kv_heads, found.samples) == ([4], [0, 1], 2)
    assert found.heads.ravel().tolist() == [4.5, 3.0]
    assert found.mean.tolist() == [5.0]
    assert 2 <= found.low[0] < 5 < found.high[0] <= 8


def test_dark_band_is_the_interval_and_pale_band_the_heads():
    ax = keys_and_values(MANY).figure.axes[0]
    keys = MANY.where(tensor="keys")
    found = {row["layer"]: row for row in over_samples(keys, ("layer",), ("cos_mean",))}
    assert ax.lines[0].get_ydata() == pytest.approx([found[i]["mean"] for i in range(7)])
    heads = np.array(
        [[np.mean(keys.where(layer=i, kv_head=h).numbers("cos_mean")) for i in range(7)] for h in range(3)]
    )
    assert band(ax, 0) == pytest.approx(np.array([heads.min(0), heads.max(0)]))
    assert band(ax, 1) == pytest.approx(np.array([[found[i][end] for i in range(7)] for end in ("low", "high")]))


def test_one_sample_has_no_interval():
    drawing = keys_and_values(synthetic.geometry(7, 3))
    assert len(drawing.figure.axes[0].collections) == 2, "a band of heads for keys and one for values"
    assert "interval" not in drawing.caption
    assert drawing.data.numbers("low") == []


@pytest.mark.parametrize("name", ["geometry", "values", "dimension", "scale", "norms", "lambda", "maps", "variance"])
def test_samples_are_counted_in_captions_and_data(drawing, name):
    several = drawing(name, (7, 3), samples=5)
    assert "5 samples" in several.caption
    assert "95 % bootstrap interval" in several.caption
    assert set(several.data.distinct("samples")) == {5}
    assert len(several.figure.axes[0].lines) == len(drawing(name, (7, 3)).figure.axes[0].lines), "lines of means alone"


def test_values_stand_beside_keys():
    drawing = dimension_by_layer(MANY)
    assert drawing.data.distinct("tensor") == ["keys", "values"]
    assert [text.get_text() for text in drawing.figure.legends[0].get_texts()] == ["keys", "values"]
    lines = [line.get_ydata() for line in drawing.figure.axes[0].lines]
    assert len(lines) == 2
    assert lines[1].mean() > lines[0].mean(), "values of the table use more directions"


def test_keys_before_rope_only_where_they_are():
    assert rope_by_layer(synthetic.geometry(5, 2)) is None
    drawing = rope_by_layer(synthetic.geometry(5, 2, tensors=("keys", "values", "prerope_keys")))
    assert drawing.data.distinct("tensor") == ["prerope_keys", "keys"]


def test_distance_and_norm_share_a_logarithmic_axis():
    drawing = distance_scale(synthetic.geometry(7, 3))
    for ax, tensor in zip(drawing.figure.axes, ("keys", "values"), strict=True):
        assert ax.get_yscale() == "log"
        assert ax.get_title() == tensor
        norm, distance = (line.get_ydata() for line in ax.lines)
        assert (distance < norm).all()


def test_norms_show_mean_deviation_and_extremes():
    table = synthetic.geometry(7, 3)
    ax = norm_spread(table).figure.axes[1]
    rows = [table.where(tensor="values", layer=i) for i in range(7)]
    mean, shortest, longest = (line.get_ydata() for line in ax.lines)
    assert mean == pytest.approx([np.mean(r.numbers("norm_mean")) for r in rows])
    assert shortest == pytest.approx([min(r.numbers("norm_min")) for r in rows])
    assert longest == pytest.approx([max(r.numbers("norm_max")) for r in rows])
    std = np.array([np.mean(r.numbers("norm_std")) for r in rows])
    assert band(ax, 0) == pytest.approx(np.array([mean - std, mean + std]))


def test_a_band_of_norms_ends_at_the_shortest_vector_and_the_caption_says_so():
    table = synthetic.geometry(7, 3)
    assert "it ends there" not in norm_spread(table).caption
    for row in table.where(tensor="values", layer=2):
        row["norm_std"] = 0.95 * row["norm_mean"]
    drawing = norm_spread(table)
    assert "it ends there" in drawing.caption
    ax = drawing.figure.axes[1]
    shortest, (low, high) = ax.lines[1].get_ydata(), band(ax, 0)
    assert low[2] == shortest[2]
    assert ax.get_ylim()[0] < low.min() < high.max() < ax.get_ylim()[1]


def test_vectors_of_length_zero_are_said():
    table = synthetic.geometry(3, 2)
    for row in table.where(layer=1, tensor="keys"):
        row |= {"norm_min": 0.0, "zero_keys": 2}
    assert "4 vectors of length 0" in norm_spread(table).caption
    assert "length 0" not in norm_spread(synthetic.geometry(3, 2)).caption


@pytest.mark.parametrize(("low", "high"), [(0.31, 0.33), (1.0, 1.0), (3, 4000), (7e-4, 2e-3), (99.9, 100.1)])
def test_logarithmic_axes_have_round_ends_and_ticks(low, high):
    with look():
        ax = new_figure(3, 2).subplots()
    log_axis(ax, np.array([low, high, np.nan, 0.0]))
    first, last = ax.get_ylim()
    ticks = ax.get_yticks()
    assert first < ticks[0] <= low <= high <= ticks[-1] < last
    assert 2 <= len(ticks) <= 10
    # As much room at both ends, for half a mark: 5 % of what lies between the round numbers.
    np.testing.assert_allclose([ticks[0] / first, last / ticks[-1]], (ticks[-1] / ticks[0]) ** 0.05)
    assert all(float(label.get_text()) > 0 for label in ax.get_yticklabels())


def test_redundancies_share_one_scale_and_differences_are_centred():
    table = synthetic.redundancy(7, 3)
    drawing = redundancy_by_head(table, synthetic.geometry(7, 3))
    maps = [ax.collections[0] for ax in drawing.figure.axes[:6]]
    assert len({mesh.get_clim() for mesh in maps[:4]}) == 1
    assert maps[4].get_clim()[0] == -maps[4].get_clim()[1]
    here = {"tensor": "keys", "map": "sigmoid", "layer": 2, "kv_head": 1}
    cosines = [table.where(**here, domain=domain).numbers("r_cos")[0] for domain in ("all", "candidates")]
    assert maps[0].get_array()[1, 2] == pytest.approx(cosines[0])
    assert maps[4].get_array()[1, 2] == pytest.approx(cosines[0] - cosines[1])


@pytest.mark.parametrize("kind", ["sigmoid", "inverse"])
def test_redundancy_uses_the_map_of_the_analysed_method(kind):
    table, geometry = synthetic.redundancy(5, 2), synthetic.geometry(5, 2)
    for row in geometry.where(tensor="keys"):
        same = table.where(tensor="keys", domain="all", map=kind, layer=row["layer"], kv_head=row["kv_head"])
        row["r_euc"] = same.numbers("r_euc")[0]
    drawing = redundancy_by_head(table, geometry, tensor="values")
    assert f"the {kind} map" in drawing.caption
    drawn = drawing.figure.axes[1].collections[0].get_array()
    assert drawn[1, 3] == pytest.approx(table.where(tensor="values", map=kind, layer=3, kv_head=1).numbers("r_euc")[0])
    assert f"method uses {kind}" in lambda_by_map(table, geometry).caption


def test_every_map_has_its_line():
    drawing = lambda_by_map(synthetic.redundancy(5, 2), synthetic.geometry(5, 2))
    assert [text.get_text() for text in drawing.figure.legends[0].get_texts()] == [*synthetic.MAPS, "MixKV's λ"]
    assert [len(ax.lines) for ax in drawing.figure.axes] == [5, 6]
    strokes = [(line.get_linestyle(), line.get_marker()) for line in drawing.figure.axes[1].lines]
    assert len(set(strokes)) == 6, "told apart in grey"


def test_variance_is_measured_against_the_share_of_tokens():
    table = Table("roles", ("sample", "layer", "kv_head", "tensor", "role", "tokens", "variance_share"))
    for tensor in synthetic.TENSORS:
        for role, tokens, share in (("image", 90, 0.6), ("text", 10, 0.4)):
            where = {"sample": "s", "layer": 0, "kv_head": 0, "tensor": tensor, "role": role}
            table.add(**where, tokens=tokens, variance_share=share)
    drawing = variance_by_role(table)
    found = {row["role"]: row["value"] for row in drawing.data.where(tensor="values", kv_head="mean")}
    assert found == {"text": pytest.approx(4.0), "image": pytest.approx(2 / 3)}
    assert "text 10.0 %, image 90.0 %" in drawing.caption


def test_a_prompt_of_one_role_and_equal_vectors_is_drawn():
    table = synthetic.role_table(3, 2)
    table.rows = [row | {"cos_rest": None, "variance_share": None} for row in table if row["role"] == "text"]
    assert variance_by_role(table).data.numbers("value") == []
    assert cosine_by_role(table).data.where(measure="cos_rest").numbers("value") == []
    geometry = synthetic.geometry(3, 2)
    for row in geometry:
        row.update(dict.fromkeys(("dist_mean", "norm_mean", "norm_std", "norm_min", "norm_max"), 0.0))
        row.update(dist_per_norm=None, zero_keys=7)
    for draw in (distance_scale, norm_spread, keys_and_values):
        assert draw(geometry).figure.axes


def test_cosine_with_other_roles_is_a_thin_line():
    ax = cosine_by_role(synthetic.role_table(5, 2)).figure.axes[0]
    within, rest = [line for line in ax.lines if len(line.get_xdata()) == 5][:2]
    assert (within.get_marker(), rest.get_marker()) == ("s", "None")
    assert within.get_linewidth() > rest.get_linewidth()
    assert within.get_linestyle() == rest.get_linestyle()


def test_regions_keep_their_place_in_the_image():
    drawing = image_regions(synthetic.regions(6))
    assert drawing.data.distinct("layers") == ["all layers", "layers 0–1", "layers 2–3", "layers 4–5"]
    first = drawing.figure.axes[1].images[0]
    assert first.get_array()[2, 0] == pytest.approx(1 + 0.1 - 0.03), "bottom left of the early layers"
    assert first.get_clim()[0] + first.get_clim()[1] == pytest.approx(2)
    assert image_regions(Table("regions", synthetic.regions(1).columns)) is None


def test_samples_count_alike_in_regions_however_many_images_they_have():
    table = Table("regions", synthetic.regions(1).columns)
    rows = synthetic.regions(1, ("keys",)).rows
    for number, images in enumerate(FAR):
        for image, far in enumerate(images):
            table.rows += [row | {"sample": f"s{number}", "image": image, "dist_relative": far} for row in rows]
    drawing = image_regions(table)
    means = [np.mean(images) for images in FAR]
    low, high = mean_intervals(np.array([means]))[0]
    row = drawing.data.where(measure="dist_relative", region_row=2, region_col=0).rows[0]
    assert [row[c] for c in ("value", "low", "high", "samples")] == pytest.approx([np.mean(means), low, high, 3])
    assert drawing.figure.axes[0].images[0].get_array()[2, 0] == pytest.approx(np.mean(means))
    reach = f"{max(high - np.mean(means), np.mean(means) - low):.2g}"
    assert f"reach at most {reach} in (a) and 0 in (b) from the mean; image_regions.csv" in drawing.caption
    assert "(7 images of 3 samples, each sample counted once; in" in drawing.caption


def test_regions_without_tokens_are_left_out():
    table = synthetic.regions(2)
    table.rows = [row for row in table if (row["region_row"], row["region_col"]) != (1, 2)]
    cells = image_regions(table).figure.axes[0].images[0].get_array()
    assert np.ma.count_masked(cells) == 1
    assert cells.mask[1, 2]


def test_sinks_are_drawn_named_and_not_removed():
    drawing = sinks_by_layer(synthetic.sinks(7), synthetic.geometry(7, 3))
    drawn = [len(line.get_xdata()) for line in drawing.figure.axes[0].lines]
    assert sum(drawn[:3]) == len(drawing.data.where(measure=None)) == 7 + 2
    assert "position 0 “<|im_start|>” (7 of 7 layers) and position 17" in drawing.caption
    all_positions, without = (line.get_ydata() for line in drawing.figure.axes[2].lines)
    assert without == pytest.approx(all_positions + 0.03)
    shown = drawing.data.where(measure="cos_mean_no_sinks", kv_head="mean")
    assert (shown.numbers("layer"), shown.numbers("value")) == (list(range(7)), pytest.approx(without))
    assert "bands" not in drawing.caption
    assert sinks_by_layer(Table("sinks", synthetic.sinks(1).columns), synthetic.geometry(7, 3)) is None


def test_cosines_without_sinks_have_intervals_over_samples():
    drawing = sinks_by_layer(synthetic.sampled(synthetic.sinks(7), 5), MANY)
    keys = MANY.where(tensor="keys")
    for measure in ("cos_mean", "cos_mean_no_sinks"):
        found = {row["layer"]: row for row in over_samples(keys, ("layer",), (measure,))}
        for row in drawing.data.where(measure=measure, kv_head="mean"):
            wanted = found[row["layer"]]
            assert (row["value"], row["low"], row["high"], row["samples"]) == tuple(
                wanted[c] for c in ("mean", "low", "high", "n")
            )
    assert len(drawing.figure.axes[2].collections) == 2, "a band each"
    assert "without the sinks (bands: 95 % bootstrap intervals over samples)" in drawing.caption


def test_several_samples_give_spearman_means_with_intervals():
    drawing = spearman_by_layer(MANY)
    keys = MANY.where(tensor="keys")
    bars = drawing.data.where(kv_head="bar").numbers("value")
    assert bars == pytest.approx([np.mean(keys.where(layer=i).numbers("spearman")) for i in range(7)])
    assert "(mean over 5 samples)" in drawing.caption
    one = spearman_by_layer(synthetic.geometry(7, 3))
    assert "median" in one.caption


def test_undefined_heads_of_samples_are_counted():
    table = synthetic.sampled(synthetic.undefine(synthetic.geometry(5, 2), (0, 0)), 3)
    assert "3 of 30 heads of samples are undefined and left out of the means" in lambda_by_layer(table).caption


def test_circles_are_heads_and_the_line_their_mean():
    drawing = geometry_by_layer(MANY)
    circles, line = drawing.figure.axes[1].lines[:2]
    keys = MANY.where(tensor="keys")
    assert len(circles.get_ydata()) == 7 * 3
    assert line.get_ydata() == pytest.approx([np.mean(keys.where(layer=i).numbers("dist_mean")) for i in range(7)])


def test_album_draws_every_figure_of_the_studies():
    from ecokv_cli.figures.registry import FIGURES

    names = {name for figures in FIGURES.values() for name in figures}
    known = {name for name in names if name.removesuffix("_values") not in names - {name}}
    drawn = {album.draw(name, (3, 2)).stem.partition("_0_budget")[0].partition("_budget_32")[0] for name in album.EVERY}
    assert drawn == known
