"""Where in the image tokens stick out: 3 x 3 maps of distance and direction, by depth."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import Normalize

from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import WIDE, and_samples, dot_below, letter, ordered, round_limits, whole
from ecokv_cli.figures.profiles import TENSOR_NAMES
from ecokv_cli.figures.style import DIVERGING, QUIET, SEQUENTIAL, inches, new_figure
from ecokv_cli.studies.reduced import prepared
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

    from ecokv_cli.figures.parts import Array
    from ecokv_cli.studies.tables import Value

_MEASURES = {"dist_relative": "distance to centroid / mean", "cos_to_mean": "cosine to mean direction"}

_GAP = 0.1
"""Width between two measures, in panels."""


@drawn
def image_regions(regions: Table, width: str | float = "double", tensor: str = "keys") -> Drawing | None:
    """Draw how far image tokens of each part of the image lie from the centre of the cloud, by depth.

    Parameters
    ----------
    regions
        The `regions` table; all images of all samples are averaged.
    width
        See `style.inches`.
    tensor
        Which vectors: ``keys`` or ``values``.

    Returns
    -------
    Drawing or None
        None when there is no image.
    """
    regions = regions.where(tensor=tensor)
    if not regions.rows:
        return None
    depths = _depths(ordered(regions, "layer"))
    stem = "image_regions" + ("" if tensor == "keys" else f"_{tensor}")
    data = Table(stem, ("measure", "layers", "region_row", "region_col", "value"))
    maps = {measure: [_map(regions, measure, layers) for layers in depths.values()] for measure in _MEASURES}
    for measure, cells in maps.items():
        for name, each in zip(depths, cells, strict=True):
            for (row, col), value in np.ndenumerate(each):
                place = {"region_row": row, "region_col": col}
                data.add(measure=measure, layers=name, **place, value=float(value))

    wide = inches(width) >= WIDE
    side = min((inches(width) / (2 if wide else 1) - 0.65) / len(depths) - 0.05, 1.2 if len(depths) == 1 else 0.8)
    figure = new_figure(inches(width), (1 if wide else 2) * (side + 1.0), "compressed")
    # Beside each other the two measures are set apart by the room of a narrow panel.
    ratios = [*[1.0] * len(depths), _GAP, *[1.0] * len(depths)] if wide else [1.0] * len(depths)
    axes = figure.subplots(1 if wide else 2, len(ratios), squeeze=False, width_ratios=ratios)
    blocks = [axes[0, : len(depths)], axes[-1, -len(depths) :]]
    for ax in axes[0, len(depths) : -len(depths)]:
        ax.set_visible(False)
    for block, (measure, cells) in zip(blocks, maps.items(), strict=True):
        low, high = _limits(measure, np.stack(cells))
        for ax, name, each in zip(block, depths, cells, strict=True):
            mesh = _draw(ax, each, Normalize(low, high), DIVERGING if measure == "dist_relative" else SEQUENTIAL)
            if measure == "dist_relative":
                dot_below(ax, each, 1)
            ax.set_xlabel(name.replace(" ", "\n", 1), labelpad=2)
        bar = figure.colorbar(mesh, ax=list(block), location="top", shrink=0.8, aspect=24, pad=0.04)
        bar.outline.set_visible(False)
        bar.set_label(_MEASURES[measure])
        bar.set_ticks([low, (low + high) / 2, high])
    letter([block[0] for block in blocks])
    images = int(np.nansum(counted_images(regions).by_sample((), "images")[()]))
    over = f"{images:,} images of {len(regions.distinct('sample')):,} samples" if and_samples(regions) else "the image"
    caption = (
        f"Image tokens of the {TENSOR_NAMES[tensor]} by part of the image ({over} in 3 x 3 parts, as seen), averaged "
        "over KV heads and the layers named below each map. (a) Mean distance to the centroid of all tokens, over the "
        "mean of all tokens: red parts lie farther out than tokens do on average, blue parts with a dot closer in. (b) "
        "Mean cosine with the mean direction of all tokens: the brighter, the more a part points where everything "
        "points, and the less one of its tokens adds. Hatched parts hold no tokens."
    )
    title = f"{TENSOR_NAMES[tensor].capitalize()} by image region"
    return Drawing(stem, title, figure, data, caption)


@prepared
def counted_images(regions: Table) -> Table:
    """The table with `images`: how many of the sample there are."""
    images: dict[Value, set[Value]] = {}
    for row in regions:
        images.setdefault(row["sample"], set()).add(row["image"])
    rows = [row | {"images": len(images[row["sample"]])} for row in regions]
    return Table(regions.name, (*regions.columns, "images"), rows)


def _depths(layers: list[int]) -> dict[str, list[int]]:
    """All layers, then the first, middle and last third of them where there are at least three."""
    parts = np.array_split(layers, 3) if len(layers) >= 3 else []
    return {"all layers": layers} | {_span(part.tolist()): part.tolist() for part in parts}


def _span(layers: list[int]) -> str:
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]}–{layers[-1]}"


def _map(regions: Table, measure: str, layers: list[int]) -> Array:
    """Mean of every part over layers, images and samples, ``[3, 3]``; NaN where no image has tokens."""
    size = 1 + max(whole(row[side]) for row in regions for side in ("region_row", "region_col"))
    means = regions.among("layer", layers).aggregate(("region_row", "region_col"), measure, lambda v: float(np.mean(v)))
    return np.array([[means.get((i, k), math.nan) for k in range(size)] for i in range(size)], dtype=np.float64)


def _limits(measure: str, cells: Array) -> tuple[float, float]:
    if measure == "cos_to_mean":
        return round_limits(cells)
    reach = max(0.05, math.ceil(20 * float(np.nanmax(np.abs(cells - 1)))) / 20)
    return 1 - reach, 1 + reach


def _draw(ax: Axes, cells: Array, norm: Normalize, cmap: str) -> AxesImage:
    ax.patch.set(facecolor="#efefef", edgecolor=QUIET, hatch="//////")
    mesh = ax.imshow(np.ma.masked_invalid(cells), cmap=cmap, norm=norm, interpolation="none")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set(visible=True, color=QUIET, linewidth=0.5)
    return mesh
