"""Figures of budgets that are shares of the prompt: what they say, in which order, under which names."""

import numpy as np
import pytest
import synthetic
import synthetic_answers
from album import page

from ecokv_cli.figures.costs import cost_ratios
from ecokv_cli.figures.evaluation import accuracy_by_budget, accuracy_differences
from ecokv_cli.figures.eviction import kept_by_role, overlap_matrix
from ecokv_cli.figures.explain import mass_kept_by_head, region_lost_by_head
from ecokv_cli.figures.fidelity import fidelity_by_budget
from ecokv_cli.figures.overlay import kept_over_image
from ecokv_cli.figures.recency import kept_by_age
from ecokv_cli.figures.report import Section, TableView, write_report
from ecokv_cli.studies.tables import Table

METHODS = ("full", "snapkv", "keydiff")


def ticks(ax):
    return [label.get_text() for label in ax.xaxis.get_ticklabels()]


def marks(ax):
    """x and y of every method's line that has marks."""
    return [line.get_xydata() for line in ax.lines if line.get_marker() not in {"None", ""}]


def test_shares_alone_have_an_axis_of_shares():
    drawing = fidelity_by_budget(synthetic.fidelity(3, 2, METHODS, (0.125, 0.5)))
    ax = drawing.figure.axes[0]
    assert (ticks(ax), ax.get_xlabel()) == (["12.5 %", "50 %"], "budget (share of the prompt)")
    assert ax.get_xticks().tolist() == [0.125, 0.5]
    assert "against the budget (log scale), on held-out" in drawing.caption


def test_a_single_share_is_said_in_words():
    fidelity = synthetic.fidelity(3, 2, METHODS, (0.25,))
    assert "at a budget of 25 % of the prompt, on held-out" in fidelity_by_budget(fidelity).caption
    accuracy = accuracy_by_budget(synthetic_answers.accuracy(budgets=(0.25,)))
    assert "decoded on evicted caches at a budget of 25 % of the prompt; bars" in accuracy.caption
    kept = kept_by_age(synthetic.recency(METHODS, (0.25,)))
    assert "that each method keeps, at a budget of 25 % of the prompt, by age" in kept.caption


def test_tokens_and_shares_stand_in_even_steps_by_what_is_kept():
    # Of 165 tokens 5 % are 8 and 25 % are 41.
    table = synthetic.fidelity(3, 2, METHODS, (64, 32, 0.25, 0.05))
    drawing = fidelity_by_budget(table)
    ax = drawing.figure.axes[1]
    assert ticks(ax) == ["5 %", "32", "25 %", "64"]
    assert np.diff(np.log2(ax.get_xticks())).tolist() == [1, 1, 1]
    assert ax.get_xlabel().replace("\n", " ") == "budget (in order of tokens kept)"
    assert "in even steps, ordered by the tokens kept; a percentage is a share of each prompt" in drawing.caption
    errors = [table.where(method="keydiff", budget=b).numbers("output_error") for b in (0.05, 32, 0.25, 64)]
    assert any(line[:, 1] == pytest.approx([np.mean(each) for each in errors]) for line in marks(ax))


def test_accuracy_has_the_same_axis():
    # Of 211 tokens 10 % are 21.
    accuracy = synthetic_answers.accuracy(methods=("snapkv", "adakv"), budgets=(64, 16, 0.1))
    drawing = accuracy_by_budget(accuracy)
    (ax,) = drawing.figure.axes
    assert ticks(ax) == ["16", "10 %", "64"]
    means = [accuracy.where(method="adakv", budget=budget).rows[0]["mean"] for budget in (16, 0.1, 64)]
    assert any(line[:, 1] == pytest.approx(means) for line in marks(ax))
    titles = [panel.get_title() for panel in accuracy_differences(accuracy).figure.axes]
    assert titles == ["budget 64", "budget 16", "budget 10 %"]
    cost = cost_ratios(synthetic_answers.cost(methods=("snapkv",), budgets=(64, 0.1)))
    assert [text.get_text() for text in cost.figure.legends[0].get_texts()] == [
        "budget 64",
        "budget 10 %",
        "by the ledger",
    ]


def test_panels_are_headed_by_what_was_asked():
    for drawing in (
        kept_by_role(synthetic.roles(METHODS, (32, 0.25)), "double"),
        overlap_matrix(synthetic.overlap(METHODS, (32, 0.25))),
    ):
        assert [ax.get_title() for ax in drawing.figure.axes[:2]] == ["budget 25 %", "budget 32"]


def test_names_of_files_have_no_second_dot():
    drawing = kept_over_image(synthetic.positions(METHODS, 0.25), page(synthetic.Prompt()), budget=0.25)
    assert drawing.stem == "kept_over_image_0_budget_0_25"
    assert drawing.title == "Kept image tokens, budget 25 %"
    assert "that each method keeps at a budget of 25 % of the prompt, drawn over the image" in drawing.caption


def test_heads_of_an_explained_sample_are_ranked_at_the_budget_of_the_fewest_tokens():
    explained = synthetic_answers.explanation(3, 2, budget=64)
    # Half of 165 tokens are more than 64, though 0.5 is the smaller number.
    for table in (explained.fidelity, explained.region):
        table.rows += [row | {"budget": 0.5} for row in table if row["budget"]]
    assert explained.heads.distinct("budget") == [64]
    for drawings, words in (
        (region_lost_by_head(explained.region), "loses of it at a budget of 50 % of the prompt, in attention"),
        (mass_kept_by_head(explained.fidelity), "keeps at a budget of 50 % of the prompt, by layer"),
    ):
        assert [drawing.stem.partition("_budget_")[2] for drawing in drawings] == ["0_5", "64"]
        assert words in drawings[0].caption


def test_the_report_shows_a_share_as_it_was_asked(tmp_path):
    table = Table("methods", ("budget", "mass"))
    for budget in (64, 0.0625, None):
        table.add(budget=budget, mass=0.5)
    view = TableView(table, "caption", (), 9)
    path = write_report(
        tmp_path / "report.html", "t", [Section("s", tables=[view])], summary=[], settings={}, versions={}, command=""
    )
    page_text = path.read_text(encoding="utf-8")
    assert all(f">{shown}</td>" in page_text for shown in ("64", "0.0625", "–", "0.5000"))
