"""Figures of ablations: marks are the numbers of the tables, and all are fit for print."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.patches import Rectangle
from test_figures_print import is_fit_for_print

from ecokv_cli.eviction.spec import parse_single
from ecokv_cli.figures.ablation import draw_ablation
from ecokv_cli.figures.ablation_report import write_ablation_report
from ecokv_cli.figures.style import encode
from ecokv_cli.studies.ablate import Ranges, plan, scored, tables_of
from ecokv_cli.studies.accuracy import accuracy_table
from ecokv_cli.studies.evaluate import ANSWERS
from ecokv_cli.studies.tables import Table

SAMPLES = 11


def ablation(budgets=(64,), ranges=None, only=(), samples=SAMPLES, same=False):
    """Tables of an ablation of drawn scores; `same`: every arm is right everywhere."""
    drawn = np.random.default_rng(7)
    table = Table("answers", ANSWERS)
    experiments = plan(only, parse_single("snapkv+ecokv"), ranges or Ranges())
    arms = {(m.name, b): m for e in experiments for m in e.methods for b in budgets}
    for name, budget in [("full", None), *arms]:
        for number in range(samples):
            score = 1.0 if same else float(drawn.random() < 0.7)
            row = {"model": "m", "sample": f"s{number}", "method": name, "budget": budget, "window": 4, "kept": 1.0}
            table.add(**dict.fromkeys(ANSWERS) | row | {"score": score, "prediction": str(score)})
    full = accuracy_table(table.where(method="full"), {})
    full.name = "full_cache"
    return [full, *(t for e in experiments for t in tables_of([scored(table, e, b) for b in budgets]))]


def drawings(tables, width="double"):
    return {drawing.stem: drawing for drawing in draw_ablation(tables, width)}


def named(tables, name):
    return next(table for table in tables if table.name == name)


def test_lines_are_the_cells_and_dots_the_effects():
    tables = ablation(only=["factorial"])
    drawing = drawings(tables)["ablation_factorial"]
    cells, effects = named(tables, "factorial"), named(tables, "factorial_effects")
    left, right = drawing.figure.axes
    plain, boosted, full = left.lines
    assert plain.get_ydata() == pytest.approx(cells.where(booster="none").numbers("mean"))
    assert boosted.get_ydata() == pytest.approx(cells.where(booster="ecokv").numbers("mean"))
    assert full.get_ydata()[0] == pytest.approx(named(tables, "full_cache").rows[0]["mean"])
    bars = [line.get_segments()[0] for line in right.collections]
    for (first, last), row in zip(bars, effects, strict=True):
        assert (first[0], last[0]) == pytest.approx((row["difference_low"], row["difference_high"]))
    dots = [line for line in right.lines if line.get_marker() == "D"]
    assert [dot.get_xdata()[0] for dot in dots] == pytest.approx(effects.numbers("difference"))
    # Main effects and interaction are told apart from simple effects without colour.
    assert [dot.get_markerfacecolor() == "white" for dot in dots] == [False] * 3 + [True] * 5
    labels = [label.get_text() for label in right.get_yticklabels()]
    assert labels[:3] == ["window 32 → 4", "+ecokv", "interaction"]
    assert drawing.data is effects


def test_the_grid_shows_means_wins_and_frames_the_optimum_and_the_method_as_it_is():
    tables = ablation(only=["grid"], ranges=Ranges(alphas=(0.0, 0.8, 1.0), betas=(0.2, 0.6)))
    cells, (best,) = named(tables, "grid"), named(tables, "grid_optimum")
    drawing = drawings(tables)["ablation_grid"]
    panels = [ax for ax in drawing.figure.axes if ax.get_xlabel() == "α"]
    for ax, column in zip(panels, ("mean", "wins"), strict=True):
        shown = ax.collections[0].get_array()
        expected = [[cells.where(alpha=a, beta=b).rows[0][column] for a in (0.0, 0.8, 1.0)] for b in (0.2, 0.6)]
        assert np.asarray(shown).reshape(2, 3) == pytest.approx(np.array(expected))
        assert len(ax.texts) == 6 + 1  # a number in each cell, and the panel's letter
        low, high = ax.get_ylim()
        assert low < high  # beta grows upwards
        frames = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
        solid = {tuple(f.get_center()) for f in frames if f.get_width() > 0.8}
        dashed = {tuple(f.get_center()) for f in frames if f.get_linestyle() != "solid"}
        places = {(i, j) for i, a in enumerate((0.0, 0.8, 1.0)) for j, b in enumerate((0.2, 0.6))
                  if cells.where(alpha=a, beta=b).rows[0]["best"]}  # fmt: skip
        assert {(round(x), round(y)) for x, y in solid} == places
        assert {(round(x), round(y)) for x, y in dashed} == {(1, 1)}
    assert f"{best['level']} of 6 cells cannot be told from it" in drawing.caption


def test_variants_stand_beside_their_differences():
    tables = ablation(only=["redundancy-map"])
    table = named(tables, "redundancy_map")
    left, right = drawings(tables)["ablation_redundancy_map"].figure.axes
    dots = [line for line in left.lines if line.get_marker() == "o"]
    assert [dot.get_xdata()[0] for dot in dots] == pytest.approx(table.numbers("mean"))
    marks = [line.get_xdata()[0] for line in right.lines if line.get_marker() == "D"]
    assert np.isnan(marks[0])
    assert marks[1:] == pytest.approx(table.numbers("difference"))
    assert [label.get_text() for label in left.get_yticklabels()] == [
        "sigmoid", "sigmoid2", "exp", "inverse", "minmax", "centred"
    ]  # fmt: skip


@pytest.mark.parametrize(("width", "inches", "budgets"), [("double", 6.9, (64, 32)), ("single", 3.3, (64,))])
def test_all_are_fit_for_print(width, inches, budgets):
    made = drawings(ablation(budgets), width)
    assert list(made) == [f"ablation_{name}" for name in (
        "factorial", "grid", "normalisation", "std", "averaging", "redundancy_map"
    )]  # fmt: skip
    for drawing in made.values():
        is_fit_for_print(drawing.figure, inches)
        assert f"{SAMPLES} samples" in drawing.caption
        assert "budget" in drawing.caption


@pytest.mark.parametrize(("samples", "same"), [(1, False), (5, True)])
def test_a_single_sample_and_a_flat_result_can_be_drawn(samples, same):
    made = drawings(ablation(samples=samples, same=same, ranges=Ranges(alphas=(0.0, 0.8), betas=(0.6,))))
    if same:
        assert made["ablation_grid"].figure.axes[0].collections[0].get_clim() == pytest.approx((0.9, 1))
    for drawing in made.values():
        assert encode(drawing.figure, "png")[:4] == b"\x89PNG"
        assert "nan" not in drawing.caption


def test_the_report_has_a_chapter_per_experiment(tmp_path):
    tables = ablation(only=["factorial", "std"])
    summary = {
        "metric": "exact", "reading": "share of right answers", "notes": ["budget 64: all alike"], "failed": {},
        "settings": {"methods": ["full", "snapkv+ecokv"]}, "task": "docqa", "versions": {}, "command": "ecokv ablate",
    }  # fmt: skip
    page = write_ablation_report(tmp_path, tables, draw_ablation(tables), summary).read_text(encoding="utf-8")
    assert "Budget 64: all alike." in page
    for words in ("Window and booster told apart", "Ablation: std", ">interaction<", "factorial_effects.csv"):
        assert words in page
    assert "Accuracy over" not in page
    assert page.count("<img") + page.count("<svg") >= 2
