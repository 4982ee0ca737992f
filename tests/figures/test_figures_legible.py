"""What a reader needs beside the numbers: names of all lines, room around words, no mark cut off, columns explained."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import synthetic
from album import EVERY
from column_docs import TEXT, names_in
from matplotlib.axis import Axis
from matplotlib.text import Text
from test_ablation import ablation, drawings

from ecokv_cli.figures.compare import LAYER_MEASURES, compare_layers, compare_methods
from ecokv_cli.figures.parts import WIDE
from ecokv_cli.figures.planes import kept_in_plane
from ecokv_cli.figures.redundancy import spearman_by_layer
from ecokv_cli.figures.roles import MARKS
from ecokv_cli.figures.sinks import sinks_by_layer
from ecokv_cli.figures.style import NARROWEST
from ecokv_cli.studies.compare import compare_tables
from ecokv_cli.studies.tables import Table


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def boxes_of_words(figure):
    """Where every word that is drawn stands; ticks beyond the ends of their axis are not drawn."""
    unseen = set()
    for axis in figure.findobj(Axis):
        low, high = sorted(axis.get_view_interval())
        ticks = [tick for tick in axis.get_major_ticks() if not low - 1e-9 <= tick.get_loc() <= high + 1e-9]
        unseen |= {label for tick in ticks for label in (tick.label1, tick.label2)}
    words = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible() and text not in unseen]
    words = [text for text in words if text.axes is None or text.axes.get_visible()]
    return {text: text.get_window_extent() for text in words}


def words_stand_apart(figure):
    figure.draw_without_rendering()  # a file may have been made of it, at another resolution
    page = figure.bbox.padded(figure.dpi / 100)
    boxes = boxes_of_words(figure)
    assert len(boxes) > 5
    for text, box in boxes.items():
        assert page.x0 < box.x0, text
        assert page.y0 < box.y0, text
        assert box.x1 < page.x1, text
        assert box.y1 < page.y1, text
    for (one, here), (other, there) in itertools.combinations(boxes.items(), 2):
        assert not here.overlaps(there), (one, other)


@pytest.mark.parametrize("name", EVERY)
def test_columns_beside_figures_are_explained(drawing, name):
    assert set(drawing(name).data.columns) - names_in(TEXT) == set()


@pytest.mark.parametrize("width", [NARROWEST, "single", WIDE, 5.5, "double"])
def test_words_stand_apart(drawing, width):
    for name in EVERY:
        words_stand_apart(drawing(name, width=width).figure)


@pytest.mark.parametrize("width", [NARROWEST, WIDE])
def test_words_of_comparisons_and_ablations_stand_apart(width):
    first, second = (synthetic.sampled(synthetic.geometry(7, 3).where(tensor="keys"), n) for n in (3, 5))
    both = compare_tables(first, second, ("layer",), LAYER_MEASURES, "c")
    words_stand_apart(compare_layers(both, ("a", "b"), width).figure)
    first, second = (synthetic.sampled(synthetic.fidelity(3, 2, budgets=(16, 64)), n) for n in (3, 5))
    both = compare_tables(first, second, ("method", "budget"), ("mass", "output_error"), "c")
    words_stand_apart(compare_methods(both, ("a", "b"), width).figure)
    for each in drawings(ablation((64, 32)), width).values():
        words_stand_apart(each.figure)


def test_legends_name_thin_lines_and_bands(drawing):
    assert legend_of(drawing("within").figure)[-2:] == ["within the role", "with the rest"]
    assert legend_of(drawing("variance").figure) == ["text", "image", "special"]
    assert "95 % interval" not in legend_of(drawing("geometry").figure)
    assert legend_of(drawing("geometry", samples=3).figure)[-1] == "95 % interval"
    norms = ["mean", "± 1 std", "shortest, longest"]
    assert legend_of(drawing("norms").figure) == norms
    assert legend_of(drawing("norms", samples=3).figure) == [*norms[:2], "95 % interval", norms[2]]


@pytest.mark.parametrize("width", ["single", "double"])
@pytest.mark.parametrize("option", ["", "[window=8]"])
def test_titles_of_a_lower_row_stand_clear_of_the_row_above(width, option):
    methods = tuple(name + option for name in ("snapkv", "keydiff", "snapkv+mixkv", "oracle", "random", "streaming"))
    positions = synthetic.positions(synthetic.METHODS[1:])
    renamed = dict(zip(positions.distinct("method"), methods, strict=True))
    rows = [row | {"method": renamed[row["method"]]} for row in positions]
    positions = Table("positions", positions.columns, rows)
    drawing = kept_in_plane(synthetic.plane(), positions, budget=32, width=width)
    axes = [ax for ax in drawing.figure.axes if ax.get_visible()]
    assert len(axes) == len(methods)
    for ax in axes:
        title = ax.title.get_window_extent()
        assert not any(title.overlaps(other.get_window_extent()) for other in axes if other is not ax)


def test_the_mark_of_a_correlation_at_the_end_of_the_scale_is_whole():
    table = synthetic.geometry(3, 2)
    for row in table:
        row["spearman"] = None if row["spearman"] is None else 0.7
    lower = spearman_by_layer(table).figure.axes[1]
    top = lower.transData.transform((0, 0.7))[1]
    assert lower.get_window_extent().y1 - top > 300 / 72 * 2.4 / 2


@pytest.mark.parametrize("width", [NARROWEST, "double"])
def test_marks_of_sinks_at_the_ends_of_their_axes_are_whole(width):
    table = synthetic.sinks(4)
    for row in table:
        row |= {"attention": 10.0 ** (row["layer"] % 3), "key_norm_relative": 0.5 if row["layer"] else 5.0}
    figure = sinks_by_layer(table, synthetic.geometry(4, 2), width).figure
    half = max(1.2 * mark.size + mark.line for mark in MARKS.values()) / 2 * figure.dpi / 72
    for ax in figure.axes[:2]:
        box = ax.get_window_extent()
        for line in ax.lines:
            for height in ax.transData.transform(line.get_xydata())[:, 1] if line.get_linestyle() == "None" else ():
                assert box.y0 + half < height < box.y1 - half


def test_methods_have_lines_at_the_budgets_they_were_run_at_alone():
    tables = [synthetic.fidelity(3, 2, ("snapkv", method), budgets=(16, 64)) for method in ("keydiff", "oracle")]
    rows = [row for row in tables[1] if row["budget"] == 64]
    second = Table(tables[1].name, tables[1].columns, rows)
    comparison = compare_tables(tables[0], second, ("method", "budget"), ("mass", "output_error"), "methods_compared")
    drawing = compare_methods(comparison, ("a", "b"))
    both = drawing.figure.axes[0]
    names = [label.get_text() for label in both.get_yticklabels()]
    assert names == ["snapkv", "keydiff", "snapkv", "keydiff", "oracle"]
    assert np.diff(both.get_yticks()).tolist() == [1, 2, 1, 1]
    alone = Table("c", comparison.columns, [row for row in comparison if row["method"] == "oracle"])
    assert "empty, as no method is in both runs" in compare_methods(alone, ("a", "b")).caption
