"""Fidelity on held-out queries, per method: against the budget, or side by side when there is a single budget."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.lines import Line2D

from ecokv_cli.figures.budgets import BudgetAxis, budget_of
from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import (
    WIDE,
    averaged,
    fold,
    legend_above,
    legend_height,
    letter,
    listed,
    names,
    panel_grid,
)
from ecokv_cli.figures.rows import Rows
from ecokv_cli.figures.style import inches, method_styles
from ecokv_cli.studies.statistics import over_samples
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ecokv_cli.figures.style import MethodStyle
    from ecokv_cli.studies.tables import Key, Value

_MEASURES = {
    "mass": "attention mass kept ↑",
    "output_error": "output error ↓",
    "output_cosine": "output cosine ↑",
}


@drawn
def fidelity_by_budget(fidelity: Table, width: str | float = "double") -> Drawing:
    """Draw attention mass kept, output error and output cosine per method against the budget.

    A table with a single budget gives a dot chart with one row per method.

    Parameters
    ----------
    fidelity
        The `fidelity` table; means are taken over samples, layers and KV heads, quartiles over layers and KV heads,
        each a mean over samples.
    width
        See `style.inches`.
    """
    data = _summarise(fidelity)
    axis = BudgetAxis.of(fidelity)
    figure = _dot_chart(data, inches(width)) if len(axis.places) == 1 else _lines(data, axis, inches(width))
    caption = (
        f"Fidelity of the evicted cache {axis.words}, on held-out queries that had no part in choosing tokens: "
        "(a) attention mass that falls on kept tokens, (b) relative error of the attention output, (c) cosine of the "
        "output with that of the full cache; arrows say which way is better. Marks are means over "
        f"{averaged(fidelity)}, thin bars span the middle half of {_spread_words(fidelity)}. The budget is per KV "
        f"head and layer, window included.{_windows(fidelity)}"
    )
    return Drawing("fidelity_by_budget", "Fidelity on held-out queries", figure, data, caption)


def _spread_words(fidelity: Table) -> str:
    several = len(fidelity.distinct("sample")) > 1
    if not several:
        return "them"
    return (
        "layers and KV heads (each a mean over samples), thick bars the 95 % bootstrap interval of the mean over "
        "samples"
    )


def _summarise(fidelity: Table) -> Table:
    """Mean with its interval over samples, and quartiles over layers and heads, per method, budget and measure."""
    by = ("method", "budget")
    data = Table("fidelity_by_budget", (*by, "measure", "mean", "low", "high", "samples", "q25", "q75", "n"))
    for measure in _MEASURES:
        heads: dict[Key, list[float]] = {}
        for key, mean in fidelity.aggregate((*by, "layer", "kv_head"), measure, fmean).items():
            heads.setdefault(key[:2], []).append(mean)
        for row in over_samples(fidelity, by, (measure,)):
            means = heads[row["method"], row["budget"]]
            first, third = (float(np.quantile(means, q)) for q in (0.25, 0.75))
            spread: dict[str, Value] = {"q25": first, "q75": third, "n": len(means), "samples": row["n"]}
            data.add(**{c: row[c] for c in (*by, "measure", "mean", "low", "high")}, **spread)
    return data


def _lines(data: Table, axis: BudgetAxis, width: float) -> Figure:
    methods = names(data, "method")
    styles = method_styles(methods)
    wide = width >= WIDE
    figure, axes = panel_grid(
        width, 3, 3 if wide else 1, 1.95 if wide else 1.6, extra=legend_height(width, methods), share="x"
    )
    shift = 0.5 * axis.gap / len(methods)
    for ax, (measure, label) in zip(axes, _MEASURES.items(), strict=True):
        for i, method in enumerate(methods):
            rows = data.where(method=method, measure=measure)
            # Methods are set a little apart so that their bars do not hide each other.
            aside = 0.0 if method == "full" else 2.0 ** (shift * (i - (len(methods) - 1) / 2))
            _line(ax, rows, styles[method], axis, aside or 1.0)
        axis.finish(ax)
        ax.set_ylabel(label)
        ax.grid(axis="y")
    for ax in axes if wide else axes[-1:]:
        ax.set_xlabel(fold(axis.label, width / len(axes) - 0.55) if wide else axis.label)
    letter(axes)
    legend_above(figure, [_handle(styles[m]) for m in methods], methods)
    return figure


def _line(ax: Axes, rows: Table, style: MethodStyle, axis: BudgetAxis, aside: float) -> None:
    x = np.array([axis.places[budget_of(row)] for row in rows]) * aside
    order = np.argsort(x)
    mean, low, high = (np.array(rows.numbers(c))[order] for c in ("mean", "q25", "q75"))
    ax.vlines(x[order], low, high, color=style.color, linewidth=0.7, alpha=0.8)
    if rows.numbers("low"):
        low, high = (np.array(rows.numbers(c))[order] for c in ("low", "high"))
        ax.vlines(x[order], low, high, color=style.color, linewidth=1.8)
    ax.plot(x[order], mean, color=style.color, linestyle=style.dash, marker=style.marker, markerfacecolor=style.face)


def _handle(style: MethodStyle) -> Line2D:
    return Line2D([], [], color=style.color, linestyle=style.dash, marker=style.marker, markerfacecolor=style.face)


def _dot_chart(data: Table, width: float) -> Figure:
    methods = names(data, "method")
    styles = method_styles(methods)
    wide = width >= WIDE
    rows = Rows.of(methods, width)
    figure, axes = panel_grid(width, 3, 3 if wide else 1, rows.height + 0.6, share="y")
    for ax, (measure, label) in zip(axes, _MEASURES.items(), strict=True):
        for row in data.where(measure=measure):
            style, place = styles[str(row["method"])], rows.places[methods.index(str(row["method"]))]
            low, mean, high, first, last = (_number(row[c]) for c in ("q25", "mean", "q75", "low", "high"))
            ax.hlines(place, low, high, color=style.color, linewidth=0.9)
            ax.hlines(place, first, last, color=style.color, linewidth=2.2)
            ax.plot(mean, place, color=style.color, marker=style.marker, markerfacecolor=style.face, markersize=4.5)
            ax.annotate(f"{mean:.2f}", (1, place), (3, 0), ("axes fraction", "data"), "offset points", va="center")
        rows.label(ax)
        ax.set_xlabel(label)
        ax.margins(x=0.08)
        ax.grid(axis="both")
    letter(axes)
    return figure


def _number(value: Value) -> float:
    return math.nan if value is None else float(cast("float", value))


def _windows(fidelity: Table) -> str:
    """Say so when methods protect different windows, since their rows are then not matched."""
    by_window: dict[int, list[str]] = {}
    for method in names(fidelity, "method"):
        found = fidelity.where(method=method).stats((), "window")[()]
        for window in dict.fromkeys((found.low, found.high)) if found.defined else ():
            by_window.setdefault(int(window), []).append(method)
    if len([window for window in by_window if window > 0]) < 2:
        return ""
    parts = [f"{window} ({listed(methods)})" for window, methods in sorted(by_window.items())]
    return f" The rows are not matched: windows are {listed(parts)}."
