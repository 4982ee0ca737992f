"""How the keys and values of each layer lie: similarity, distance, and how many directions they use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import and_samples, counted, legend_above, letter
from ecokv_cli.figures.profiles import (
    TENSOR_NAMES,
    TENSORS,
    WORDS,
    Stroke,
    add_profile,
    band_words,
    draw_line,
    draw_profile,
    label_panels,
    layer_panels,
    profile,
    profile_table,
)
from ecokv_cli.figures.style import BLUE, QUIET, inches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

    from ecokv_cli.studies.tables import Table

_BAND = 0.3
"""Opacity of the band of an interval."""


@drawn
def geometry_by_layer(geometry: Table, width: str | float = "double") -> Drawing:
    """Draw mean pairwise cosine and mean distance to the centroid of keys against the layer (`geometry` table)."""
    keys = geometry.where(tensor="keys")
    figure, panels = layer_panels(inches(width), 2, tall=2.1)
    data = profile_table("geometry_by_layer")
    for ax, column in zip(panels, ("cos_mean", "dist_mean"), strict=True):
        found = profile(keys, column)
        places = np.tile(np.arange(len(found.layers)), len(found.kv_heads))
        ax.plot(places, found.heads.ravel(), "o", color=QUIET, markersize=2.2, markerfacecolor="white")
        stroke = Stroke(BLUE, "solid", "o" if len(found.layers) == 1 else "")
        draw_line(ax, found.mean, stroke, [(found.low, found.high, _BAND)] if found.samples > 1 else [])
        ax.set_ylabel(WORDS[column].replace(" to ", "\nto "))
        add_profile(data, found, measure=column)
    panels[1].set_ylim(bottom=0)
    label_panels(panels, found.layers)
    letter(panels)
    circle = Line2D([], [], color=QUIET, marker="o", markersize=2.2, linestyle="", mfc="w")
    shown: dict[str, Artist] = {"mean over KV heads": Line2D([], [], color=BLUE), "one KV head": circle}
    if found.samples > 1:
        shown["95 % interval"] = Patch(color=BLUE, alpha=_BAND, linewidth=0)
    legend_above(figure, list(shown.values()), list(shown))
    interval = ", the band its 95 % bootstrap interval over samples" if found.samples > 1 else ""
    caption = (
        "(a) Mean cosine similarity over all pairs of keys and (b) mean Euclidean distance of the keys to their "
        f"centroid, by layer; the line is the mean over {counted(len(found.kv_heads), 'KV head')}{and_samples(keys)}"
        f"{interval}, the circles are the heads. "
        "A high cosine says that keys share a direction, a small distance that they lie close together: both mean "
        "redundancy, yet a layer can be high in one and not in the other, because cosine ignores length. "
        "Distances depend on the scale of the keys, so compare them within a layer only."
    )
    return Drawing("geometry_by_layer", "Mean cosine and distance to the centroid", figure, data, caption)


@drawn
def keys_and_values(geometry: Table, width: str | float = "double") -> Drawing:
    """Draw cosine, distance over norm and share of the first component of keys beside those of values."""
    columns = ("cos_mean", "dist_per_norm", "pca_1")
    figure, data = _side_by_side(geometry, ("keys", "values"), columns, "keys_and_values", inches(width))
    caption = (
        "Keys beside values: (a) mean cosine over all pairs, (b) mean distance to the centroid over mean norm, (c) "
        f"share of the variance along the first principal component. {band_words(geometry)} "
        "All three have no unit, so keys and values, layers and models can be compared: high in (a), low in (b) or "
        "high in (c) means redundant. Where values spread more than keys, dropping a token whose key has a double can "
        "still lose something, because its value has none."
    )
    return Drawing("keys_and_values", "Keys beside values", figure, data, caption)


@drawn
def dimension_by_layer(geometry: Table, width: str | float = "double") -> Drawing:
    """Draw effective rank and participation ratio of keys and values against the layer."""
    columns = ("effective_rank", "participation_ratio")
    figure, data = _side_by_side(geometry, ("keys", "values"), columns, "dimension_by_layer", inches(width))
    caption = (
        "How many directions the centred vectors of a head use: (a) effective rank, the exponential of the entropy of "
        "the shares of the principal components, and (b) participation ratio, (Σv)² / Σv² of their variances v. "
        f"{band_words(geometry)} "
        "Both run from 1 (a line) to the head dimension (all directions alike); (b) is led by the few large "
        "components, so it is the lower of the two, and far below (a) where a few directions carry most and many carry "
        "a little."
    )
    return Drawing("dimension_by_layer", "Effective rank and participation ratio", figure, data, caption)


@drawn
def rope_by_layer(geometry: Table, width: str | float = "double") -> Drawing | None:
    """Draw mean cosine and effective rank of keys before and after RoPE; None if keys before RoPE are not there."""
    if "prerope_keys" not in geometry.distinct("tensor"):
        return None
    columns = ("cos_mean", "effective_rank")
    figure, data = _side_by_side(geometry, ("prerope_keys", "keys"), columns, "rope_by_layer", inches(width))
    caption = (
        "Keys before rotary position embedding and as the cache holds them: (a) mean cosine over all pairs, (b) "
        f"effective rank. {band_words(geometry)} "
        "Rotation keeps every norm and turns each key by its position, so the gap between the lines is what position "
        "alone does: where the cosine falls and the rank rises, redundancy that content has is hidden by position."
    )
    return Drawing("rope_by_layer", "Keys before and after RoPE", figure, data, caption)


def _side_by_side(
    geometry: Table, tensors: Sequence[str], columns: Sequence[str], stem: str, width: float
) -> tuple[Figure, Table]:
    """One panel per column with one line per tensor."""
    figure, panels = layer_panels(width, len(columns), extra=0.2)
    data = profile_table(stem, "tensor")
    for tensor in tensors:
        rows = geometry.where(tensor=tensor)
        for ax, column in zip(panels, columns, strict=True):
            found = profile(rows, column)
            draw_profile(ax, found, TENSORS[tensor])
            ax.set_ylabel(WORDS[column])
            add_profile(data, found, tensor=tensor, measure=column)
    for ax, column in zip(panels, columns, strict=True):
        if column != "cos_mean":
            ax.set_ylim(bottom=0)
    label_panels(panels, found.layers)
    letter(panels)
    legend_above(figure, [TENSORS[t].handle for t in tensors], [TENSOR_NAMES[t] for t in tensors])
    return figure, data
