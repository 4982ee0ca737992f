"""How the pairwise cosines of each layer are distributed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.ticker import MultipleLocator

from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import and_samples, counted, label_layers, ordered
from ecokv_cli.figures.profiles import TENSOR_NAMES
from ecokv_cli.figures.style import FAINT, INK, QUIET, VERMILLION, inches, new_figure
from ecokv_cli.studies.reduced import prepared
from ecokv_cli.studies.statistics import over_samples
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ecokv_cli.figures.parts import Array
    from ecokv_cli.studies.tables import Key, Value

_CUT = 5.0
"""Peaks are cut at this many times the mean share of the occupied bins."""

QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
"""Quantiles of a sample's distribution, of which there are intervals over samples."""

_BINS = ("layer", "bin_low", "bin_high", "share")
_ENDS = ("quantile", "value", "low", "high", "samples")


@drawn
def cosine_distribution(histogram: Table, width: str | float = "single", tensor: str = "keys") -> Drawing | None:
    """Draw the distribution of cosine similarity, one ridge per layer; a table without such rows gives None.

    Parameters
    ----------
    histogram
        The `cosine_histogram` table: shares of pairs per bin, layer and KV head.
    width
        See `style.inches`.
    tensor
        Which vectors: ``keys``, ``values`` or ``prerope_keys``.
    """
    histogram = with_quantiles(histogram.where(tensor=tensor))
    if not histogram.rows:
        return None
    layers, heads = ordered(histogram, "layer"), ordered(histogram, "kv_head")
    stem = "cosine_distribution" + ("" if tensor == "keys" else f"_{tensor}")
    data = _data(histogram, stem)

    row = float(np.clip(2.7 / len(layers), 0.08, 0.3))
    # Many ridges may overlap, few need not.
    lift = 0.9 if len(layers) <= 12 else 1.6
    figure = new_figure(inches(width), row * (len(layers) + lift) + 0.45)
    ax = figure.add_subplot()
    lowest, highest = 1.0, -1.0
    for place, layer in enumerate(layers):
        rows = data.where(layer=layer, quantile=None)
        lows, highs, heights = (np.array(rows.numbers(c)) for c in ("bin_low", "bin_high", "share"))
        lowest, highest = min(lowest, float(lows[heights > 0].min())), max(highest, float(highs[heights > 0].max()))
        _ridge(ax, place, (lows, highs, heights), lift, data.where(layer=layer, quantile=0.5).rows[0])
    _frame_ridges(ax, layers, (lowest, highest), lift)
    noun = TENSOR_NAMES[tensor]
    ax.set_xlabel(f"cosine similarity of two {noun}")
    caption = (
        f"Distribution of the cosine similarity between the {noun} of one layer (horizontal axis), one ridge per layer "
        f"from the first at the top to the last at the bottom, averaged over {counted(len(heads), 'KV head')}"
        f"{and_samples(histogram)}. A ridge at the right end means that all of them point the same way, so many "
        "are redundant; a ridge around 0 means that they are unrelated. Each ridge is scaled to its own peak, and "
        f"sharp peaks are cut at {_CUT:g} times the mean, so compare positions and widths, not heights; the upright "
        f"tick marks the median{_interval(histogram)}. {_pairs(histogram)}"
    )
    return Drawing(stem, f"Cosine similarity of {noun} by layer", figure, data, caption)


def _data(histogram: Table, stem: str) -> Table:
    """The ridges, and below them the quantiles with their intervals over samples."""
    data = Table(stem, (*_BINS, *_ENDS))
    means = histogram.aggregate(("layer", "bin_low", "bin_high"), "share", lambda v: float(np.mean(v)))
    for (layer, low, high), share in means.items():
        data.add(layer=layer, bin_low=low, bin_high=high, share=share, **dict.fromkeys(_ENDS))
    for found in over_samples(histogram, ("layer",), tuple(QUANTILES)):
        ends = {"value": found["mean"], "low": found["low"], "high": found["high"], "samples": found["n"]}
        place = dict.fromkeys(_BINS) | {"layer": found["layer"]}
        data.add(**place, quantile=QUANTILES[str(found["measure"])], **ends)
    return data


def _interval(histogram: Table) -> str:
    """What tick and band are where there are several samples."""
    if not and_samples(histogram):
        return ""
    return " (the mean of those of the samples, the band beside it its 95 % bootstrap interval over samples)"


def _pairs(histogram: Table) -> str:
    """Which pairs were counted."""
    counts, exact = (histogram.stats((), column)[()] for column in ("pairs", "exact"))
    number = f"{counts.low:,}" if counts.low == counts.high else f"{counts.low:,} to {counts.high:,}"
    if exact.low:
        return f"Shares are of all {number} pairs of a head."
    seed = int(histogram.stats((), "seed")[()].high)
    return f"Shares come from {number} sampled pairs of a head, drawn with seed {seed}."


def _ridge(ax: Axes, place: int, bins: tuple[Array, Array, Array], lift: float, middle: dict[str, Value]) -> None:
    """Draw one ridge on the base line y = `place`, `lift` tall, and its middle; y grows downwards."""
    low, high, share = bins
    occupied = np.flatnonzero(share > 1e-3 * share.max())
    reach = slice(occupied[0], occupied[-1] + 1)
    # A peak as sharp as that of many equal keys would press everything else flat.
    height = lift * np.minimum(share / min(float(share.max()), _CUT * float(share[reach].mean())), 1)
    x = np.concatenate([low[reach][:1], (low + high)[reach] / 2, high[reach][-1:]])
    y = place - np.concatenate([[0.0], height[reach], [0.0]])
    median = float(cast("float", middle["value"]))
    ax.axhline(place, color=FAINT, linewidth=0.5, zorder=place)
    ax.fill_between(x, y, place, facecolor="#cfe8f8", linewidth=0, zorder=place + 0.1)
    ax.plot(x, y, color=INK, linewidth=0.55, zorder=place + 0.2, solid_joinstyle="round")
    if middle["low"] is not None:
        span = np.linspace(cast("float", middle["low"]), cast("float", middle["high"]), 50)
        ax.fill_between(
            span, np.interp(span, x, y), place, color=VERMILLION, alpha=0.35, linewidth=0, zorder=place + 0.25
        )
    top = float(np.interp(median, x, y))
    ax.plot([median, median], [place, top], color=VERMILLION, linewidth=1.1, zorder=place + 0.3, solid_capstyle="butt")


@prepared
def with_quantiles(histogram: Table) -> Table:
    """The table with the `QUANTILES` of each sample, tensor and layer: those of the mean histogram of its heads."""
    where = ("sample", "tensor", "layer")
    bins: dict[Key, list[tuple[float, float, float]]] = {}
    means = histogram.aggregate((*where, "bin_low", "bin_high"), "share", lambda v: float(np.mean(v)))
    for (*key, low, high), share in means.items():
        bins.setdefault(tuple(key), []).append((cast("float", low), cast("float", high), share))
    found: dict[Key, dict[str, Value]] = {}
    for place, cells in bins.items():
        lows, highs, shares = np.array(sorted(cells)).T
        found[place] = {name: _quantile(lows, highs, shares, q) for name, q in QUANTILES.items()}
    rows = [row | found[tuple(row[column] for column in where)] for row in histogram]
    return Table(histogram.name, (*histogram.columns, *QUANTILES), rows)


def _quantile(low: Array, high: Array, share: Array, wanted: float) -> float:
    """Where that part of the share is reached, by linear interpolation inside the bin."""
    total = np.cumsum(share) / share.sum()
    i = int(np.searchsorted(total, wanted))
    before = total[i - 1] if i else 0.0
    return float(low[i] + (high[i] - low[i]) * (wanted - before) / (total[i] - before))


def _frame_ridges(ax: Axes, layers: list[int], span: tuple[float, float], lift: float) -> None:
    lowest = max(-1.0, math.floor(span[0] * 5) / 5)
    highest = min(1.0, math.ceil(span[1] * 5) / 5)
    ax.set(xlim=(lowest - 0.01, highest + 0.01), ylim=(len(layers) - 0.6, -lift - 0.1))
    ax.set_ylabel("layer")
    label_layers(ax.yaxis, layers)
    ax.xaxis.set_major_locator(MultipleLocator(0.5 if highest - lowest > 1.2 else 0.2))
    ax.spines.left.set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.axvline(0, color=QUIET, linewidth=0.6, linestyle=(0, (3, 2)), zorder=-1)
