"""Ablations: the 2 x 2 of window and booster, the grid of alpha and beta, and single options against the default."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from ecokv_cli.figures.budgets import at_budgets
from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import (
    WIDE,
    heat_map,
    legend_above,
    legend_height,
    letter,
    names,
    ordered,
)
from ecokv_cli.figures.profiles import Stroke
from ecokv_cli.figures.style import BLUE, INK, QUIET, SEQUENTIAL, VERMILLION, inches, new_figure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

    from ecokv_cli.figures.parts import Array
    from ecokv_cli.figures.style import Dash
    from ecokv_cli.studies.tables import Table, Value

_PLAIN, _BOOSTED = Stroke(BLUE, "solid", "o"), Stroke(VERMILLION, (0, (4, 1.4)), "s")
_DOTTED = (0, (1, 1.2))
_FULL = Line2D([], [], color=QUIET, linewidth=1.2, linestyle=_DOTTED)
_DASHED = (0, (4, 2))
_INTERVALS = "95 % bootstrap intervals over {n:,} samples"
_MAIN = ("window", "booster", "interaction")


def draw_ablation(tables: Sequence[Table], width: str | float = "double") -> list[Drawing]:
    """Draw every experiment there is a table of.

    Parameters
    ----------
    tables
        Those of `ablate.tables_of`, and ``full_cache``, the accuracy of the full cache.
    width
        See `style.inches`.
    """
    found = {table.name: table for table in tables}
    full, drawings = found.pop("full_cache"), []
    if "factorial" in found:
        drawings.append(ablation_factorial(found.pop("factorial"), found.pop("factorial_effects"), full, width))
    if "grid" in found:
        drawings.append(ablation_grid(found.pop("grid"), found.pop("grid_optimum"), width))
    return drawings + [ablation_variants(table, full, width) for table in found.values()]


@drawn
def ablation_factorial(cells: Table, effects: Table, full: Table, width: str | float = "double") -> Drawing:
    """Draw the interaction plot of window and booster, and the effects with their intervals.

    Parameters
    ----------
    cells, effects, full
        The `factorial`, `factorial_effects` and `full_cache` tables.
    width
        See `style.inches`.
    """
    budgets, wide = ordered(cells, "budget"), inches(width) >= WIDE
    plain, boosted = names(cells, "booster")
    labels = [f"without {boosted}", f"with {boosted}", "full cache"]
    panels = 2 * len(budgets)
    figure = new_figure(inches(width), 1.85 * (len(budgets) if wide else panels) + legend_height(inches(width), labels))
    shape = (len(budgets), 2) if wide else (panels, 1)
    axes = figure.subplots(*shape, squeeze=False, width_ratios=[1, 1.3] if wide else None).ravel().tolist()
    for left, right, budget in zip(axes[::2], axes[1::2], budgets, strict=True):
        _interaction(left, cells.where(budget=budget), {plain: _PLAIN, boosted: _BOOSTED}, full)
        _effects(right, effects.where(budget=budget), cells)
        if len(budgets) > 1:
            left.set_ylabel(f"mean score, budget {budget:,}")
    letter(axes)
    legend_above(figure, [_PLAIN.handle, _BOOSTED.handle, _FULL], labels)
    caption = (
        f"Window and booster as a 2 x 2{at_budgets(budgets, 'pair of panels')}. Dots and lines, mean score of each "
        "cell: with parallel lines the gains of window and booster add up. Beside them what each gains, as mean paired "
        "differences: the main effects (filled) are means of the two simple effects (hollow), and the interaction is "
        f"how much more {boosted} gains at the second window. Bars are {_INTERVALS.format(n=cells.rows[0]['n'])}; one "
        "that leaves out 0 is more than the choice of samples explains."
    )
    return Drawing("ablation_factorial", "Window and booster told apart", figure, effects, caption)


def _interaction(ax: Axes, cells: Table, strokes: dict[str, Stroke], full: Table) -> None:
    windows = cells.distinct("window")
    for (booster, stroke), aside in zip(strokes.items(), (-0.04, 0.04), strict=True):
        rows = [cells.where(booster=booster, window=window).rows[0] for window in windows]
        x = np.arange(len(windows)) + aside
        low, mean, high = (np.array([_number(row[c]) for row in rows]) for c in ("low", "mean", "high"))
        ax.vlines(x, low, high, color=stroke.color, linewidth=1.0)
        ax.plot(x, mean, color=stroke.color, linestyle=stroke.dash, marker=stroke.marker)
    _full_line(ax.axhline, full)
    ax.set(xlim=(-0.4, 1.4), xlabel="window", ylabel="mean score")
    ax.set_xticks(range(len(windows)), [str(window) for window in windows])
    ax.grid(axis="y")


def _effects(ax: Axes, effects: Table, cells: Table) -> None:
    before, after = cells.distinct("window")
    booster = names(cells, "booster")[-1]
    labels = {
        "window": f"window {before} → {after}",
        "booster": f"+{booster}",
        "interaction": "interaction",
        "window_plain": f"window, without {booster}",
        "window_boosted": f"window, with {booster}",
        "booster_first": f"+{booster}, window {before}",
        "booster_second": f"+{booster}, window {after}",
        "both": "both together",
    }
    _differences(ax, effects, "effect", labels, filled=_MAIN)
    ax.set_xlabel("difference of scores")


@drawn
def ablation_variants(table: Table, full: Table, width: str | float = "double") -> Drawing:
    """Draw the mean of every variant, and its paired difference to the method as it is.

    Parameters
    ----------
    table, full
        A table of `variants_table`, and `full_cache`.
    width
        See `style.inches`.
    """
    budgets, labels = ordered(table, "budget"), names(table, "variant")
    legend = ["full cache"]
    height = len(budgets) * (0.18 * len(labels) + 0.55) + legend_height(inches(width), legend)
    figure = new_figure(inches(width), height)
    axes = figure.subplots(len(budgets), 2, squeeze=False, sharey=True).ravel().tolist()
    for left, right, budget in zip(axes[::2], axes[1::2], budgets, strict=True):
        rows = table.where(budget=budget)
        for place, row in enumerate(rows):
            left.hlines(place, _number(row["low"]), _number(row["high"]), color=INK, linewidth=1.1)
            filled = row["against"] is None
            left.plot(_number(row["mean"]), place, "o", color=INK, markerfacecolor=INK if filled else "white")
        _full_line(left.axvline, full)
        left.set_xlabel("mean score" if len(budgets) == 1 else f"mean score, budget {budget:,}")
        left.xaxis.set_major_locator(MaxNLocator(3))
        left.grid(axis="both")
        _differences(right, rows, "variant", {label: label for label in labels})
        right.set_xlabel("difference")
        right.tick_params(axis="y", length=0)
        left.tick_params(axis="y", length=0)
    letter(axes)
    legend_above(figure, [_FULL], legend)
    what = table.name.replace("_", " ")
    against = [str(value) for value in table.distinct("against") if value is not None]
    caption = (
        f"Variants of {what}{at_budgets(budgets, 'row')}: mean score, and the mean paired difference to {against[0]} "
        "(filled, itself without a difference). Bars are "
        f"{_INTERVALS.format(n=table.rows[0]['n'])}; one that leaves out 0 is more than the choice of samples explains."
    )
    return Drawing(f"ablation_{table.name}", f"Ablation: {what}", figure, table, caption)


def _differences(ax: Axes, rows: Table, column: str, labels: dict[str, str], filled: Sequence[str] = ()) -> None:
    """Dots with intervals, one per row, about a line at 0."""
    ax.axvline(0, color=INK, linewidth=0.6, linestyle=_DASHED)
    for place, row in enumerate(rows):
        low, mean, high = (_number(row[c]) for c in ("difference_low", "difference", "difference_high"))
        face = INK if row[column] in filled else "white"
        ax.hlines(place, low, high, color=INK, linewidth=1.1)
        ax.plot(mean, place, "D", color=INK, markerfacecolor=face)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), [labels[str(row[column])] for row in rows])
    ax.tick_params(axis="y", length=0)
    ax.xaxis.set_major_locator(MaxNLocator(3))
    ax.margins(x=0.08)
    ax.grid(axis="both")


@drawn
def ablation_grid(cells: Table, optimum: Table, width: str | float = "double") -> Drawing:
    """Draw the mean score over alpha and beta, and how often each cell is the best.

    Parameters
    ----------
    cells, optimum
        The `grid` and `grid_optimum` tables.
    width
        See `style.inches`.
    """
    budgets, wide = ordered(cells, "budget"), inches(width) >= WIDE
    alphas, betas = sorted(cells.distinct("alpha"), key=_number), sorted(cells.distinct("beta"), key=_number)
    rows = len(budgets) if wide else 2 * len(budgets)
    figure = new_figure(inches(width), rows * (0.24 * len(betas) + 0.6))
    axes = figure.subplots(rows, 2 if wide else 1, squeeze=False).ravel().tolist()
    room = inches(width) / (2 if wide else 1) - 0.9
    for i, budget in enumerate(budgets):
        mine = cells.where(budget=budget)
        for ax, column in zip(axes[2 * i : 2 * i + 2], ("mean", "wins"), strict=True):
            values = _square(mine, column, alphas, betas)
            limits = _limits(values)
            mesh = heat_map(ax, values, Normalize(*limits), SEQUENTIAL)
            if room / len(alphas) >= 0.27:
                _write(ax, values, limits)
            _frame(ax, _square(mine, "best", alphas, betas), 0.9, "solid", 1.6)
            _frame(ax, _square(mine, "reference", alphas, betas), 0.68, (0, (2, 1.2)), 0.9)
            ax.set_xticks(range(len(alphas)), [f"{_number(alpha):g}" for alpha in alphas])
            ax.set_yticks(range(len(betas)), [f"{_number(beta):g}" for beta in betas])
            ax.invert_yaxis()
            ax.set(xlabel="α", ylabel="β")
            words = "mean score" if column == "mean" else "share of wins"
            figure.colorbar(mesh, ax=ax, label=words + (f", budget {budget:,}" if len(budgets) > 1 else ""), pad=0.02)
    letter(axes)
    caption = (
        f"Weight α of the Euclidean diversity against weight β of the Euclidean redundancy"
        f"{at_budgets(budgets, 'pair of panels')}. First the mean score over {cells.rows[0]['n']:,} samples; then how "
        "often a cell has the largest mean when the samples are drawn anew (2,000 bootstrap resamples, ties shared): "
        "an even spread means that there is no optimum to speak of. Framed: the best cell or cells; dashed: the method "
        f"as it is. {' '.join(_best(row) for row in optimum)} The optimum is chosen and judged on the same samples, "
        "which flatters it."
    )
    return Drawing("ablation_grid", "Accuracy over α and β", figure, cells, caption)


def _square(cells: Table, column: str, alphas: Sequence[Value], betas: Sequence[Value]) -> Array:
    """``[betas, alphas]`` of a column."""
    found = {(row["beta"], row["alpha"]): _number(row[column]) for row in cells}
    return np.array([[found[beta, alpha] for alpha in alphas] for beta in betas])


def _write(ax: Axes, values: Array, limits: tuple[float, float]) -> None:
    """The number of every cell, in ink or white, whichever stands out."""
    middle = (limits[0] + limits[1]) / 2
    for (row, column), value in np.ndenumerate(values):
        colour = INK if value > middle else "white"
        text = f"{value:.2f}".removeprefix("0")
        ax.annotate(text, (column, row), ha="center", va="center", color=colour, fontsize=7)


def _frame(ax: Axes, where: Array, size: float, dash: Dash, width: float) -> None:
    """Frames within cells, dark with a light rim so that they show on any colour."""
    for row, column in np.argwhere(where):
        for colour, line, style in (("white", width + 1.2, "solid"), (INK, width, dash)):
            corner = (column - size / 2, row - size / 2)
            frame = Rectangle(
                corner, size, size, fill=False, edgecolor=colour, linewidth=line, linestyle=style, zorder=3
            )
            ax.add_patch(frame)


def _limits(values: Array) -> tuple[float, float]:
    """The range in tenths, never empty; of equal values the tenth below, as a score of 1 is the most there is."""
    low, high = np.floor(10 * values.min()) / 10, np.ceil(10 * values.max()) / 10
    return (low, high) if low < high else (high - 0.1, high) if high > 0 else (0.0, 0.1)


def _best(row: dict[str, Value]) -> str:
    alike = f", a mean that {row['tied']} of {row['cells']} cells share" if _number(row["tied"]) > 1 else ""
    values = f"{_number(row['mean']):.3f}{_ends(row, 'low', 'high', '.3f')}"
    gain = f"{_number(row['difference']):+.3f}{_ends(row, 'difference_low', 'difference_high', '+.3f')}"
    level = f", and {row['level']} of {row['cells']} cells cannot be told from it" if row["level"] is not None else ""
    return (
        f"At budget {row['budget']} the best is α = {_number(row['alpha']):g}, β = {_number(row['beta']):g}{alike}: "
        f"{values}, {gain} to the method as it is; it wins {100 * _number(row['wins']):.0f} % of the resamples{level}."
    )


def _ends(row: dict[str, Value], low: str, high: str, form: str) -> str:
    """An interval in brackets; nothing where there is none, for a single sample."""
    if row[low] is None:
        return ""
    return f" [{_number(row[low]):{form}}, {_number(row[high]):{form}}]"


def _full_line(draw: Callable[..., object], full: Table) -> None:
    for row in full:
        draw(_number(row["mean"]), color=QUIET, linewidth=1.2, linestyle=_DOTTED, zorder=1)


def _number(value: Value) -> float:
    return np.nan if value is None else float(cast("float", value))
