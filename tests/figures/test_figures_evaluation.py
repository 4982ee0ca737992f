"""Figures of evaluations and of explained samples show the numbers of their tables, and what is matched."""

import numpy as np
import pytest
import synthetic_answers
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from ecokv_cli.figures.costs import cost_ratios
from ecokv_cli.figures.evaluation import accuracy_by_budget, accuracy_differences, windowless
from ecokv_cli.figures.explain import kept_over_answer, mass_kept_by_head, region_lost_by_head
from ecokv_cli.figures.gallery import draw_explanation, undrawn
from ecokv_cli.figures.registry import FIGURES, parse_figures
from ecokv_cli.studies.accuracy import accuracy_table


@pytest.mark.parametrize(("name", "shown"), [
    ("snapkv", "snapkv"),
    ("snapkv[window=4]", "snapkv"),
    ("snapkv+ecokv[window=32,alpha=0.5]", "snapkv+ecokv[alpha=0.5]"),
    ("adakv[floor=0.1,window=8]", "adakv[floor=0.1]"),
    ("snapkv[obs_window=8,keep_window=4]", "snapkv[obs_window=8,keep_window=4]"),
    ("route[0-3=snapkv[window=4],4-=keydiff]", "route[0-3=snapkv[window=4],4-=keydiff]"),
])  # fmt: skip
def test_names_without_their_window(name, shown):
    assert windowless(name) == shown


def lines(ax, marker=None):
    return [line for line in ax.lines if line.get_marker() not in {"None", ""} and marker in {None, line.get_marker()}]


def test_methods_of_one_window_stand_in_one_panel():
    accuracy = synthetic_answers.accuracy()
    drawing = accuracy_by_budget(accuracy)
    assert [ax.get_title() for ax in drawing.figure.axes] == ["window 32", "window 4"]
    for ax, window, count in zip(drawing.figure.axes, (32, 4), (3, 2), strict=True):
        found = sorted(tuple(np.round(line.get_ydata(), 9)) for line in lines(ax))
        rows = accuracy.where(window=window)
        wanted = [tuple(np.round(rows.where(method=m).numbers("mean")[::-1], 9)) for m in rows.distinct("method")]
        assert found == sorted(wanted)
        assert len(found) == count
    assert "29 samples" in drawing.caption
    assert "matched" in drawing.caption


def test_a_single_budget_gives_a_row_per_method():
    accuracy = synthetic_answers.accuracy(budgets=(32,))
    drawing = accuracy_by_budget(accuracy, "single")
    for ax, window in zip(drawing.figure.axes, (32, 4), strict=True):
        found = [float(line.get_xdata()[0]) for line in lines(ax)]
        assert sorted(found) == pytest.approx(sorted(accuracy.where(window=window).numbers("mean")))
    assert [t.get_text() for t in drawing.figure.axes[0].get_yticklabels()] == ["snapkv", "snapkv+ecokv", "adakv"]
    assert "at a budget of 32 tokens" in drawing.caption


def test_differences_are_those_to_hosts_with_marks_hollow_where_windows_differ():
    answers = synthetic_answers.answers(methods=("snapkv", "snapkv+ecokv", "snapkv+ecokv[window=32]"))
    accuracy = accuracy_table(answers, dict.fromkeys(("snapkv+ecokv", "snapkv+ecokv[window=32]"), ("snapkv",)))
    drawing = accuracy_differences(accuracy)
    assert [ax.get_title() for ax in drawing.figure.axes] == ["budget 64", "budget 32", "budget 16"]
    first = drawing.figure.axes[0]
    names = [label.get_text() for label in first.get_yticklabels()]
    assert names == ["snapkv+ecokv, window 4 − snapkv, window 32", "snapkv+ecokv − snapkv, window 32"]
    marks = lines(first)
    assert [to_hex(mark.get_markerfacecolor()) for mark in marks] == ["#ffffff", "#0072b2"]
    rows = [row for row in accuracy if row["budget"] == 64 and row["against"] != "full"]
    assert [float(mark.get_xdata()[0]) for mark in marks] == pytest.approx([row["difference"] for row in rows])
    assert len(drawing.data) == 6


def test_without_boosted_methods_differences_are_those_to_the_full_cache():
    drawing = accuracy_differences(synthetic_answers.accuracy(methods=("snapkv", "adakv")))
    assert set(drawing.data.distinct("against")) == {"full"}
    assert "method and the full cache" in drawing.caption
    assert accuracy_differences(synthetic_answers.accuracy(methods=("snapkv",), samples=1)) is None
    assert accuracy_by_budget(synthetic_answers.accuracy(methods=())) is None
    assert cost_ratios(synthetic_answers.cost(methods=())) is None


def test_costs_show_the_ledger_beside_the_cache():
    cost = synthetic_answers.cost()
    cache, peak, time, scoring = (ax for ax in cost_ratios(cost).figure.axes)
    evicted = [row for row in cost if row["budget"] is not None]
    for ax, column, marker in (
        (cache, "cache_ratio", "o"), (cache, "ledger_ratio", "|"), (peak, "peak_ratio", "o"),
        (time, "decode_ratio", "o"), (scoring, "scoring_share", "o"),
    ):  # fmt: skip
        found = [float(line.get_xdata()[0]) for line in lines(ax, marker)]
        assert found == pytest.approx([row[column] for row in evicted]), column
    assert "counts no memory" in cost_ratios(cost).caption


def test_boxes_stand_where_they_are_on_the_image():
    explained = synthetic_answers.explanation()
    (drawing,) = kept_over_answer(explained.positions, explained)
    pictures = [ax for ax in drawing.figure.axes if ax.images]
    assert len(pictures) == 6
    for ax in pictures:
        value, key = (patch for patch in ax.patches if isinstance(patch, Rectangle))
        # Cells 3 and 4, and 0 and 1, of the third row.
        assert (*value.get_xy(), value.get_width(), value.get_height()) == pytest.approx((3, 2, 2, 1))
        assert (*key.get_xy(), key.get_width(), key.get_height()) == pytest.approx((0, 2, 2, 1))
        assert (value.get_linestyle(), key.get_linestyle()) == ("solid", (0, (1, 1)))
    assert "dotted boxes" in drawing.caption
    assert drawing.stem == "kept_over_answer_0_budget_32"


def test_head_maps_begin_with_what_there_is_to_lose():
    explained = synthetic_answers.explanation(7, 3)
    (lost,) = region_lost_by_head(explained.region)
    panels = [ax for ax in lost.figure.axes if ax.get_title()]
    titles = ["full cache: all there is", "random, score 0", "snapkv, score 1", "keydiff, score 1"]
    assert [ax.get_title() for ax in panels] == titles
    inside = explained.region.where(region="answer", budget=32)
    for ax, method, column in zip(panels, ("random", "random", "snapkv"), ("attention", "lost", "lost"), strict=False):
        cells = np.asarray(ax.collections[0].get_array()).reshape(3, 7)
        for row in inside.where(method=method):
            assert cells[row["kv_head"], row["layer"]] == pytest.approx(row[column])
    (mass,) = mass_kept_by_head(explained.fidelity)
    cells = np.asarray(mass.figure.axes[0].collections[0].get_array()).reshape(3, 7)
    assert cells.T.ravel() == pytest.approx(explained.fidelity.where(method="random").numbers("mass"))


def test_what_needs_boxes_is_not_drawn_without():
    explained = synthetic_answers.explanation()
    explained.region.rows.clear()
    chosen = parse_figures("all", "explain")
    assert chosen == tuple(FIGURES["explain"])
    drawings = draw_explanation(explained, "double", ("region_lost_by_head", "mass_kept_by_head"))
    assert [drawing.name for drawing in drawings] == ["mass_kept_by_head"]
    assert undrawn("explain", chosen[1:], drawings) == [
        "region_lost_by_head is not drawn: it needs boxes, and a method that evicts"
    ]
