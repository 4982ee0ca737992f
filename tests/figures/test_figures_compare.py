"""Two runs on shared axes: both lines, the difference between them, and its interval."""

from __future__ import annotations

import re

import numpy as np
import pytest
import synthetic
from test_figures_print import is_fit_for_print

from ecokv_cli.figures.compare import LAYER_MEASURES, compare_layers, compare_methods
from ecokv_cli.figures.compare_report import write_compare_report
from ecokv_cli.figures.style import encode
from ecokv_cli.studies.compare import compare_tables
from ecokv_cli.studies.tables import Table

LABELS = ("qwen", "llava")


def scaled(table, factor):
    """The table with every decimal number times `factor`."""
    rows = [{c: v * factor if isinstance(v, float) else v for c, v in row.items()} for row in table]
    return Table(table.name, table.columns, rows)


def layers(count=7, samples=5, other=7):
    first = synthetic.sampled(synthetic.geometry(count, 3).where(tensor="keys"), samples)
    second = synthetic.geometry(other, 3).where(tensor="keys")
    second = scaled(synthetic.sampled(second, samples), 1.25)
    return compare_tables(first, second, ("layer",), LAYER_MEASURES, "compare_layers")


def methods(budgets=(16, 64), samples=3):
    first = synthetic.sampled(synthetic.fidelity(3, 2, budgets=budgets), samples)
    return compare_tables(first, scaled(first, 0.9), ("method", "budget"), ("mass", "output_error"), "compare_methods")


def test_lines_are_both_runs_and_the_lower_panel_their_difference():
    comparison = layers()
    drawing = compare_layers(comparison, LABELS, "double", ("cos_mean",))
    upper, lower = drawing.figure.axes
    first, second = (line.get_ydata() for line in upper.lines)
    assert second == pytest.approx(1.25 * first)
    difference = lower.lines[0].get_ydata()
    assert difference == pytest.approx(0.25 * first)
    rows = [row for row in comparison.where(measure="cos_mean") if row["layer"] is not None]
    edges = lower.collections[0].get_paths()[0].vertices[:, 1]
    assert edges.min() == pytest.approx(min(row["low"] for row in rows))
    assert edges.max() == pytest.approx(max(row["high"] for row in rows))
    assert [text.get_text() for text in drawing.figure.legends[0].get_texts()] == list(LABELS)
    assert "llava minus qwen, taken per sample" in drawing.caption
    assert "Samples: 5 and 5." in drawing.caption


def test_the_difference_over_all_layers_stands_apart():
    comparison = layers()
    lower = compare_layers(comparison, LABELS, "double", ("r_euc",)).figure.axes[1]
    mark = next(line for line in lower.lines if line.get_marker() == "D")
    assert mark.get_xdata()[0] > 6
    assert mark.get_ydata() == comparison.where(measure="r_euc", layer=None).numbers("difference")


def test_layers_of_one_run_alone_have_no_difference():
    upper, lower = compare_layers(layers(7, 3, other=5), LABELS, "double", ("cos_mean",)).figure.axes
    assert np.isfinite(upper.lines[0].get_ydata()).all()
    assert np.isnan(upper.lines[1].get_ydata()).tolist() == [False] * 5 + [True] * 2
    assert np.isnan(lower.lines[0].get_ydata()).tolist() == [False] * 5 + [True] * 2


@pytest.mark.parametrize(
    "draw", [lambda: compare_layers(layers(samples=1), LABELS), lambda: compare_methods(methods(samples=1), LABELS)]
)
def test_single_samples_have_no_interval_and_the_caption_says_so(draw):
    drawing = draw()
    assert "without an interval" in drawing.caption
    assert "leaves out 0" not in drawing.caption
    assert drawing.data.numbers("low") == []


def test_every_method_and_budget_has_a_line_of_its_own():
    comparison = methods()
    drawing = compare_methods(comparison, LABELS)
    both, apart = drawing.figure.axes[:2]
    names = [label.get_text() for label in both.get_yticklabels()]
    assert names == [m for m in synthetic.METHODS if m != "full"] * 2
    assert [text.get_text() for text in both.texts if "budget" in text.get_text()] == ["budget 16", "budget 64"]
    row = comparison.where(method="keydiff", budget=64, measure="mass").rows[0]
    at = both.get_yticks()[len(names) // 2 + names[:6].index("keydiff")]
    marks = {line.get_xdata()[0] for line in both.lines if line.get_ydata()[0] == at}
    assert marks == {row["first"], row["second"]}
    assert [line.get_xdata()[0] for line in apart.lines if line.get_ydata()[0] == at] == [row["difference"]]
    assert "full" not in drawing.data.distinct("method")


def test_nothing_to_compare():
    assert compare_layers(layers(), LABELS, measures=("nothing",)) is None
    assert compare_methods(methods(), LABELS, measures=("nothing",)) is None


@pytest.mark.parametrize(("width", "inches"), [("single", 3.3), ("double", 6.9)])
@pytest.mark.parametrize("count", [1, 7, 36])
def test_layers_fit_for_print(count, width, inches):
    drawing = compare_layers(layers(count, 3, count), LABELS, width)
    is_fit_for_print(drawing.figure, inches)
    assert encode(drawing.figure, "svg") == encode(drawing.figure, "svg")


@pytest.mark.parametrize(("width", "inches"), [("single", 3.3), ("double", 6.9)])
@pytest.mark.parametrize("budgets", [(64,), (16, 64, 128)])
def test_methods_fit_for_print(budgets, width, inches):
    figure = compare_methods(methods(budgets), LABELS, width).figure
    assert figure.get_figwidth() == inches
    assert 0.9 < figure.get_figheight() < 9
    box = figure.get_tightbbox()
    assert box.x0 > -0.01
    assert box.x1 < inches + 0.01
    for ax in figure.axes:
        ticks = [
            label.get_window_extent() for label in (*ax.get_xticklabels(), *ax.get_yticklabels()) if label.get_text()
        ]
        assert not any(a.overlaps(b) for i, a in enumerate(ticks) for b in ticks[i + 1 :])


def test_the_report_has_a_chapter_per_table_with_its_figure(tmp_path):
    tables = layers(), methods()
    tables[0].name, tables[1].name = "layers_compared", "methods_compared"
    drawings = compare_layers(tables[0], LABELS), compare_methods(tables[1], LABELS)
    summary = {
        "first": "qwen", "second": "llava", "settings": {"seed": 7}, "versions": {"torch": "2"},
        "command": "ecokv compare a b",
        "runs": {"same": {"KV heads": 2, "revision": None}, "different": {"stored in": ["float32", "bfloat16"]}},
        "samples": {
            "layers_compared": {"first": 7, "second": 5, "shared": 3, "changed": 1},
            "methods_compared": {"first": 7, "second": 1, "shared": 1, "changed": 0},
        },
    }  # fmt: skip
    page = write_compare_report(tmp_path, tables, drawings, summary).read_text(encoding="utf-8")
    assert re.findall("<h2>(.+)</h2>", page)[1:4] == ["The two runs", "By layer", "By method"]
    assert "The same in both: KV heads 2; revision –." in page
    assert "Paired over 3 shared samples: the first run has 7 samples, the second 5;" in page
    assert "Of these 1 have another prompt" in page
    assert "Not paired: the first run has 7 samples, the second 1, and a single sample has the same name" in page
    assert re.findall("<h3>(.+)</h3>", page) == ["Two runs by layer", "Two runs by method"]
    assert "differences are second minus first" in page
    assert all(words in page for words in ("ecokv compare a b", 'href="layers_compared.csv"', "all layers"))
    rows = re.findall("<tbody>(.+?)</tbody>", page, re.DOTALL)
    assert re.findall("<td>(.*?)</td>", rows[0]) == ["stored in", "float32", "bfloat16"]
    assert rows[1].count("<tr>") == len(LAYER_MEASURES)
    assert rows[2].count("<tr>") == len(tables[1])
