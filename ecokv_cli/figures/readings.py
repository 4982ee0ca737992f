"""Every reading of redundancy side by side: over layers and heads, by domain of the average, and by map."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import Normalize

from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import (
    WIDE,
    and_samples,
    dot_below,
    heat_map,
    label_layers,
    legend_above,
    letter,
    map_height,
    names,
    panel_grid,
    round_limits,
)
from ecokv_cli.figures.profiles import (
    TENSOR_NAMES,
    Stroke,
    add_profile,
    band_words,
    draw_profile,
    label_panels,
    layer_panels,
    profile,
    profile_table,
)
from ecokv_cli.figures.style import (
    BLUE,
    DIVERGING,
    GREEN,
    ORANGE,
    PURPLE,
    QUIET,
    SEQUENTIAL,
    SKY,
    VERMILLION,
    inches,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh

    from ecokv_cli.figures.parts import Array
    from ecokv_cli.studies.tables import Table

_READINGS = {
    "r_cos": "cosine redundancy",
    "r_euc": "Euclidean redundancy",
    "lambda_ecokv": "λ of ECOKV",
    "lambda_std": "λ of std variant",
}
_DIFFERENCES = {"r_cos": "cosine: all − candidates", "lambda_ecokv": "λ of ECOKV: all − candidates"}
_STROKES = (
    Stroke(VERMILLION, "solid", "D"),
    Stroke(ORANGE, (0, (5, 1.2)), "s"),
    Stroke(BLUE, (0, (1, 1)), "o"),
    Stroke(GREEN, (0, (4, 1.2, 1, 1.2)), "^"),
    Stroke(PURPLE, (0, (2, 1)), "v"),
    Stroke(SKY, (0, (6, 1.2, 1, 1.2, 1, 1.2)), "P"),
)
_MIXKV = Stroke(QUIET, (0, (1, 2)), "")


@drawn
def redundancy_by_head(
    redundancy: Table, geometry: Table, width: str | float = "double", tensor: str = "keys"
) -> Drawing:
    """Draw four readings of redundancy over layers and heads with one scale, and what the averaging domain changes.

    Parameters
    ----------
    redundancy
        The `redundancy` table.
    geometry
        The `geometry` table; it tells which redundancy map the analysed method uses.
    width
        See `style.inches`.
    tensor
        Which vectors: ``keys`` or ``values``.
    """
    kind = _own_map(redundancy, geometry)
    rows = redundancy.where(tensor=tensor, map=kind)
    everything, candidates = (rows.where(domain=domain) for domain in ("all", "candidates"))
    found = {column: profile(everything, column) for column in _READINGS}
    gaps = {column: profile(everything, column).heads - profile(candidates, column).heads for column in _DIFFERENCES}
    layers, heads = found["r_cos"].layers, found["r_cos"].kv_heads
    columns = 2 if inches(width) >= WIDE else 1
    figure, axes = panel_grid(inches(width), 6, columns, map_height(len(heads)) + 0.26, extra=0.5, share="xy")
    norm = Normalize(*round_limits(np.concatenate([each.heads for each in found.values()])))
    maps = [heat_map(ax, each.heads, norm, SEQUENTIAL) for ax, each in zip(axes, found.values(), strict=False)]
    reach = _one_digit(np.concatenate(list(gaps.values())))
    centred = Normalize(-reach, reach)
    maps += [heat_map(ax, cells, centred, DIVERGING) for ax, cells in zip(axes[4:], gaps.values(), strict=True)]
    for ax, cells in zip(axes[4:], gaps.values(), strict=True):
        dot_below(ax, cells, 0)
    _bar(axes[:4], maps[0], "redundancy")
    _bar(axes[4:], maps[4], "difference")
    _label_maps(axes, layers, heads, columns)
    letter(axes, [*_READINGS.values(), *_DIFFERENCES.values()])
    stem = "redundancy_by_head" + ("" if tensor == "keys" else f"_{tensor}")
    data = profile_table(stem, "domain")
    for domain, part in (("all", everything), ("candidates", candidates)):
        for column in _READINGS:
            add_profile(data, profile(part, column), domain=domain, measure=column)
    over = f", means over{and_samples(rows).removeprefix(' and')}" if and_samples(rows) else ""
    caption = (
        f"Redundancy of the {TENSOR_NAMES[tensor]} of every layer and KV head on one colour scale{over}: (a) mean "
        f"cosine, (b) Euclidean redundancy by the {kind} map of the mean distance, (c) ECOKV's λ, which mixes both, "
        "and (d) the variant from the standard deviation. Bright heads hold many vectors that are alike. The last two "
        "panels show how much (e) the cosine and (f) λ change when the average runs over all positions rather than "
        "over the candidates for eviction alone, without the window (dots: lower): colour there means that the choice "
        "of domain matters."
    )
    title = f"Redundancy of {TENSOR_NAMES[tensor]} over layers and heads"
    return Drawing(stem, title, figure, data, caption)


@drawn
def lambda_by_map(redundancy: Table, geometry: Table, width: str | float = "double") -> Drawing:
    """Draw Euclidean redundancy and ECOKV's lambda of keys by layer, one line per redundancy map."""
    rows = redundancy.where(tensor="keys", domain="all")
    kinds, own = names(rows, "map"), _own_map(redundancy, geometry)
    figure, panels = layer_panels(inches(width), 2, tall=2.1, extra=0.2)
    data = profile_table("lambda_by_map", "map")
    for kind, stroke in zip(kinds, _STROKES, strict=False):
        for ax, column in zip(panels, ("r_euc", "lambda_ecokv"), strict=True):
            found = profile(rows.where(map=kind), column)
            draw_profile(ax, found, stroke, spread=False)
            add_profile(data, found, map=kind, measure=column)
    cosine = profile(rows.where(map=kinds[0]), "lambda_mixkv")
    draw_profile(panels[1], cosine, _MIXKV, spread=False)
    add_profile(data, cosine, map="", measure="lambda_mixkv")
    for ax, label in zip(panels, ("Euclidean redundancy", "λ of ECOKV"), strict=True):
        ax.set(ylabel=label, ylim=(0, 1.03))
    label_panels(panels, cosine.layers)
    letter(panels)
    strokes = [*_STROKES[: len(kinds)], _MIXKV]
    legend_above(figure, [stroke.handle for stroke in strokes], [*kinds, "MixKV's λ"])
    caption = (
        "Effect of the map from mean distance to redundancy, which is open in what is public about ECOKV: (a) "
        f"Euclidean redundancy of the keys under every map and (b) the λ that follows; the analysed method uses {own}. "
        f"{band_words(rows, spread=False)} "
        "Lines that keep their order over the layers differ in level alone, so a map mostly sets how much diversity "
        "counts everywhere; lines that cross disagree on which layers are redundant. minmax ignores how tight a "
        "cluster is; MixKV's λ, which has no Euclidean part, is what every λ is pulled towards."
    )
    return Drawing("lambda_by_map", "Effect of the redundancy map", figure, data, caption)


def _own_map(redundancy: Table, geometry: Table) -> str:
    """The map of the analysed method: the one whose Euclidean redundancy comes closest to the geometry table's."""
    sample = geometry.rows[0]["sample"]
    own = geometry.where(sample=sample, tensor="keys").numbers("r_euc")
    rows = redundancy.where(sample=sample, tensor="keys")

    def off(reading: tuple[str, str]) -> float:
        found = rows.where(map=reading[0], domain=reading[1]).numbers("r_euc")
        return sum(abs(a - b) for a, b in zip(own, found, strict=False))

    return min(((kind, domain) for kind in names(rows, "map") for domain in names(rows, "domain")), key=off)[0]


def _one_digit(cells: Array) -> float:
    """The largest size of a defined cell, rounded up to one digit."""
    top = float(np.abs(cells[np.isfinite(cells)]).max(initial=0.0))
    if top == 0:
        return 1e-3
    unit = 10.0 ** math.floor(math.log10(top))
    return math.ceil(top / unit - 1e-9) * unit


def _bar(axes: Sequence[Axes], mesh: QuadMesh, label: str) -> None:
    bar = axes[0].figure.colorbar(mesh, ax=list(axes), pad=0.01, aspect=8 * len(axes))
    bar.outline.set_visible(False)
    bar.set_label(label)


def _label_maps(axes: Sequence[Axes], layers: list[int], heads: list[int], columns: int) -> None:
    for i, ax in enumerate(axes):
        label_layers(ax.xaxis, layers)
        label_layers(ax.yaxis, heads, room=4)
        ax.tick_params(labelbottom=i >= 6 - columns, labelleft=i % columns == 0)
        if i >= 6 - columns:
            ax.set_xlabel("layer")
        if i % columns == 0:
            ax.set_ylabel("KV head")
