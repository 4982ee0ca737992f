"""Two runs side by side on shared axes, with their difference and its interval: over layers, and by method."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ecokv_cli.figures.budgets import at_budget, budget_of, budgets_of, labelled
from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import (
    LINE,
    WIDE,
    breadth,
    fold,
    label_layers,
    legend_above,
    letter,
    listed,
    most_lines,
    names,
    ordered,
    whole,
)
from ecokv_cli.figures.profiles import WORDS, Stroke, draw_line
from ecokv_cli.figures.rows import Rows
from ecokv_cli.figures.style import BLUE, INK, QUIET, VERMILLION, inches, new_figure
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from ecokv_cli.eviction.budget import Budget
    from ecokv_cli.figures.parts import Array
    from ecokv_cli.studies.tables import Value

LAYER_MEASURES = ("cos_mean", "dist_per_norm", "effective_rank", "r_euc", "lambda_ecokv", "spearman")
"""What `compare_layers` draws unless it is told."""

METHOD_MEASURES = ("mass", "output_error")
"""What `compare_methods` draws unless it is told."""

_SHORT = {
    "cos_mean": "mean cosine",
    "dist_mean": "mean distance",
    "dist_per_norm": "dist / norm",
    "r_euc": "Euclid. red.",
    "r_cos": "cosine red.",
    "participation_ratio": "particip. ratio",
    "spearman": "Spearman's ρ",
}
"""Names that fit over a narrow panel, where those of axes do not."""

_FIRST, _SECOND = Stroke(BLUE, "solid", "o"), Stroke(VERMILLION, (0, (4, 1.4)), "s")
_DIFFERENCE = Stroke(INK, "solid", "")


@drawn
def compare_layers(
    comparison: Table,
    labels: tuple[str, str],
    width: str | float = "double",
    measures: Sequence[str] = LAYER_MEASURES,
) -> Drawing | None:
    """Draw both runs against the layer, and below each measure their difference with its interval.

    Parameters
    ----------
    comparison
        A table of `compare_tables` by layer; rows without a layer are over all layers.
    labels
        Names of the first and the second run.
    width
        See `style.inches`.
    measures
        Which measures to draw; those that the table lacks are passed over.

    Returns
    -------
    Drawing or None
        None when the table has none of them.
    """
    measures = [measure for measure in measures if measure in names(comparison, "measure")]
    if not measures:
        return None
    layered = Table(comparison.name, comparison.columns, [row for row in comparison if row["layer"] is not None])
    layers = ordered(layered, "layer")
    columns = min(len(measures), 3 if inches(width) >= WIDE else 2)
    bands = -(-len(measures) // columns)
    figure = new_figure(inches(width), 1.95 * bands + 0.45)
    grid = figure.subplots(2 * bands, columns, squeeze=False, sharex=True, height_ratios=[1.25, 0.75] * bands)
    for ax in grid.ravel():
        ax.set_visible(False)
    uppers = []
    for i, measure in enumerate(measures):
        band, column = divmod(i, columns)
        upper, lower = grid[2 * band, column], grid[2 * band + 1, column]
        _lines(upper, lower, layered.where(measure=measure), layers)
        _overall(lower, comparison.where(measure=measure, layer=None), len(layers))
        uppers.append(upper)
        if column == 0:
            upper.set_ylabel("value")
            lower.set_ylabel("difference")
        last = i + columns >= len(measures)
        lower.tick_params(labelbottom=last)
        if last:
            lower.set_xlabel("layer")
    letter(uppers, [_SHORT.get(measure, WORDS.get(measure, measure)) for measure in measures])
    legend_above(figure, [_FIRST.handle, _SECOND.handle], labels)
    data = Table("compare_layers", comparison.columns, [row for row in comparison if row["measure"] in measures])
    caption = (
        f"{labels[0]} and {labels[1]} by layer, on shared axes: means over the samples of each run. Below each panel "
        f"the difference, {labels[1]} minus {labels[0]}, {_interval_words(data)}; the mark at the right end, all, is "
        f"the difference of the means over all layers. {_reading(data)}{_samples_words(data)}"
    )
    return Drawing("compare_layers", "Two runs by layer", figure, data, caption)


def _lines(upper: Axes, lower: Axes, rows: Table, layers: list[int]) -> None:
    found = {whole(row["layer"]): row for row in rows}

    def column(name: str) -> Array:
        return np.array([_number(found[layer][name]) if layer in found else np.nan for layer in layers])

    draw_line(upper, column("first"), _FIRST)
    draw_line(upper, column("second"), _SECOND)
    draw_line(lower, column("difference"), _DIFFERENCE, [(column("low"), column("high"), 0.25)])
    lower.axhline(0, color=INK, linewidth=0.6, linestyle=(0, (4, 2)))
    for ax in (upper, lower):
        ax.set_visible(True)
        ax.grid(axis="y")
        label_layers(ax.xaxis, layers, room=8)
    upper.tick_params(labelbottom=False)


def _overall(ax: Axes, rows: Table, layers: int) -> None:
    """Draw the difference over all layers at the right of the layers."""
    place = layers - 1 + max(1.5, 0.07 * layers)
    for row in rows:
        low, difference, high = (_number(row[c]) for c in ("low", "difference", "high"))
        ax.vlines(place, low, high, color=INK, linewidth=1.0)
        ax.plot(place, difference, "D", color=INK, markersize=3)
    ax.annotate("all", (place, 0), (0, 2), ("data", "axes fraction"), "offset points", ha="center", va="bottom")


@drawn
def compare_methods(
    comparison: Table,
    labels: tuple[str, str],
    width: str | float = "double",
    measures: Sequence[str] = METHOD_MEASURES,
) -> Drawing | None:
    """Draw both runs per method and budget as dots, and beside each measure their difference with its interval.

    Parameters
    ----------
    comparison
        A table of `compare_tables` by method and budget.
    labels
        Names of the first and the second run.
    width
        See `style.inches`.
    measures
        Which measures to draw; those that the table lacks are passed over.

    Returns
    -------
    Drawing or None
        None when the table has none of them.
    """
    measures = [measure for measure in measures if measure in names(comparison, "measure")]
    if not measures:
        return None
    methods = [method for method in names(comparison, "method") if method != "full"] or names(comparison, "method")
    budgets = budgets_of(comparison)
    there = {(str(row["method"]), budget_of(row)) for row in comparison}
    # A row without a method holds the name of the budget of those below it.
    heads = [""] if len(budgets) > 1 else []
    keys = [(m, budget) for budget in budgets for m in (*heads, *methods) if m in heads or (m, budget) in there]
    rows = Rows.of([method for method, _ in keys], inches(width))
    places = dict(zip(keys, rows.places, strict=True))
    bands = 1 if inches(width) >= WIDE else len(measures)
    columns = 2 * len(measures) // bands
    room = 1.25 / 2.25 * 2 / columns * (inches(width) - max(map(breadth, rows.names)))
    words = [fold(WORDS.get(measure, measure), room) for measure in measures]
    figure = new_figure(inches(width), bands * (rows.height + 0.6 + LINE * (most_lines(words) - 1)) + 0.2)
    axes = figure.subplots(bands, columns, squeeze=False, sharey=True, width_ratios=[1.25, 1] * (columns // 2)).ravel()
    for i, measure in enumerate(measures):
        both, apart = axes[2 * i : 2 * i + 2]
        _dots(both, apart, comparison.where(measure=measure), places)
        both.set_xlabel(words[i])
        apart.set_xlabel("difference")
    for ax in axes:
        rows.label(ax)
        ax.grid(axis="both")
    for ax in axes[::2]:
        for budget in budgets if heads else ():
            at = places["", budget]
            ax.annotate(labelled(budget), (0, at), (3, 0), ("axes fraction", "data"), "offset points", va="center")
    letter(axes[::2])
    marks = [
        Line2D([], [], linestyle="", marker=s.marker, color=s.color, mfc=face, markersize=4.5) for s, face in _ENDS
    ]
    legend_above(figure, marks, labels)
    shown = [row for row in comparison if row["measure"] in measures and row["method"] in methods]
    data = Table("compare_methods", comparison.columns, shown)
    scope = f" {at_budget(budgets[0])}" if len(budgets) == 1 else ""
    caption = (
        f"{labels[0]} (filled) and {labels[1]} (hollow) for every method{scope}: "
        f"{listed([f'({chr(97 + i)}) {WORDS.get(m, m)}' for i, m in enumerate(measures)])}, means over the samples of "
        f"each run. Beside each the difference, {labels[1]} minus {labels[0]}, "
        f"{_interval_words(data) if data.numbers('difference') else 'empty, as no method is in both runs'}. "
        f"{_reading(data)}{_samples_words(data)}"
    )
    return Drawing("compare_methods", "Two runs by method", figure, data, caption)


_ENDS = ((_FIRST, BLUE), (_SECOND, "white"))


def _dots(both: Axes, apart: Axes, rows: Table, places: dict[tuple[str, Budget], float]) -> None:
    for row in rows:
        at = places.get((str(row["method"]), budget_of(row)))
        if at is None:
            continue
        first, second, low, difference, high = (
            _number(row[c]) for c in ("first", "second", "low", "difference", "high")
        )
        both.hlines(at, first, second, color=QUIET, linewidth=0.9)
        for value, (stroke, face) in zip((first, second), _ENDS, strict=True):
            both.plot(value, at, stroke.marker, color=stroke.color, markerfacecolor=face, markersize=4.5)
        apart.hlines(at, low, high, color=INK, linewidth=1.1)
        apart.plot(difference, at, "D", color=INK, markersize=3)
    apart.axvline(0, color=INK, linewidth=0.6, linestyle=(0, (4, 2)))
    for ax in (both, apart):
        ax.margins(x=0.08)
        ax.xaxis.set_major_locator(MaxNLocator(3))


def _number(value: Value) -> float:
    return np.nan if value is None else float(cast("float", value))


def _interval_words(data: Table) -> str:
    if not data.numbers("low"):
        return "without an interval, since that needs at least two samples in each run"
    paired = all(str(value) == "True" for value in data.distinct("paired"))
    how = "taken per sample, as both runs have the same ones" if paired else "between the means"
    return f"{how}, with its 95 % bootstrap interval over samples"


def _reading(data: Table) -> str:
    """How to read an interval, where there is one."""
    if not data.numbers("low"):
        return ""
    return (
        "Where an interval leaves out 0 the runs differ by more than the choice of samples explains; of many intervals "
        "one in twenty does so by chance. "
    )


def _samples_words(data: Table) -> str:
    counts = [max((whole(row[side]) for row in data), default=0) for side in ("n_first", "n_second")]
    return f"Samples: {counts[0]:,} and {counts[1]:,}."
