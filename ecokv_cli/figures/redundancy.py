"""Per-head numbers over depth: the diversity weight lambda, and how importance and diversity correlate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator

from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import (
    and_samples,
    counted,
    dot_below,
    heat_map,
    label_layers,
    legend_above,
    letter,
    map_height,
    over_heads,
    round_limits,
)
from ecokv_cli.figures.profiles import Stroke, add_profile, band_words, draw_profile, profile, profile_table
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
from ecokv_cli.studies.reduced import prepared
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ecokv_cli.figures.parts import Array
    from ecokv_cli.figures.profiles import Profile
    from ecokv_cli.studies.tables import Stats

_LAMBDAS = {
    "lambda_ecokv": ("ECOKV", Stroke(VERMILLION, "solid", "D")),
    "lambda_mixkv": ("MixKV", Stroke(ORANGE, (0, (3, 1.2)), "s")),
    "lambda_std": ("std variant", Stroke(BLUE, (0, (1, 1)), "v")),
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
    geometry = geometry.where(tensor="keys")
    found = {column: profile(geometry, column) for column in _LAMBDAS}
    ecokv = found["lambda_ecokv"]
    figure, upper, lower = _map_over_profile(inches(width), len(ecokv.kv_heads))
    _map(upper, ecokv.heads, Normalize(*round_limits(ecokv.heads)), SEQUENTIAL, "λ of ECOKV")
    data = profile_table("lambda_by_layer")
    for column, (_, stroke) in _LAMBDAS.items():
        draw_profile(lower, found[column], stroke)
        add_profile(data, found[column], measure=column)
    lower.set(xlabel="layer", ylabel="λ", ylim=(0, 1.03))
    lower.grid(axis="y")
    _label(upper, lower, ecokv)
    legend_above(figure, [stroke.handle for _, stroke in _LAMBDAS.values()], [name for name, _ in _LAMBDAS.values()])
    caption = (
        f"Diversity weight λ. (a) ECOKV's λ for every layer and KV head{_mean_over(geometry)}; (b) by layer ECOKV's λ, "
        "MixKV's (cosine redundancy alone) and that of the variant from the standard deviation of the keys. "
        f"{band_words(geometry)} "
        "A high λ says that the keys of a head are redundant, so selection there looks more at diversity; at 0 it "
        f"looks at importance alone.{_undefined(geometry, 'lambda_ecokv')}"
    )
    return Drawing("lambda_by_layer", "Diversity weight λ over layers and heads", figure, data, caption)


@drawn
def spearman_by_layer(geometry: Table, width: str | float = "single") -> Drawing:
    """Draw the rank correlation of importance and diversity per head as a map and as strips.

    Bars are medians over heads; for several samples means with their intervals over samples.

    Parameters
    ----------
    geometry
        The `geometry` table; undefined correlations are counted and hatched.
    width
        See `style.inches`.
    """
    geometry = geometry.where(tensor="keys")
    found = profile(geometry, "spearman")
    cells = found.heads
    shown = np.concatenate([cells.ravel(), found.low, found.high])
    defined = shown[np.isfinite(shown)]
    reach = max(0.2, math.ceil(10 * float(np.abs(defined).max())) / 10) if defined.size else 1.0
    figure, upper, lower = _map_over_profile(inches(width), len(found.kv_heads), extra=0.15)
    _map(upper, cells, Normalize(-reach, reach), DIVERGING, "Spearman's ρ")
    dot_below(upper, cells, 0)
    bar, words = _strips(lower, found)
    lower.set(ylabel="Spearman's ρ", ylim=(-1.07 * reach, 1.07 * reach))
    lower.grid(axis="y")
    _label(upper, lower, found)
    legend_above(figure, *lower.get_legend_handles_labels())
    numbers = correlated(geometry).stats((), "spearman_n")[()]
    n = f"n = {_span(numbers)} positions" if numbers.defined else "no correlation is defined"
    missing = numbers.rows - numbers.defined
    note = f"{n}, {missing} of {counted(numbers.rows, 'head')} undefined" if numbers.defined and missing else n
    lower.set_xlabel(f"layer\n({note})")
    caption = (
        f"Spearman's rank correlation ρ between the importance and the diversity of the keys of a head; {n}. "
        f"(a) Every layer and KV head{_mean_over(geometry)}, with a dot where ρ is negative; (b) the heads of each "
        f"layer as circles and {words}. Near 0 the two scores order the keys independently, so diversity adds "
        "information that importance lacks; near 1 they agree and it adds little; below 0 the important keys are the "
        f"typical ones.{_undefined(geometry, 'spearman')}"
    )
    data = profile_table("spearman_by_layer")
    add_profile(data, found, measure="spearman")
    for layer, middle in zip(found.layers, bar, strict=True):
        row = {"value": float(middle), "low": None, "high": None, "samples": found.samples}
        data.add(measure="spearman", layer=layer, kv_head="bar", **row)
    return Drawing("spearman_by_layer", "Correlation of importance and diversity", figure, data, caption)


def _strips(ax: Axes, found: Profile) -> tuple[Array, str]:
    """Draw the heads of each layer as circles with a bar at their middle; returns the bars and what they are."""
    places = np.arange(len(found.layers))
    ax.axhline(0, color=INK, linewidth=0.6)
    spots = np.tile(places, len(found.kv_heads))
    ax.plot(spots, found.heads.ravel(), "o", color=QUIET, markersize=2.4, markerfacecolor="white", label="one KV head")
    several = found.samples > 1
    bar = found.mean if several else over_heads(found.heads, np.median)
    label, words = ("mean, 95 % interval", "their mean over heads and samples as a bar, its whisker the 95 % bootstrap "
                    "interval over samples") if several else ("median of heads", "their median as a bar")  # fmt: skip
    ax.hlines(bar, places - 0.36, places + 0.36, color=VERMILLION, linewidth=1.6, label=label)
    if several:
        ax.vlines(places, found.low, found.high, color=VERMILLION, linewidth=0.9)
    return bar, words


def _map_over_profile(width: float, heads: int, extra: float = 0.0) -> tuple[Figure, Axes, Axes]:
    """Two panels over the same layers: a map whose rows are heads, and a profile."""
    heights = [map_height(heads), 1.25]
    figure = new_figure(width, sum(heights) + 0.95 + extra)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    return figure, upper, lower


def _map(ax: Axes, cells: Array, norm: Normalize, cmap: str, label: str) -> None:
    """Draw a heads-by-layers map with its colour bar above the right part."""
    mesh = heat_map(ax, cells, norm, cmap)
    unit = 1 / map_height(len(cells))
    bar_axes = ax.inset_axes((0.45, 1 + 0.07 * unit, 0.55, 0.07 * unit))
    bar = ax.figure.colorbar(mesh, cax=bar_axes, orientation="horizontal", ticklocation="top")
    bar.outline.set_visible(False)
    bar.locator = MaxNLocator(4)
    bar_axes.tick_params(length=2, pad=1)
    bar_axes.text(-0.03, 0.5, label, transform=bar_axes.transAxes, ha="right", va="center")


def _label(upper: Axes, lower: Axes, found: Profile) -> None:
    lower.set(xlim=(-0.5, len(found.layers) - 0.5))
    label_layers(lower.xaxis, found.layers)
    upper.tick_params(labelbottom=False)
    upper.set_ylabel("KV head")
    label_layers(upper.yaxis, found.kv_heads, room=4)
    letter((upper, lower))


def _mean_over(geometry: Table) -> str:
    return f" (mean over{and_samples(geometry).removeprefix(' and')})" if and_samples(geometry) else ""


def _undefined(geometry: Table, column: str) -> str:
    stats = geometry.stats((), column)[()]
    missing = stats.rows - stats.defined
    if not missing:
        return ""
    verb = "is" if missing == 1 else "are"
    if and_samples(geometry):
        return f" {missing:,} of {stats.rows:,} heads of samples {verb} undefined and left out of the means."
    return f" {counted(missing, 'head')} of {stats.rows:,} {verb} undefined, hatched in (a) and left out of (b)."


@prepared
def correlated(geometry: Table) -> Table:
    """The table with a number of positions only where there is a correlation of them."""
    rows = [row if row["spearman"] is not None else row | {"spearman_n": None} for row in geometry]
    return Table(geometry.name, geometry.columns, rows)


def _span(numbers: Stats) -> str:
    return f"{numbers.low:,}" if numbers.low == numbers.high else f"{numbers.low:,} to {numbers.high:,}"
