"""Per-head numbers over depth: the diversity weight lambda, and how importance and diversity correlate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import Normalize

from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import (
    counted,
    grid,
    heat_map,
    label_layers,
    legend_above,
    letter,
    ordered,
    over_heads,
    whole,
)
from ecokv_cli.figures.style import (
    BLUE,
    DIVERGING,
    INK,
    ORANGE,
    QUIET,
    SEQUENTIAL,
    VERMILLION,
    inches,
    new_figure,
)
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ecokv_cli.figures.parts import Array

_PROFILES = {
    "lambda_ecokv": ("ECOKV", VERMILLION, "solid", "D"),
    "lambda_mixkv": ("MixKV", ORANGE, (0, (3, 1.2)), "s"),
    "lambda_std": ("std variant", BLUE, (0, (1, 1)), "v"),
}


@drawn
def lambda_by_layer(geometry: Table, width: str | float = "single") -> Drawing:
    """Draw the diversity weight lambda: ECOKV's per head as a map, and the layer profiles of its three definitions.

    Parameters
    ----------
    geometry
        The `geometry` table.
    width
        See `style.inches`.
    """
    layers, heads = ordered(geometry, "layer"), ordered(geometry, "kv_head")
    cells = {column: grid(geometry, column) for column in _PROFILES}
    figure, upper, lower = _map_over_profile(inches(width), len(heads))
    limits = _round_limits(cells["lambda_ecokv"])
    _map(upper, cells["lambda_ecokv"], Normalize(*limits), SEQUENTIAL, "λ of ECOKV")
    places = np.arange(len(layers))
    for column, (name, color, dash, marker) in _PROFILES.items():
        low, high = over_heads(cells[column], np.min), over_heads(cells[column], np.max)
        lower.fill_between(places, low, high, color=color, alpha=0.16, linewidth=0)
        every = max(1, len(layers) // 7)
        mean = over_heads(cells[column], np.mean)
        lower.plot(places, mean, color=color, linestyle=dash, marker=marker, markevery=every, markersize=3, label=name)
    lower.set(xlabel="layer", ylabel="λ", ylim=(0, 1.03))
    lower.grid(axis="y")
    _label(upper, lower, layers, heads)
    legend_above(figure, *lower.get_legend_handles_labels())
    caption = (
        "Diversity weight λ. (a) ECOKV's λ for every layer and KV head; (b) mean over "
        f"{counted(len(heads), 'KV head')} by layer of ECOKV's λ, of MixKV's (cosine redundancy alone) and of the "
        "variant from the standard deviation of the keys, with a band from the lowest to the highest head. "
        "A high λ says that the keys of a head are redundant, so selection there looks more at diversity; at 0 it "
        f"looks at importance alone.{_undefined(geometry, 'lambda_ecokv')}"
    )
    data = _cells_table("lambda_by_layer", geometry, tuple(_PROFILES))
    return Drawing("lambda_by_layer", "Diversity weight λ over layers and heads", figure, data, caption)


@drawn
def spearman_by_layer(geometry: Table, width: str | float = "single") -> Drawing:
    """Draw the rank correlation of importance and diversity per head as a map and as strips with medians.

    Parameters
    ----------
    geometry
        The `geometry` table; undefined correlations are counted and hatched.
    width
        See `style.inches`.
    """
    layers, heads = ordered(geometry, "layer"), ordered(geometry, "kv_head")
    cells = grid(geometry, "spearman")
    defined = cells[np.isfinite(cells)]
    reach = max(0.2, math.ceil(10 * float(np.abs(defined).max())) / 10) if defined.size else 1.0
    figure, upper, lower = _map_over_profile(inches(width), len(heads), extra=0.15)
    _map(upper, cells, Normalize(-reach, reach), DIVERGING, "Spearman's ρ")
    below = np.argwhere(cells < 0)
    upper.plot(below[:, 1], below[:, 0], "o", color=INK, markersize=1.1, markeredgewidth=0)
    places = np.arange(len(layers))
    lower.axhline(0, color=INK, linewidth=0.6)
    spots = np.tile(places, len(heads))
    lower.plot(spots, cells.ravel(), "o", color=QUIET, markersize=2.4, markerfacecolor="white", label="one KV head")
    median = over_heads(cells, np.median)
    lower.hlines(median, places - 0.36, places + 0.36, color=VERMILLION, linewidth=1.6, label="median of heads")
    lower.set(ylabel="Spearman's ρ", ylim=(-reach, reach))
    lower.grid(axis="y")
    _label(upper, lower, layers, heads)
    legend_above(figure, *lower.get_legend_handles_labels())
    numbers = sorted({whole(row["spearman_n"]) for row in geometry if row["spearman"] is not None})
    n = f"n = {_span(numbers)} positions" if numbers else "no correlation is defined"
    missing = len(geometry.where(spearman=None))
    note = f"{n}, {missing} of {counted(len(geometry), 'head')} undefined" if numbers and missing else n
    lower.set_xlabel(f"layer\n({note})")
    caption = (
        f"Spearman's rank correlation ρ between the importance and the diversity of the keys of a head; {n}. "
        "(a) Every layer and KV head, with a dot where ρ is negative; (b) the heads of each layer as circles and their "
        "median as a bar. Near 0 the two scores order the keys independently, so diversity adds information that "
        "importance lacks; near 1 they agree and it adds little; below 0 the important keys are the typical ones."
        f"{_undefined(geometry, 'spearman')}"
    )
    data = _cells_table("spearman_by_layer", geometry, ("spearman", "spearman_n", "spearman_p", "spearman_note"))
    return Drawing("spearman_by_layer", "Correlation of importance and diversity", figure, data, caption)


def _map_over_profile(width: float, heads: int, extra: float = 0.0) -> tuple[Figure, Axes, Axes]:
    """Two panels over the same layers: a map whose rows are heads, and a profile."""
    heights = [_map_height(heads), 1.25]
    figure = new_figure(width, sum(heights) + 0.95 + extra)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    return figure, upper, lower


def _map_height(heads: int) -> float:
    return float(np.clip(0.12 * heads, 0.46, 1.6))


def _map(ax: Axes, cells: Array, norm: Normalize, cmap: str, label: str) -> None:
    """Draw a heads-by-layers map with its colour bar above the right part."""
    mesh = heat_map(ax, cells, norm, cmap)
    unit = 1 / _map_height(len(cells))
    bar_axes = ax.inset_axes((0.45, 1 + 0.07 * unit, 0.55, 0.07 * unit))
    bar = ax.figure.colorbar(mesh, cax=bar_axes, orientation="horizontal", ticklocation="top")
    bar.outline.set_visible(False)
    bar_axes.tick_params(length=2, pad=1)
    bar_axes.text(-0.03, 0.5, label, transform=bar_axes.transAxes, ha="right", va="center")


def _label(upper: Axes, lower: Axes, layers: list[int], heads: list[int]) -> None:
    lower.set(xlim=(-0.5, len(layers) - 0.5))
    label_layers(lower.xaxis, layers)
    upper.tick_params(labelbottom=False)
    upper.set_ylabel("KV head")
    label_layers(upper.yaxis, heads, room=4)
    letter((upper, lower))


def _round_limits(cells: Array) -> tuple[float, float]:
    """The range of the defined cells, widened to tenths."""
    defined = cells[np.isfinite(cells)]
    if not defined.size:
        return 0.0, 1.0
    low, high = math.floor(10 * float(defined.min())) / 10, math.ceil(10 * float(defined.max())) / 10
    return low, max(high, low + 0.1)


def _undefined(geometry: Table, column: str) -> str:
    missing = len(geometry.where(**{column: None}))
    if not missing:
        return ""
    verb = "is" if missing == 1 else "are"
    return f" {counted(missing, 'head')} of {len(geometry):,} {verb} undefined, hatched in (a) and left out of (b)."


def _span(numbers: list[int]) -> str:
    return f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"


def _cells_table(name: str, geometry: Table, columns: tuple[str, ...]) -> Table:
    wanted = ("sample", "layer", "kv_head", *columns)
    return Table(name, wanted, [{c: row[c] for c in wanted} for row in geometry])
