"""What evaluations show: accuracy against the budget, and paired differences."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ecokv_cli.figures.budgets import BudgetAxis, budget_of, budgets_of, labelled
from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import (
    WIDE,
    breadth,
    legend_above,
    legend_height,
    letter,
    names,
    ordered,
    panel_grid,
)
from ecokv_cli.figures.rows import Rows
from ecokv_cli.figures.style import BLUE, INK, inches, method_styles
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ecokv_cli.figures.style import MethodStyle
    from ecokv_cli.studies.tables import Value

_PANEL = 1.35
"""Inches that a panel of differences needs beside the names of its rows."""


def windowless(method: str) -> str:
    """A method's name without its window, for where the window is told apart; routes keep theirs."""
    if method.startswith("route["):
        return method
    return re.sub(r"(?<=\[)window=\d+(,|(?=\]))|,window=\d+", "", method).replace("[]", "")


@drawn
def accuracy_by_budget(accuracy: Table, width: str | float = "double") -> Drawing | None:
    """Draw the mean score of every method against the budget, a panel for each window.

    A table with a single budget gives a dot chart with one row per method.

    Parameters
    ----------
    accuracy
        The `accuracy` table.
    width
        See `style.inches`.

    Returns
    -------
    Drawing or None
        None when no method evicts.
    """
    evicted = evicted_rows(accuracy)
    if not evicted.rows:
        return None
    windows, axis = sorted(ordered(evicted, "window"), reverse=True), BudgetAxis.of(evicted)
    size = inches(width)
    labels = list(dict.fromkeys(windowless(name) for name in names(evicted, "method")))
    handles = _handles(labels)
    full = accuracy.where(budget=None)
    if full.rows:
        handles["full cache"] = Line2D([], [], color=INK, linestyle=(0, (5, 2)), linewidth=0.9)
    single = len(axis.places) == 1
    columns = min(len(windows), 3) if size >= WIDE else 1
    rows = Rows.of(labels, size)
    figure, axes = panel_grid(
        size, len(windows), columns, rows.height + 0.65 if single else 2.1,
        extra=0.0 if single else legend_height(size, list(handles)), share="xy",
    )  # fmt: skip
    for ax, window in zip(axes, windows, strict=True):
        panel = evicted.where(window=window)
        if full.rows:
            _full_band(ax, full.rows[0], upright=single)
        if single:
            _dots(ax, panel, labels, rows)
        else:
            _lines(ax, panel, labels, axis)
    for ax in axes[::columns] if not single else ():
        ax.set_ylabel("mean score ↑")
    letter(axes, [f"window {window}" for window in windows])
    if not single:
        legend_above(figure, list(handles.values()), list(handles))
    n = ordered(accuracy, "n")
    counts = f"{n[0]:,}" if len(n) == 1 else f"{n[0]:,} to {n[-1]:,}"
    caption = (
        f"Mean score of the answers decoded on evicted caches {axis.words}; bars are 95 % bootstrap "
        f"intervals over {counts} samples. "
        + (
            "Each panel holds the methods that protect the same window: those of one panel are matched, and a "
            "difference between panels can come from the window as well as from the method. "
            if len(windows) > 1
            else f"All methods protect the same window of {windows[0]:,} tokens. "
        )
        + ("The dashed line is the full cache, with its interval in grey. " if full.rows else "")
        + "Intervals of two methods may overlap though their paired difference is clear: see the paired differences."
    )
    data = Table("accuracy_by_budget", accuracy.columns, accuracy.rows)
    return Drawing("accuracy_by_budget", "Accuracy by budget", figure, data, caption)


@drawn
def accuracy_differences(accuracy: Table, width: str | float = "double") -> Drawing | None:
    """Draw the paired difference of every boosted method to its host; without any, of every method to the full cache.

    Parameters
    ----------
    accuracy
        The `accuracy` table.
    width
        See `style.inches`.

    Returns
    -------
    Drawing or None
        None when there is no difference with an interval.
    """
    paired = [row for row in accuracy if row["difference_low"] is not None]
    rows = [row for row in paired if row["against"] != "full"] or paired
    if not rows:
        return None
    data = Table("accuracy_differences", accuracy.columns, rows)
    budgets, size = budgets_of(data)[::-1], inches(width)
    labels = list(dict.fromkeys(map(_pair, rows)))
    pairs = Rows.of(labels, size)
    room = size - max(map(breadth, pairs.names))
    columns = min(len(budgets), 3, int(room / _PANEL)) if size >= WIDE else 1
    figure, axes = panel_grid(size, len(budgets), columns, pairs.height + 0.6, share="xy")
    for ax, budget in zip(axes, budgets, strict=True):
        ax.axvline(0, color=INK, linewidth=0.7)
        for row in data.where(budget=budget):
            place = pairs.places[labels.index(_pair(row))]
            matched = str(row["against"]).endswith(f", window {row['window']}")
            low, middle, high = (number(row[c]) for c in ("difference_low", "difference", "difference_high"))
            ax.hlines(place, low, high, color=BLUE, linewidth=1.4)
            ax.plot(middle, place, "o", color=BLUE, markerfacecolor=BLUE if matched else "white")
            p = number(row["p"])
            text = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
            ax.annotate(text, (1, place), (2, 0), ("axes fraction", "data"), "offset points", va="center", fontsize=7)
        pairs.label(ax)
        ax.margins(x=0.08)
        ax.xaxis.set_major_locator(MaxNLocator(3))
        ax.grid(axis="x")
    for ax in axes[-columns:]:
        ax.set_xlabel("difference of mean scores")
    letter(axes, [labelled(budget) for budget in budgets])
    to_host = rows[0]["against"] != "full"
    who, better = (
        ("boosted method and its host", "the booster gains")
        if to_host
        else ("method and the full cache", "the method is better than the full cache")
    )
    caption = (
        f"Difference of mean scores between each {who}, both on the same samples: to the right of 0 {better}. Bars are "
        "95 % bootstrap intervals of the paired difference over samples; p is that of a two-sided permutation test, "
        "not corrected for the number of rows, so of many rows one in twenty falls below 0.05 by chance."
    )
    if to_host:
        caption += (
            " Filled marks compare two methods with the same window; hollow ones do not, and their difference can come "
            "from the window."
        )
    return Drawing("accuracy_differences", "Paired differences", figure, data, caption)


def evicted_rows(table: Table) -> Table:
    """Rows of methods that evict."""
    return Table(table.name, table.columns, [row for row in table if row["budget"] is not None])


def _handles(labels: list[str]) -> dict[str, Line2D]:
    styles = method_styles(labels)
    return {
        label: Line2D(
            [], [], color=styles[label].color, linestyle=styles[label].dash, marker=styles[label].marker,
            markerfacecolor=styles[label].face,
        )
        for label in labels
    }  # fmt: skip


def _aside(axis: BudgetAxis, place: int, count: int) -> float:
    """Factor that sets a method a little apart, so that its bars do not hide those of others."""
    return float(2.0 ** (0.25 * axis.gap / count * (place - (count - 1) / 2)))


def _full_band(ax: Axes, row: dict[str, Value], *, upright: bool) -> None:
    mean, low, high = (number(row[c]) for c in ("mean", "low", "high"))
    span, line = (ax.axvspan, ax.axvline) if upright else (ax.axhspan, ax.axhline)
    if low < high:
        span(low, high, color="#ececec", linewidth=0, zorder=0)
    line(mean, color=INK, linestyle=(0, (5, 2)), linewidth=0.9)


def _lines(ax: Axes, panel: Table, labels: list[str], axis: BudgetAxis) -> None:
    styles = method_styles(labels)
    for i, label in enumerate(labels):
        rows = [row for row in panel if windowless(str(row["method"])) == label]
        if rows:
            _line(ax, rows, styles[label], axis, _aside(axis, i, len(labels)))
    axis.finish(ax)
    ax.set_xlabel(axis.label)
    ax.grid(axis="y")


def _line(ax: Axes, rows: list[dict[str, Value]], style: MethodStyle, axis: BudgetAxis, aside: float) -> None:
    rows = sorted(rows, key=lambda row: axis.places[budget_of(row)])
    x = np.array([axis.places[budget_of(row)] for row in rows]) * aside
    mean, low, high = ([number(row[c]) for row in rows] for c in ("mean", "low", "high"))
    ax.vlines(x, low, high, color=style.color, linewidth=0.9)
    ax.plot(x, mean, color=style.color, linestyle=style.dash, marker=style.marker, markerfacecolor=style.face)


def _dots(ax: Axes, panel: Table, labels: list[str], rows: Rows) -> None:
    styles = method_styles(labels)
    for row in panel:
        label = windowless(str(row["method"]))
        place, style = rows.places[labels.index(label)], styles[label]
        ax.hlines(place, number(row["low"]), number(row["high"]), color=style.color, linewidth=1.2)
        ax.plot(number(row["mean"]), place, color=style.color, marker=style.marker, markerfacecolor=style.face)
    rows.label(ax)
    ax.set_xlabel("mean score ↑")
    ax.margins(x=0.08)
    ax.grid(axis="both")


def _pair(row: dict[str, Value]) -> str:
    """Who is compared with whom; windows are named where they differ, or else once."""
    host, _, window = str(row["against"]).rpartition(", window ")
    mine = windowless(str(row["method"]))
    if not host:
        return f"{mine}, window {row['window']}"
    other = windowless(host)
    if window == str(row["window"]):
        return f"{mine} − {other}, window {window}"
    return f"{mine}, window {row['window']} − {other}, window {window}"


def number(value: Value) -> float:
    """A cell as a number, NaN if it is undefined."""
    return math.nan if value is None else float(cast("float", value))
