"""The scale of keys and values: why distances of different layers cannot be compared, and how norms spread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import and_samples, counted, legend_above, letter, log_axis, names
from ecokv_cli.figures.profiles import (
    TENSORS,
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
from ecokv_cli.figures.style import BLUE, INK, VERMILLION, inches

if TYPE_CHECKING:
    from matplotlib.artist import Artist

    from ecokv_cli.figures.profiles import Profile
    from ecokv_cli.studies.tables import Table

_NORM = Stroke(INK, "solid", "o")
_DISTANCE = Stroke(VERMILLION, (0, (4, 1.4)), "D")
_STD, _MEAN = 0.2, 0.4
"""Opacity of the bands of a standard deviation and of the interval of a mean."""

_RANGE = 20.0
"""Norms that span a larger factor than this are drawn on a logarithmic axis."""


@drawn
def distance_scale(geometry: Table, width: str | float = "double") -> Drawing:
    """Draw mean norm and mean distance to the centroid per layer, for keys and values, on a logarithmic axis."""
    tensors = _tensors(geometry)
    figure, panels = layer_panels(inches(width), len(tensors), tall=1.95, extra=0.15)
    data = profile_table("distance_scale", "tensor")
    for ax, tensor in zip(panels, tensors, strict=True):
        rows = geometry.where(tensor=tensor)
        drawn_values = []
        for column, stroke in (("norm_mean", _NORM), ("dist_mean", _DISTANCE)):
            found = profile(rows, column)
            draw_profile(ax, found, stroke)
            add_profile(data, found, tensor=tensor, measure=column)
            drawn_values += [found.heads.ravel(), found.mean, found.low, found.high]
        log_axis(ax, np.concatenate(drawn_values))
        ax.set_ylabel("length (log scale)")
    label_panels(panels, found.layers)
    letter(panels, tensors)
    legend_above(figure, [_NORM.handle, _DISTANCE.handle], ["mean norm", "mean distance to centroid"])
    caption = (
        "Mean norm and mean distance to the centroid by layer, of (a) keys and (b) values, on a logarithmic axis. "
        f"{band_words(geometry)} "
        "Distances follow the norms, which differ between layers by factors that have nothing to do with redundancy: a "
        "tight cluster of long vectors has larger distances than a loose cluster of short ones. Read the gap between "
        "the lines, not their height: distance near the norm means directions all over, far below it one tight bundle. "
        "A redundancy that maps distance with one fixed temperature therefore weighs layers by their scale as well."
    )
    return Drawing("distance_scale", "Scale of distances by layer", figure, data, caption)


@drawn
def norm_spread(geometry: Table, width: str | float = "double") -> Drawing:
    """Draw mean, standard deviation and range of the norms per layer, for keys and values."""
    tensors = _tensors(geometry)
    figure, panels = layer_panels(inches(width), len(tensors), tall=1.95, extra=0.15)
    data = profile_table("norm_spread", "tensor")
    zeros, cut = 0, False
    for ax, tensor in zip(panels, tensors, strict=True):
        rows = geometry.where(tensor=tensor)
        found = {c: profile(rows, c) for c in ("norm_mean", "norm_std", "norm_min", "norm_max")}
        for column, each in found.items():
            add_profile(data, each, tensor=tensor, measure=column)
        shortest, longest = (_extreme(rows, found["norm_mean"], c) for c in ("norm_min", "norm_max"))
        mean, std = found["norm_mean"], found["norm_std"].mean
        zeros += sum(int(stats.total) for stats in rows.stats((), "zero_keys").values())
        low = np.maximum(mean.mean - std, shortest)
        cut |= bool((mean.mean - std < shortest).any())
        bands = [(low, mean.mean + std, _STD)] + ([(mean.low, mean.high, _MEAN)] if mean.samples > 1 else [])
        draw_line(ax, mean.mean, TENSORS["keys"], bands)
        for values in (shortest, longest):
            draw_line(ax, values, Stroke(INK, (0, (1, 1.2)), ""))
        if longest.max() > _RANGE * shortest[shortest > 0].min(initial=np.inf):
            log_axis(ax, np.concatenate([shortest, longest, mean.mean + std]))
        else:
            ax.set_ylim(bottom=0)
        ax.set_ylabel("norm")
    label_panels(panels, mean.layers)
    letter(panels, tensors)
    shown: dict[str, Artist] = {"mean": TENSORS["keys"].handle, "± 1 std": Patch(color=BLUE, alpha=_STD, linewidth=0)}
    if mean.samples > 1:
        shown["95 % interval"] = Patch(color=BLUE, alpha=_MEAN, linewidth=0)
    shown["shortest, longest"] = Line2D([], [], color=INK, linestyle=(0, (1, 1.2)))
    legend_above(figure, list(shown.values()), list(shown))
    interval = "; the darker band is the 95 % bootstrap interval of the mean over samples" if mean.samples > 1 else ""
    caption = (
        "Norms of (a) keys and (b) values by layer: mean and standard deviation over the positions, both as means over "
        f"{counted(len(mean.kv_heads), 'KV head')}{and_samples(geometry)}{interval}; dotted lines are the shortest and "
        "the longest vector of any head. A wide band means that length tells tokens apart, which cosine does not see; "
        "a dotted line far off the band belongs to a few outliers, often attention sinks with short or long keys. "
        "Norms have the units of the vectors, so heights of different layers cannot be compared."
    )
    if cut:
        caption += " Where a band would reach below the shortest vector it ends there."
    if zeros:
        caption += f" {counted(zeros, 'vector')} of length 0 cannot be shown on a logarithmic axis."
    return Drawing("norm_spread", "Spread of norms by layer", figure, data, caption)


def _tensors(geometry: Table) -> list[str]:
    return [tensor for tensor in names(geometry, "tensor") if tensor != "prerope_keys"]


def _extreme(rows: Table, like: Profile, column: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Smallest (for a minimum) or largest number of `column` in each layer, over heads and samples."""
    found = rows.stats(("layer",), column)
    ends = {key: stats.low if column.endswith("min") else stats.high for key, stats in found.items() if stats.defined}
    return np.array([ends.get((layer,), np.nan) for layer in like.layers])
