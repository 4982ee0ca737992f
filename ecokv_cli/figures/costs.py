"""Costs of decoding on evicted caches beside the full cache of the same run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from ecokv_cli.figures.budgets import budget_of, budgets_of, labelled
from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.evaluation import evicted_rows, number
from ecokv_cli.figures.parts import (
    WIDE,
    legend_above,
    legend_height,
    letter,
    names,
    panel_grid,
    spaced,
)
from ecokv_cli.figures.rows import Rows
from ecokv_cli.figures.style import INK, QUIET, inches
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COSTS = {
    "cache_ratio": "cache bytes ↓",
    "peak_ratio": "peak memory ↓",
    "decode_ratio": "time per token ↓",
    "scoring_share": "scoring share ↓",
}
_PEAKS = {
    "allocated": "what the GPU's allocator counts while decoding beyond weights and the prefill's cache",
    "counted": "the cache after the last step by the size of its tensors, as this device counts no memory",
}


@drawn
def cost_ratios(cost: Table, width: str | float = "double") -> Drawing | None:
    """Draw cache bytes, peak memory and time per token over those of the full cache, and the share of scoring.

    Parameters
    ----------
    cost
        The `cost` table.
    width
        See `style.inches`.

    Returns
    -------
    Drawing or None
        None when no method evicts.
    """
    evicted = evicted_rows(cost)
    if not evicted.rows:
        return None
    methods, budgets, size = names(evicted, "method"), budgets_of(evicted)[::-1], inches(width)
    wide = size >= WIDE
    shades = np.linspace(0.15, 0.9, len(budgets)) if len(budgets) > 1 else [0.15]
    faces = {budget: (shade, shade, shade) for budget, shade in zip(budgets, shades, strict=True)}
    handles = {
        labelled(b): Line2D([], [], linestyle="", marker="o", color=INK, markerfacecolor=faces[b]) for b in budgets
    }
    handles["by the ledger"] = Line2D([], [], linestyle="", marker="|", color=INK, markersize=7)
    rows = Rows.of(methods, size)
    figure, axes = panel_grid(
        size, len(_COSTS), len(_COSTS) if wide else 2, 1.2 * rows.height + 0.55,
        extra=legend_height(size, list(handles)), share="y",
    )  # fmt: skip
    for ax, (column, label) in zip(axes, _COSTS.items(), strict=True):
        for row in evicted:
            budget = budget_of(row)
            # Budgets of a row are set apart, so that marks and bars do not hide each other.
            place = rows.places[methods.index(str(row["method"]))] + 0.5 * (
                (budgets.index(budget) + 0.5) / len(budgets) - 0.5
            )
            if column == "cache_ratio":
                ax.plot(number(row["ledger_ratio"]), place, "|", color=INK, markersize=9)
            if column == "decode_ratio":
                ax.hlines(place, number(row["decode_ratio_low"]), number(row["decode_ratio_high"]), INK, linewidth=0.7)
            ax.plot(number(row[column]), place, "o", color=INK, markerfacecolor=faces[budget])
        _scale(ax, column)
        rows.label(ax)
        ax.set_xlabel(label)
        ax.grid(axis="both")
    letter(axes)
    legend_above(figure, list(handles.values()), list(handles))
    sources = [_PEAKS[str(source)] for source in evicted.distinct("peak_source")]
    caption = (
        "What each method costs as a multiple of the full cache in the same run (dashed line: equal), means over "
        "samples; sizes are on a log scale. "
        "(a) Bytes of the prompt's cache as held in memory; the upright stroke is what the kept entries take by count, "
        "without the padding of ragged heads. "
        f"(b) Peak memory of decoding: {' or '.join(sources)}. "
        "(c) Time per decoded token, with its 95 % bootstrap interval over samples; small models show the overhead of "
        "each step and not the size of the cache. (d) Time to score and select as a share of the prefill, which all "
        "methods share. Times include whatever else the machine did."
    )
    data = Table("cost_ratios", cost.columns, cost.rows)
    return Drawing("cost_ratios", "Cost beside the full cache", figure, data, caption)


def _scale(ax: Axes, column: str) -> None:
    """A line where the full cache is; sizes on a log scale, as they span orders of magnitude."""
    if column != "scoring_share":
        ax.axvline(1, color=QUIET, linewidth=0.8, linestyle=(0, (5, 2)))
    if column not in {"cache_ratio", "peak_ratio"}:
        ax.xaxis.set_major_locator(MaxNLocator(3))
        ax.set_xlim(left=0)
        return
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ticks = [tick for decade in range(1, -5, -1) for step in (5, 2, 1) if low <= (tick := step * 10.0**decade) <= high]
    chosen = spaced([-math.log(tick) for tick in ticks], math.log(high / low), 4)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks([ticks[k] for k in chosen], [f"{ticks[k]:g}" for k in chosen])
