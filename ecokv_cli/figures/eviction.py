"""Which tokens eviction keeps: by role, and how far methods agree."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ecokv_cli.figures.budgets import at_budgets, budgets_of, labelled
from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import (
    WIDE,
    averaged,
    evicting,
    legend_above,
    legend_height,
    letter,
    names,
    panel_grid,
)
from ecokv_cli.figures.roles import present_roles
from ecokv_cli.figures.rows import NAMES
from ecokv_cli.figures.style import INK, SEQUENTIAL, inches, method_styles
from ecokv_cli.studies.statistics import over_samples
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

    from ecokv_cli.figures.parts import Array
    from ecokv_cli.studies.tables import Value

_READABLE_CELL = 0.22
"""Inches; numbers are written into cells that are at least as wide."""

_TALLEST = 9.0
"""Inches that fit on a page."""


@drawn
def kept_by_role(roles: Table, width: str | float = "single") -> Drawing:
    """Draw the share of text, image and special tokens that each method keeps, one panel per budget.

    Parameters
    ----------
    roles
        The `roles` table.
    width
        See `style.inches`.
    """
    methods, budgets = evicting(names(roles, "method")), budgets_of(roles)
    kinds = present_roles(roles)
    styles = method_styles(methods)
    data = _role_shares(roles, methods)
    several = len(roles.distinct("sample")) > 1
    columns = 2 if inches(width) >= WIDE else 1
    extra = legend_height(inches(width), methods) + 0.1
    figure, axes = panel_grid(inches(width), len(budgets), columns, 1.35, extra=extra, share="xy")
    bar = 0.84 / len(methods)
    for i, (ax, budget) in enumerate(zip(axes, budgets, strict=True)):
        for k, method in enumerate(methods):
            mine = data.where(method=method, budget=budget)
            heights, low, high = (_by_role(mine, column, kinds) for column in ("share_of_role", "low", "high"))
            places = np.arange(len(kinds)) + bar * (k - (len(methods) - 1) / 2)
            color = styles[method].color
            ax.bar(places, heights, 0.9 * bar, facecolor=_pale(color), edgecolor=color, hatch=styles[method].hatch)
            if several:
                ax.vlines(places, low, high, color=INK, linewidth=1.0)
        blind = _blind_share(roles.where(budget=budget))
        if blind is not None:
            ax.axhline(blind, color=INK, linewidth=0.7, linestyle=(0, (4, 2)))
        ax.set(ylim=(0, 1.02), ylabel="share kept" if i % columns == 0 else "")
        ax.set_xticks(range(len(kinds)), kinds)
        ax.tick_params(axis="x", length=0)
        ax.grid(axis="y")
    if len(budgets) > 1:
        letter(axes, [labelled(budget) for budget in budgets])
    looks = [styles[method] for method in methods]
    handles = [Patch(facecolor=_pale(s.color), edgecolor=s.color, hatch=s.hatch) for s in looks]
    legend_above(figure, handles, methods)
    caption = (
        f"Share of the text, image and special tokens of the prompt that each method keeps{at_budgets(budgets)}, as "
        f"means over {averaged(roles)}. The dashed line is what a choice blind to roles would keep: bars above it mean "
        "that a method favours the role, bars below that it sacrifices it. A role with few tokens, such as special, "
        f"has coarse shares.{' Upright lines are 95 % bootstrap intervals over samples.' if several else ''}"
    )
    return Drawing("kept_by_role", "Kept share by role", figure, data, caption)


def _role_shares(roles: Table, methods: list[str]) -> Table:
    """Mean over samples of the share of each role, with its interval."""
    where = ("method", "budget", "role")
    data = Table("kept_by_role", (*where, "share_of_role", "low", "high", "samples"))
    for row in over_samples(roles, where, ("share_of_role",)):
        if row["method"] in methods:
            ends = {"share_of_role": row["mean"], "low": row["low"], "high": row["high"], "samples": row["n"]}
            data.add(**{c: row[c] for c in where}, **ends)
    return data


def _by_role(rows: Table, column: str, kinds: list[str]) -> Array:
    found = rows.aggregate(("role",), column, lambda v: v[0])
    return np.array([found.get((role,), math.nan) for role in kinds], dtype=np.float64)


def _pale(color: str) -> tuple[float, float, float]:
    """A tint of a colour that leaves its hatch readable."""
    red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 1 - 0.35 * (1 - red), 1 - 0.35 * (1 - green), 1 - 0.35 * (1 - blue)


def _blind_share(roles: Table) -> float | None:
    """Share of all tokens that the methods which evict keep, mean over samples."""
    evicted = roles.among("method", [method for method in names(roles, "method") if method != "full"])
    if not evicted.rows:
        return None
    kept, tokens = (list(evicted.by_sample(("method", "role"), c).values()) for c in ("kept_tokens", "tokens"))
    return float(np.mean(np.nansum(kept, axis=0) / np.nansum(tokens, axis=0)))


@drawn
def overlap_matrix(overlap: Table, width: str | float = "double") -> Drawing | None:
    """Draw how far the kept sets of methods agree (Jaccard), one matrix per budget.

    Parameters
    ----------
    overlap
        The `overlap` table; a pair may be given in one order only.
    width
        See `style.inches`.

    Returns
    -------
    Drawing or None
        None when fewer than two methods evict.
    """
    methods = evicting(list(dict.fromkeys([*names(overlap, "method_a"), *names(overlap, "method_b")])))
    if len(methods) < 2:
        return None
    budgets = budgets_of(overlap)
    columns = min(len(budgets), 2 if inches(width) >= WIDE else 1)
    ticks, key = _tick_names(methods, inches(width))
    labels, heading = _label_inches(ticks), 0.25 if len(budgets) > 1 else 0.1
    extra = labels + (legend_height(inches(width), key) if key else 0.0)
    across = (inches(width) - labels - 0.65 - 0.2 * (columns - 1)) / columns
    down = (_TALLEST - extra) / math.ceil(len(budgets) / columns) - heading
    cell = min(across / len(methods), down / len(methods), 0.42)
    panel = cell * len(methods) + heading
    figure, axes = panel_grid(inches(width), len(budgets), columns, panel, extra=extra, layout="compressed", share="xy")
    data = Table("overlap_matrix", ("budget", "method_a", "method_b", "jaccard"))
    top = _top([row for row in overlap if row["method_a"] != row["method_b"] and "full" not in row.values()])
    for ax, budget in zip(axes, budgets, strict=True):
        values = _symmetric(overlap.where(budget=budget), methods)
        mesh = _matrix(ax, values, ticks, Normalize(0, top), numbers=cell >= _READABLE_CELL)
        for i, a in enumerate(methods):
            for k, b in enumerate(methods):
                data.add(budget=budget, method_a=a, method_b=b, jaccard=float(values[i, k]))
    if key:
        legend_above(figure, [Line2D([], [], linestyle="")] * len(key), key)
    bar = figure.colorbar(mesh, ax=axes, shrink=0.7, aspect=25, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_label("Jaccard index")
    if len(budgets) > 1:
        letter(axes, [labelled(budget) for budget in budgets])
    caption = (
        "Agreement of the kept sets of two methods as Jaccard index (shared over united "
        f"positions){at_budgets(budgets)}: 1 means the same tokens, 0 none in common. It is averaged over "
        f"{averaged(overlap)} and counts only positions outside both windows, since a common window would make methods "
        "look more alike than they are."
    )
    if key:
        caption += " Rows and columns are numbered as in the list above the matrix."
    if cell < _READABLE_CELL:
        caption += " The numbers are in the data file, as the cells are too small for them."
    return Drawing("overlap_matrix", "Agreement of methods", figure, data, caption)


def _label_inches(names: Sequence[str]) -> float:
    """Inches that names of rows and columns take beside a matrix."""
    return 0.066 * max(map(len, names)) + 0.1


def _tick_names(methods: list[str], width: float) -> tuple[list[str], list[str]]:
    """What rows and columns are called, and a key to it: where names are long, rows and columns have numbers."""
    if _label_inches(methods) <= NAMES * width:
        return methods, []
    numbers = [str(1 + i) for i in range(len(methods))]
    return numbers, [f"{number}  {method}" for number, method in zip(numbers, methods, strict=True)]


def _top(rows: list[dict[str, Value]]) -> float:
    """The upper end of the colours: the largest index of two different methods, rounded up to tenths."""
    return math.ceil(10 * max((float(cast("float", row["jaccard"] or 0)) for row in rows), default=1.0) or 1) / 10


def _symmetric(overlap: Table, methods: list[str]) -> Array:
    """``[methods, methods]``; a method agrees with itself, pairs that are not given are NaN."""
    means = overlap.aggregate(("method_a", "method_b"), "jaccard", lambda v: float(np.mean(v)))
    values = np.full((len(methods), len(methods)), math.nan)
    np.fill_diagonal(values, 1.0)
    for (a, b), share in means.items():
        if a != b and a in methods and b in methods:
            i, k = methods.index(str(a)), methods.index(str(b))
            values[i, k] = values[k, i] = share
    return values


def _matrix(ax: Axes, values: Array, ticks: list[str], norm: Normalize, *, numbers: bool) -> AxesImage:
    cells = np.ma.masked_array(values, ~np.isfinite(values) | np.eye(len(ticks), dtype=bool))
    mesh = ax.imshow(cells, cmap=SEQUENTIAL, norm=norm, interpolation="none")
    ax.patch.set_facecolor("#efefef")
    ax.set_xticks(range(len(ticks)), ticks, rotation=90 if max(map(len, ticks)) > 2 else 0)
    ax.set_yticks(range(len(ticks)), ticks)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    for (i, k), value in np.ndenumerate(cells.filled(math.nan)):
        if numbers and i != k:
            text = "–" if np.isnan(value) else "1" if value >= 0.995 else f"{value:.2f}"[1:]
            light = norm(value) > 0.6 or np.isnan(value)
            ax.text(k, i, text, ha="center", va="center", fontsize=7, color=INK if light else "white")
    return mesh
