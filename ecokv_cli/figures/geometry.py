"""How the keys of each layer lie: cosine distributions, mean similarity and distance, principal components."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import MultipleLocator

from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import (
    WIDE,
    counted,
    grid,
    label_layers,
    legend_above,
    letter,
    listed,
    names,
    ordered,
    over_heads,
)
from ecokv_cli.figures.style import BLACK, BLUE, FAINT, INK, QUIET, VERMILLION, inches, new_figure
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ecokv_cli.figures.parts import Array
    from ecokv_cli.studies.tables import Value

_MOST_CLOUDS = 9


@dataclass(frozen=True)
class _RoleLook:
    """Marks of one role, told apart by shape and filling as well as by colour; size and line in points."""

    marker: str
    face: str
    edge: str
    size: float
    line: float


_ROLES = {
    "image": _RoleLook("o", "none", BLUE, size=3.0, line=0.5),
    "text": _RoleLook("s", VERMILLION, "white", size=3.5, line=0.3),
    "special": _RoleLook("^", BLACK, "white", size=4.2, line=0.3),
}
"""In drawing order: the many below, the few on top."""


@drawn
def cosine_distribution(histogram: Table, width: str | float = "single") -> Drawing | None:
    """Draw the distribution of key cosine similarity, one ridge per layer; a table without rows gives None.

    Parameters
    ----------
    histogram
        The `cosine_histogram` table: shares of sampled key pairs per bin, layer and KV head.
    width
        See `style.inches`.
    """
    if not histogram.rows:
        return None
    layers, heads = ordered(histogram, "layer"), ordered(histogram, "kv_head")
    means = histogram.aggregate(("layer", "bin_low", "bin_high"), "share", lambda v: float(np.mean(v)))
    data = Table("cosine_distribution", ("layer", "bin_low", "bin_high", "share"))
    for (layer, low, high), share in means.items():
        data.add(layer=layer, bin_low=low, bin_high=high, share=share)

    row = float(np.clip(2.7 / len(layers), 0.08, 0.3))
    # Many ridges may overlap, few need not.
    lift = 0.9 if len(layers) <= 12 else 1.6
    figure = new_figure(inches(width), row * (len(layers) + lift) + 0.45)
    ax = figure.add_subplot()
    lowest, highest = 1.0, -1.0
    for place, layer in enumerate(layers):
        rows = data.where(layer=layer)
        lows, highs, heights = (np.array(rows.numbers(c)) for c in ("bin_low", "bin_high", "share"))
        lowest, highest = min(lowest, float(lows[heights > 0].min())), max(highest, float(highs[heights > 0].max()))
        _ridge(ax, place, (lows, highs, heights / heights.max() * lift))
    _frame_ridges(ax, layers, (lowest, highest), lift)
    caption = (
        "Distribution of the cosine similarity between the keys of one layer (horizontal axis), one ridge per layer "
        f"from the first at the top to the last at the bottom, averaged over {counted(len(heads), 'KV head')}. "
        "A ridge at the right end means that all keys point the same way, so many of them are redundant; a ridge "
        "around 0 means that they are unrelated. Each ridge is scaled to its own peak, so compare positions and "
        "widths, not heights; the upright tick marks the median. Shares come from sampled pairs of keys."
    )
    return Drawing("cosine_distribution", "Cosine similarity of keys by layer", figure, data, caption)


def _ridge(ax: Axes, place: int, bins: tuple[Array, Array, Array]) -> None:
    """Draw one ridge on the base line y = `place`; y grows downwards."""
    low, high, height = bins
    occupied = np.flatnonzero(height > 0.01 * height.max())
    reach = slice(occupied[0], occupied[-1] + 1)
    x = np.concatenate([low[reach][:1], (low + high)[reach] / 2, high[reach][-1:]])
    y = place - np.concatenate([[0.0], height[reach], [0.0]])
    median = _median(low, high, height)
    ax.axhline(place, color=FAINT, linewidth=0.5, zorder=place)
    ax.fill_between(x, y, place, facecolor="#cfe8f8", linewidth=0, zorder=place + 0.1)
    ax.plot(x, y, color=INK, linewidth=0.55, zorder=place + 0.2, solid_joinstyle="round")
    top = float(np.interp(median, x, y))
    ax.plot([median, median], [place, top], color=VERMILLION, linewidth=1.1, zorder=place + 0.3, solid_capstyle="butt")


def _median(low: Array, high: Array, share: Array) -> float:
    """Where half of the share is reached, by linear interpolation inside the bin."""
    total = np.cumsum(share) / share.sum()
    i = int(np.searchsorted(total, 0.5))
    before = total[i - 1] if i else 0.0
    return float(low[i] + (high[i] - low[i]) * (0.5 - before) / (total[i] - before))


def _frame_ridges(ax: Axes, layers: list[int], span: tuple[float, float], lift: float) -> None:
    lowest = max(-1.0, math.floor(span[0] * 5) / 5)
    highest = min(1.0, math.ceil(span[1] * 5) / 5)
    ax.set(xlim=(lowest - 0.01, highest + 0.01), ylim=(len(layers) - 0.6, -lift - 0.1))
    ax.set(xlabel="cosine similarity of two keys", ylabel="layer")
    label_layers(ax.yaxis, layers)
    ax.xaxis.set_major_locator(MultipleLocator(0.5 if highest - lowest > 1.2 else 0.2))
    ax.spines.left.set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.axvline(0, color=QUIET, linewidth=0.6, linestyle=(0, (3, 2)), zorder=-1)


@drawn
def geometry_by_layer(geometry: Table, width: str | float = "double") -> Drawing:
    """Draw mean pairwise cosine and mean distance to the centroid against the layer, from the `geometry` table."""
    layers, heads = ordered(geometry, "layer"), ordered(geometry, "kv_head")
    measures = {"cos_mean": "mean pairwise\ncosine", "dist_mean": "mean distance\nto centroid"}
    data = Table("geometry_by_layer", ("layer", "measure", "kv_head", "value"))
    wide = inches(width) >= WIDE
    figure = new_figure(inches(width), 2.1 if wide else 3.4)
    panels = figure.subplots(*((1, 2) if wide else (2, 1)), squeeze=False, sharex=not wide).ravel()
    for ax, (column, label) in zip(panels, measures.items(), strict=True):
        cells = grid(geometry, column)
        mean = over_heads(cells, np.mean)
        places = np.arange(len(layers))
        ax.plot(np.tile(places, len(heads)), cells.ravel(), "o", color=QUIET, markersize=2.2, markerfacecolor="white")
        ax.plot(places, mean, color=BLUE, marker="o" if len(layers) == 1 else "", markersize=3)
        ax.set(ylabel=label)
        ax.grid(axis="y")
        label_layers(ax.xaxis, layers)
        rows = {**{str(head): row for head, row in zip(heads, cells, strict=True)}, "mean": mean}
        for head, values in rows.items():
            for layer, value in zip(layers, values, strict=True):
                data.add(layer=layer, measure=column, kv_head=head, value=float(value))
    panels[1].set_ylim(bottom=0)
    for ax in panels if wide else panels[1:]:
        ax.set_xlabel("layer")
    letter(panels)
    shown = [Line2D([], [], color=BLUE), Line2D([], [], color=QUIET, marker="o", markersize=2.2, linestyle="", mfc="w")]
    legend_above(figure, shown, ["mean over KV heads", "one KV head"])
    caption = (
        "(a) Mean cosine similarity over all pairs of keys and (b) mean Euclidean distance of the keys to their "
        f"centroid, by layer; the line is the mean over {counted(len(heads), 'KV head')}, the circles are the heads. "
        "A high cosine says that keys share a direction, a small distance that they lie close together: both mean "
        "redundancy, yet a layer can be high in one and not in the other, because cosine ignores length. "
        "Distances depend on the scale of the keys, so compare them within a model only."
    )
    return Drawing("geometry_by_layer", "Mean cosine and distance to the centroid", figure, data, caption)


@drawn
def pca_scatter(pca: Table, width: str | float = "double") -> Drawing | None:
    """Draw keys in the plane of their first two principal components, one panel per layer and KV head in the table.

    At most nine panels are drawn (the first nine); a table without rows gives None.
    """
    clouds = list(dict.fromkeys((row["sample"], row["layer"], row["kv_head"]) for row in pca))
    if not clouds:
        return None
    shown = clouds[:_MOST_CLOUDS]
    columns = min(len(shown), 3 if inches(width) >= WIDE else 1 if len(shown) == 1 else 2)
    lines = math.ceil(len(shown) / columns)
    tallest = max(_flatness(pca.where(sample=s, layer=layer, kv_head=head)) for s, layer, head in shown)
    panel = (inches(width) / columns - 0.5) * tallest + (0.65 if len(shown) > 1 else 0.45)
    figure = new_figure(inches(width), lines * panel + 0.2)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for ax, (sample, layer, head) in zip(panels, shown, strict=False):
        _cloud(ax, pca.where(sample=sample, layer=layer, kv_head=head))
    for ax in panels[len(shown) :]:
        ax.set_visible(False)
    if len(shown) > 1:
        letter(panels[: len(shown)], [f"layer {layer}, KV head {head}" for _, layer, head in shown])
    present = [role for role in ("text", "image", "special") if role in names(pca, "role")]
    legend_above(figure, [_role_handle(role) for role in present], [f"{role} tokens" for role in present])
    data = Table(
        "pca_scatter", pca.columns, [row for row in pca if (row["sample"], row["layer"], row["kv_head"]) in shown]
    )
    which = listed([f"KV head {head} of layer {layer}" for _, layer, head in shown])
    caption = (
        f"Keys projected on their first two principal components: {which}. Every mark is one position of the prompt; "
        "axis labels give the share of the variance that each component explains, and both axes have the same scale. "
        "Marks that lie together are keys that are alike; the smaller the explained shares, the more of the "
        "differences between keys this plane cannot show."
    )
    if len(clouds) > len(shown):
        caption += f" {len(clouds) - len(shown)} further chosen heads are not drawn."
    if not all(row["ev2"] for row in data):
        caption += " Where a component explains 0.0 % the keys vary along fewer directions, and it is drawn as 0."
    return Drawing("pca_scatter", "Keys in two dimensions", figure, data, caption)


def _flatness(keys: Table) -> float:
    """Height over width of a cloud of keys, kept within what looks well."""
    spans = [float(np.ptp(keys.numbers(c))) if keys.numbers(c) else 0.0 for c in ("pc1", "pc2")]
    return float(np.clip(spans[1] / spans[0], 0.5, 1.0)) if spans[0] > 0 else 0.5


def _cloud(ax: Axes, keys: Table) -> None:
    ax.axhline(0, color=FAINT, linewidth=0.5, zorder=0)
    ax.axvline(0, color=FAINT, linewidth=0.5, zorder=0)
    crowd = float(np.clip(math.sqrt(400 / len(keys)), 0.25, 1))
    for order, (role, look) in enumerate(_ROLES.items()):
        points = keys.where(role=role)
        x, y = ([float(cast("float", row[c] or 0)) for row in points] for c in ("pc1", "pc2"))
        sizes = {"s": look.size**2 * crowd, "linewidth": look.line * crowd}
        marks = {"marker": look.marker, "facecolor": look.face, "edgecolor": look.edge}
        ax.scatter(x, y, rasterized=True, zorder=1 + order, **sizes, **marks)  # type: ignore[arg-type]
    first = keys.rows[0]
    ax.set(xlabel=_component(1, first["ev1"]), ylabel=_component(2, first["ev2"]))
    ax.set_aspect("equal", adjustable="datalim")


def _component(number: int, ratio: Value) -> str:
    share = "undefined" if ratio is None else f"{100 * float(cast('float', ratio)):.1f} %"
    return f"PC {number} ({share})"


def _role_handle(role: str) -> Line2D:
    look = _ROLES[role]
    handle = Line2D([], [], linestyle="", marker=look.marker, markersize=1.1 * look.size, markeredgewidth=look.line)
    handle.set(markerfacecolor=look.face, markeredgecolor=look.edge)
    return handle
