"""Numbers against the layer: mean over samples and heads, its interval over samples, and the spread of the heads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.lines import Line2D

from ecokv_cli.figures.parts import WIDE, counted, grid, label_layers, ordered, over_heads, panel_grid, whole
from ecokv_cli.figures.style import BLUE, GREEN, VERMILLION
from ecokv_cli.studies.statistics import over_samples
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ecokv_cli.figures.parts import Array
    from ecokv_cli.figures.style import Dash
    from ecokv_cli.studies.tables import Value

WORDS = {
    "cos_mean": "mean pairwise cosine",
    "dist_mean": "mean distance to centroid",
    "dist_per_norm": "distance over norm",
    "norm_mean": "mean norm",
    "pca_1": "variance on PC 1",
    "effective_rank": "effective rank",
    "participation_ratio": "participation ratio",
    "r_cos": "cosine redundancy",
    "r_euc": "Euclidean redundancy",
    "lambda_ecokv": "λ of ECOKV",
    "lambda_mixkv": "λ of MixKV",
    "lambda_std": "λ of std variant",
    "spearman": "importance–diversity ρ",
    "mass": "attention mass kept",
    "output_error": "relative output error",
    "output_cosine": "output cosine",
    "oracle_overlap": "overlap with oracle",
    "kept": "tokens kept",
}
"""Columns of result tables as axes name them."""

_SPREAD, _INTERVAL = 0.13, 0.24
"""Opacity of the band over heads and of that over samples."""


@dataclass(frozen=True)
class Stroke:
    """How a line looks: colour for the screen; dash and marker for grey print."""

    color: str
    dash: Dash
    marker: str

    @property
    def handle(self) -> Line2D:
        """Its entry in a legend."""
        return Line2D([], [], color=self.color, linestyle=self.dash, marker=self.marker, markersize=3)


TENSORS = {
    "keys": Stroke(BLUE, "solid", "o"),
    "values": Stroke(VERMILLION, (0, (4, 1.4)), "s"),
    "prerope_keys": Stroke(GREEN, (0, (1, 1)), "^"),
}
TENSOR_NAMES = {"keys": "keys", "values": "values", "prerope_keys": "keys before RoPE"}


@dataclass(frozen=True)
class Profile:
    """One measure over depth; NaN where it is undefined.

    Attributes
    ----------
    layers, kv_heads
        Their numbers.
    heads
        ``[H, L]``: mean over samples.
    mean
        ``[L]``: mean over samples of each sample's mean over heads.
    low, high
        ``[L]``: 95 % bootstrap interval of that mean over samples; NaN for a single sample.
    counts
        ``[L]``: in how many samples a layer has a defined value.
    samples
        How many there are.
    """

    layers: list[int]
    kv_heads: list[int]
    heads: Array
    mean: Array
    low: Array
    high: Array
    counts: list[int]
    samples: int


def profile(table: Table, column: str) -> Profile:
    """Summarise `column` per layer; the table has one row per sample, layer and KV head."""
    layers, heads = ordered(table, "layer"), ordered(table, "kv_head")
    found = {row["layer"]: row for row in over_samples(table, ("layer",), (column,))}
    ends = {
        name: np.array([_number(found[at][name]) if at in found else math.nan for at in layers], dtype=np.float64)
        for name in ("mean", "low", "high")
    }
    counts = [whole(found[at]["n"]) if at in found else 0 for at in layers]
    return Profile(layers, heads, grid(table, column), **ends, counts=counts, samples=len(table.distinct("sample")))


def _number(value: Value) -> float:
    return math.nan if value is None else float(cast("float", value))


def draw_profile(ax: Axes, found: Profile, stroke: Stroke, *, spread: bool = True) -> None:
    """Draw a line, its interval over samples as a dark band and, with `spread`, the range of heads as a pale one."""
    # Without bands for the heads there are more lines, so their bands are paler.
    bands = [(found.low, found.high, _INTERVAL if spread else _SPREAD)] if found.samples > 1 else []
    if spread and len(found.kv_heads) > 1:
        bands.insert(0, (over_heads(found.heads, np.min), over_heads(found.heads, np.max), _SPREAD))
    draw_line(ax, found.mean, stroke, bands)


def draw_line(ax: Axes, values: Array, stroke: Stroke, bands: Sequence[tuple[Array, Array, float]] = ()) -> None:
    """Draw one line over the places 0, 1, ... with bands ``(low, high, opacity)`` below it."""
    places = np.arange(len(values))
    for low, high, opacity in bands:
        if len(places) == 1:
            ax.vlines(places, low, high, color=stroke.color, alpha=2 * opacity, linewidth=5)
        else:
            ax.fill_between(places, low, high, color=stroke.color, alpha=opacity, linewidth=0)
    marks = {"marker": stroke.marker, "markevery": max(1, len(places) // 7), "markersize": 3}
    ax.plot(places, values, color=stroke.color, linestyle=stroke.dash, **marks)  # type: ignore[arg-type]


def layer_panels(width: float, count: int, *, tall: float = 1.85, extra: float = 0.0) -> tuple[Figure, list[Axes]]:
    """Make panels over layers: side by side, at most three in a row, in a wide figure, else below each other."""
    wide = width >= WIDE
    columns = (2 if count == 4 else 3) if wide else 1
    height = tall if wide else 0.68 * tall
    return panel_grid(width, count, columns, height, extra=extra + (0.0 if wide else 0.25), share="x")


def label_panels(axes: Sequence[Axes], layers: Sequence[int]) -> None:
    """Name layers below the lowest panel of every column."""
    for ax in axes:
        label_layers(ax.xaxis, layers)
        ax.grid(axis="y")
        spec = ax.get_subplotspec()
        last = spec is None or spec.rowspan.stop + 1 > _rows(axes)
        ax.tick_params(labelbottom=last)
        if last:
            ax.set_xlabel("layer")


def _rows(axes: Sequence[Axes]) -> int:
    return max(spec.rowspan.stop for ax in axes if (spec := ax.get_subplotspec()) is not None)


def profile_table(name: str, *extra: str) -> Table:
    """Data of a figure over layers: heads by number, and their mean with its interval where ``kv_head`` is mean."""
    return Table(name, (*extra, "measure", "layer", "kv_head", "value", "low", "high", "samples"))


def add_profile(data: Table, found: Profile, **where: Value) -> None:
    """Add one profile to the data of a figure."""
    for head, values in zip(found.kv_heads, found.heads, strict=True):
        for layer, value in zip(found.layers, values, strict=True):
            data.add(**where, layer=layer, kv_head=head, value=float(value), low=None, high=None, samples=found.samples)
    for i, layer in enumerate(found.layers):
        ends = {"value": float(found.mean[i]), "low": float(found.low[i]), "high": float(found.high[i])}
        data.add(**where, layer=layer, kv_head="mean", **ends, samples=found.counts[i])


def band_words(table: Table, *, spread: bool = True) -> str:
    """One sentence on what lines and bands of `draw_profile` are, for captions."""
    heads, samples = len(table.distinct("kv_head")), len(table.distinct("sample"))
    over = counted(heads, "KV head") + (f" and {samples:,} samples" if samples > 1 else "")
    parts = [f"Lines are means over {over}"]
    if samples > 1:
        parts.append("dark bands their 95 % bootstrap intervals over samples")
    if spread and heads > 1:
        parts.append("pale bands span the heads")
    return f"{parts[0]}." if len(parts) == 1 else f"{', '.join(parts[:-1])}, and {parts[-1]}."
