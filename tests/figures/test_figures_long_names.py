"""Long names of methods are folded or numbered, and no words run into each other or off the page."""

from __future__ import annotations

import itertools
import re

import pytest
import synthetic
import synthetic_answers
from album import page
from test_ablation import ablation, drawings
from test_figures_legible import legend_of, words_stand_apart

from ecokv_cli.figures.compare import compare_methods
from ecokv_cli.figures.costs import cost_ratios
from ecokv_cli.figures.evaluation import accuracy_by_budget, accuracy_differences
from ecokv_cli.figures.eviction import kept_by_role, overlap_matrix
from ecokv_cli.figures.explain import kept_over_answer, mass_kept_by_head, region_lost_by_head
from ecokv_cli.figures.fidelity import fidelity_by_budget
from ecokv_cli.figures.overlay import kept_over_image
from ecokv_cli.figures.parts import fold
from ecokv_cli.figures.planes import kept_in_plane
from ecokv_cli.figures.recency import kept_by_age, kept_recent
from ecokv_cli.figures.route import route_profile
from ecokv_cli.figures.rows import Rows
from ecokv_cli.studies.accuracy import accuracy_table, cost_table
from ecokv_cli.studies.compare import compare_tables
from ecokv_cli.studies.tables import Table

LONG = "snapkv+ecokv[alpha=0.5,beta=0.3,avg_domain=candidates]"
ROUTE = "route[0-3=snapkv[window=4],4-=keydiff]"
METHODS = ("snapkv", LONG, "pyramidkv[compat=kvpress,gqa=max]+mixkv", ROUTE, "keydiff")
WIDTHS = pytest.mark.parametrize("width", ["single", "double"])


def profile(layers):
    """A `profile` table whose layers take the methods in turn."""
    table = Table("profile", ("budget", "layer", "method", "error", "samples", "chosen"))
    for layer, (place, method) in itertools.product(range(layers), enumerate(METHODS)):
        chosen = layer % len(METHODS) == place
        table.add(budget=64, layer=layer, method=method, error=0.2 + 0.1 * (not chosen), samples=3, chosen=chosen)
    return table


def explained_with_long_names():
    """A sample looked at with methods of long names."""
    found = synthetic_answers.explanation()
    longer = dict(zip(synthetic.METHODS[1:4], (LONG, ROUTE, "snapkv"), strict=True))
    for row in itertools.chain(found.fidelity, found.region, found.positions, found.answers):
        row["method"] = longer.get(row["method"], row["method"])
    return found


def of_evaluate_and_explain(width):
    answers = synthetic_answers.answers(("snapkv", LONG, ROUTE, "snapkv+mixkv[window=4]"), (2048, 64, 16), samples=5)
    accuracy = accuracy_table(answers, dict.fromkeys((LONG, "snapkv+mixkv[window=4]"), ("snapkv",)))
    explained = explained_with_long_names()
    return [
        accuracy_by_budget(accuracy, width),
        accuracy_by_budget(Table("accuracy", accuracy.columns, accuracy.where(budget=64).rows), width),
        accuracy_differences(accuracy, width), cost_ratios(cost_table(answers), width),
        *kept_over_answer(explained.positions, explained, width),
        *region_lost_by_head(explained.region, width), *mass_kept_by_head(explained.fidelity, width),
    ]  # fmt: skip


def of_evict_compare_and_route(width):
    positions, fidelity = synthetic.positions(METHODS), synthetic.fidelity(3, 2, METHODS, (16, 64))
    by, measures = ("method", "budget"), ("mass", "output_error")
    return [
        fidelity_by_budget(fidelity, width), fidelity_by_budget(fidelity.where(budget=16), width),
        kept_by_age(synthetic.recency(METHODS, (16, 64)), width), kept_recent(positions, width),
        kept_by_role(synthetic.roles(METHODS, (16, 64)), width),
        overlap_matrix(synthetic.overlap(METHODS, (16, 64)), width),
        kept_in_plane(synthetic.plane(), positions, budget=32, width=width),
        kept_over_image(positions, page(synthetic.Prompt()), budget=32, width=width),
        compare_methods(compare_tables(fidelity, fidelity, by, measures, "methods_compared"), ("a", "b"), width),
        route_profile(profile(13), width),
    ]  # fmt: skip


@WIDTHS
@pytest.mark.parametrize(("made", "count"), [(of_evaluate_and_explain, 7), (of_evict_compare_and_route, 10)])
def test_words_stand_apart(made, count, width):
    drawn = made(width)
    assert len(drawn) == count
    for each in drawn:
        words_stand_apart(each.figure)
        assert each.figure.get_figheight() < 9


@WIDTHS
def test_words_of_ablations_stand_apart(width):
    for drawing in drawings(ablation(), width).values():
        words_stand_apart(drawing.figure)


@pytest.mark.parametrize(("inches", "folded"), [
    (0.56, "snapkv\n+ecokv\n[alpha=\n0.5,\nbeta=0.3]\n− snapkv,\nwindow 4"),
    (0.75, "snapkv+ecokv\n[alpha=0.5,\nbeta=0.3]\n− snapkv,\nwindow 4"),
    (1.6, "snapkv+ecokv[alpha=0.5,\nbeta=0.3] − snapkv,\nwindow 4"),
    (4.0, "snapkv+ecokv[alpha=0.5,beta=0.3] − snapkv, window 4"),
])  # fmt: skip
def test_where_names_are_folded(inches, folded):
    assert fold("snapkv+ecokv[alpha=0.5,beta=0.3] − snapkv, window 4", inches) == folded


def test_words_are_folded_between_each_other():
    assert fold("attention mass kept", 0.9) == "attention mass\nkept"


def test_rows_are_as_tall_as_their_names():
    rows = Rows.of(["snapkv", LONG, "", "keydiff"], 3.3)
    assert rows.names[1].count("\n") == 2
    assert rows.places[0] == 0
    first, second, third = (b - a for a, b in itertools.pairwise(rows.places))
    assert first == pytest.approx(second)
    assert first > 1.5
    assert third == pytest.approx(1)
    assert rows.height == pytest.approx(4 * 0.17 + 2 * 0.125)
    short = Rows.of(["a", "b", "c"], 3.3)
    assert short.places == (0, 1, 2)
    assert short.height == pytest.approx(3 * 0.17)


@WIDTHS
def test_matrices_with_long_names_have_numbers_and_a_key(width):
    drawing = overlap_matrix(synthetic.overlap(METHODS, (16,)), width)
    ax = drawing.figure.axes[0]
    for labels in (ax.get_xticklabels(), ax.get_yticklabels()):
        assert [label.get_text() for label in labels] == ["1", "2", "3", "4", "5"]
    key = [re.sub(r"\s+", " ", text.replace(",\n", ",")) for text in legend_of(drawing.figure)]
    assert key == [f"{1 + i} {method}" for i, method in enumerate(METHODS)]
    assert "numbered as in the list above" in drawing.caption
    short = overlap_matrix(synthetic.overlap(synthetic.METHODS, (16,)), width)
    assert not short.figure.legends
    assert "numbered" not in short.caption


def test_matrices_of_many_budgets_fit_on_a_page():
    methods = tuple(f"snapkv+ecokv[alpha=0.{a}]" for a in range(5))
    assert overlap_matrix(synthetic.overlap(methods, (16, 32, 48, 64)), "single").figure.get_figheight() <= 9
