"""How likely a position is kept by its age, over the whole prompt and among the most recent positions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import matplotlib as mpl
import numpy as np
from matplotlib.lines import Line2D

from ecokv_cli.figures.budgets import at_budgets, budget_of, budgets_of, labelled
from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import (
    LINE,
    WIDE,
    averaged,
    evicting,
    fold,
    legend_above,
    legend_height,
    most_lines,
    names,
    ordered,
    panel_grid,
    whole,
)
from ecokv_cli.figures.style import FAINT, SEQUENTIAL, inches
from ecokv_cli.studies.reduced import prepared
from ecokv_cli.studies.statistics import over_samples
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ecokv_cli.figures.parts import Array
    from ecokv_cli.figures.style import Dash
    from ecokv_cli.studies.tables import Value

RECENT = 64
"""Positions before the end that `kept_recent` shows one by one."""

_BUDGET_DASHES: tuple[Dash, ...] = ("solid", (0, (6, 1.2, 1, 1.2)), (0, (3, 1.2)), (0, (1, 1)))
BINS = ("method", "budget", "age_low", "age_high")
"""Columns that tell ages of methods apart."""

_BINNED = ("sample", *BINS, "kept")


@drawn
def kept_by_age(recency: Table, width: str | float = "double") -> Drawing:
    """Draw the share of positions kept against their age, one panel per method and one line per budget.

    Parameters
    ----------
    recency
        The `recency` table: bins from `age_low` to `age_high`, both included; age 0 is the last token of the prompt.
        The full cache is left out.
    width
        See `style.inches`.
    """
    binned = common_bins(recency)
    data = _over_samples(binned, "kept_by_age")
    budgets = budgets_of(recency)
    figure = _panels(data, inches(width))
    caption = (
        f"Share of the positions that each method keeps{at_budgets(budgets, 'line')}, by age: 0 is the last token of "
        "the prompt. A line near 1 at the left means that recent tokens survive, which a protected window "
        "forces for its own length; a level line means that age does not matter. Shares are means over "
        f"{averaged(recency)} within each bin of ages{_interval(recency)}."
    )
    if any(stats.high > 0 for stats in binned.stats((), "split").values()):
        caption += (
            " Prompts differ in length, and shorter ones were counted in narrower bins: where such a bin lies across "
            "an edge between two bins drawn here, its share goes to both, by the positions it has on either side."
        )
    if len(budgets) == 1:
        caption += " Pale lines repeat the other methods."
    return Drawing("kept_by_age", "Kept share by age", figure, data, caption)


@drawn
def kept_recent(positions: Table, width: str | float = "double") -> Drawing:
    """Draw how often each of the most recent positions is kept, one panel per method and one line per budget.

    Parameters
    ----------
    positions
        The `positions` table; its rows over all layers and heads are used.
    width
        See `style.inches`.
    """
    data = _over_samples(recent(positions), "kept_recent")
    budgets = budgets_of(positions)
    figure = _panels(data, inches(width))
    caption = (
        f"How often each of the last {1 + max(ordered(data, 'age_low'))} positions of the prompt is kept"
        f"{at_budgets(budgets, 'line')}, by age: 0 is the last token. Shares are means over {averaged(positions)}"
        f"{_interval(positions)}. The plateau at 1 on the left is the protected window, whose length is part of a "
        "method's settings; what lies beyond it is chosen by score. Methods with different windows are not matched: "
        "compare them beyond the longer one."
    )
    if len(budgets) == 1:
        caption += " Pale lines repeat the other methods."
    return Drawing("kept_recent", "Kept share of recent positions", figure, data, caption)


def _interval(table: Table) -> str:
    several = len(table.distinct("sample")) > 1
    return ", with their 95 % bootstrap intervals over samples as bands" if several else ""


def _over_samples(binned: Table, name: str) -> Table:
    """Mean over samples of every bin, without the full cache, with the interval of the mean."""
    methods = evicting(names(binned, "method"))
    data = Table(name, (*BINS, "kept", "low", "high", "samples"))
    for row in over_samples(binned.among("method", methods), BINS, ("kept",)):
        ends = {"kept": row["mean"], "low": row["low"], "high": row["high"], "samples": row["n"]}
        data.add(**{c: row[c] for c in BINS}, **ends)
    data.rows.sort(key=lambda row: (methods.index(str(row["method"])), budget_of(row), whole(row["age_low"])))
    return data


@prepared
def recent(positions: Table) -> Table:
    """The shares over all layers and heads of each of the last positions, by age."""
    everywhere = positions.where(layer="all")
    last = everywhere.aggregate(("sample",), "position", max)
    rows = Table("recent", _BINNED)
    for row in everywhere:
        age = int(last[row["sample"],]) - whole(row["position"])
        if age < RECENT:
            rows.add(**{c: row[c] for c in ("sample", "method", "budget", "kept")}, age_low=age, age_high=age)
    return rows


@prepared
def common_bins(recency: Table) -> Table:
    """The shares of all samples in the widest bins of any of them."""
    widest = max(1 + whole(row["age_high"]) - whole(row["age_low"]) for row in recency)
    return in_bins(recency, widest, max(1 + whole(row["age_high"]) for row in recency))


def in_bins(recency: Table, widest: int, longest: int) -> Table:
    """The shares of all samples in bins of `widest` positions, for prompts of at most `longest`.

    Prompts of different length have bins of different width. A bin that reaches over an edge gives its share to both
    sides, by the positions it has there; `split` counts positions of such bins.
    """
    sums: dict[tuple[Value, Value, Value, int], list[float]] = {}
    for row in recency:
        low, high = whole(row["age_low"]), 1 + whole(row["age_high"])
        first, last = low // widest, (high - 1) // widest
        for i in range(first, last + 1):
            positions = min(high, (i + 1) * widest) - max(low, i * widest)
            total = sums.setdefault((row["sample"], row["method"], row["budget"], i), [0.0, 0, 0])
            total[0] += positions * float(cast("float", row["kept"]))
            total[1] += positions
            total[2] += positions if first < last else 0
    table = Table("common", (*_BINNED, "split"))
    for (sample, method, budget, i), (kept, count, split) in sums.items():
        span = {"age_low": i * widest, "age_high": min((i + 1) * widest, longest) - 1}
        table.add(sample=sample, method=method, budget=budget, **span, kept=kept / count, split=split)
    return table


def _panels(data: Table, width: float) -> Figure:
    methods, budgets = names(data, "method"), budgets_of(data)
    lows = ordered(data, "age_low")
    edges = np.array([*lows, 1 + max(ordered(data, "age_high"))])
    labels = [labelled(budget) for budget in budgets]
    columns = 3 if width >= WIDE else 1 if len(methods) == 1 else 2
    titles = [fold(method, (width - 0.4) / columns - 0.1) for method in methods]
    height, extra = 1.35 + LINE * (most_lines(titles) - 1), legend_height(width, labels) + 0.2
    figure, axes = panel_grid(width, len(methods), columns, height, extra=extra, share="xy")
    looks = _budget_looks(len(budgets))
    for ax, method, title in zip(axes, methods, titles, strict=True):
        for other in methods if len(budgets) == 1 else ():
            ax.stairs(_column(data.where(method=other), "kept", lows), edges, baseline=None, color=FAINT, linewidth=0.8)
        for budget, look in zip(budgets, looks, strict=True):
            rows = data.where(method=method, budget=budget)
            low, high = (_column(rows, end, lows) for end in ("low", "high"))
            if np.isfinite(low).any():
                ax.stairs(high, edges, baseline=low, fill=True, color=look["color"], alpha=0.2, linewidth=0)
            ax.stairs(_column(rows, "kept", lows), edges, baseline=None, **look)
        ax.set(xlim=(0, edges[-1]), ylim=(0, 1.04))
        ax.set_title(title)
        ax.grid(axis="y")
    figure.supxlabel("age (positions before the last)", fontsize="medium")
    figure.supylabel("share kept", fontsize="medium")
    if len(budgets) > 1:
        legend_above(figure, [Line2D([], [], **look) for look in looks], labels)
    return figure


def _budget_looks(count: int) -> list[dict[str, Any]]:
    """Lines from pale and dotted for the smallest budget to dark and solid for the largest."""
    shades = mpl.colormaps[SEQUENTIAL](np.linspace(0, 0.75, count))[::-1]
    dashes = [_BUDGET_DASHES[i % len(_BUDGET_DASHES)] for i in range(count)][::-1]
    return [{"color": c, "linestyle": d, "linewidth": 1.2} for c, d in zip(shades, dashes, strict=True)]


def _column(rows: Table, column: str, lows: list[int]) -> Array:
    by_age = rows.aggregate(("age_low",), column, lambda v: v[0])
    return np.array([by_age.get((low,), math.nan) for low in lows], dtype=np.float64)
