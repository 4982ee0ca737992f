"""Where in the image tokens stick out: 3 x 3 maps of distance and direction, by depth."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.colors import Normalize

from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import WIDE, and_samples, dot_below, letter, ordered, round_limits, whole
from ecokv_cli.figures.profiles import TENSOR_NAMES
from ecokv_cli.figures.style import DIVERGING, QUIET, SEQUENTIAL, inches, new_figure
from ecokv_cli.studies.reduced import prepared
from ecokv_cli.studies.statistics import means_over_samples
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

    from ecokv_cli.figures.parts import Array
    from ecokv_cli.studies.tables import Key, Value

PART = ("tensor", "layer", "region_row", "region_col")
"""Columns that tell parts of the images apart."""

_MEASURES = {"dist_relative": "distance to centroid / mean", "cos_to_mean": "cosine to mean direction"}

_NUMBERS = ("tokens", "norm_mean", "dist_mean", "dist_relative", "cos_to_mean")

_GAP = 0.1
"""Width between two measures, in panels."""


@drawn
def image_regions(regions: Table, width: str | float = "double", tensor: str = "keys") -> Drawing | None:
    """Draw how far image tokens of each part of the image lie from the centre of the cloud, by depth.

    Parameters
    ----------
    regions
        The `regions` table. The images of a sample are averaged first, so samples count alike.
    width
        See `style.inches`.
    tensor
        Which vectors: ``keys`` or ``values``.

    Returns
    -------
    Drawing or None
        None when there is no image.
    """
    regions = averaged_images(regions).where(tensor=tensor)
    if not regions.rows:
        return None
    depths = _depths(ordered(regions, "layer"))
    stem = "image_regions" + ("" if tensor == "keys" else f"_{tensor}")
    data = _means(regions, depths, stem)
    size = 1 + max(whole(row[side]) for row in regions for side in ("region_row", "region_col"))
    maps = {measure: [_map(data, measure, name, size) for name in depths] for measure in _MEASURES}

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
    over, intervals = _counted(regions), _intervals(data) if and_samples(regions) else ""
    caption = (
        f"Image tokens of the {TENSOR_NAMES[tensor]} by part of the image ({over}; in 3 x 3 parts, as seen), averaged "
        "over KV heads and the layers named below each map. (a) Mean distance to the centroid of all tokens, over the "
        "mean of all tokens: red parts lie farther out than tokens do on average, blue parts with a dot closer in. (b) "
        "Mean cosine with the mean direction of all tokens: the brighter, the more a part points where everything "
        "points, and the less one of its tokens adds. Hatched parts hold no "
        f"tokens.{intervals}"
    )
    title = f"{TENSOR_NAMES[tensor].capitalize()} by image region"
    return Drawing(stem, title, figure, data, caption)


@prepared
def averaged_images(regions: Table) -> Table:
    """One row per sample and part: means over the images of the sample, and `images`, how many it has."""
    by = ("model", "sample", *PART)
    groups: dict[Key, list[dict[str, Value]]] = {}
    images: dict[Value, set[Value]] = {}
    for row in regions:
        groups.setdefault(tuple(row[column] for column in by), []).append(row)
        images.setdefault(row["sample"], set()).add(row["image"])
    averaged = Table(regions.name, (*by, *_NUMBERS, "images"))
    for key, rows in groups.items():
        where = dict(zip(by, key, strict=True))
        part = Table(regions.name, regions.columns, rows)
        means = {column: float(np.mean(v)) if (v := part.numbers(column)) else None for column in _NUMBERS}
        averaged.add(**where, **means, images=len(images[where["sample"]]))
    return averaged


def _means(regions: Table, depths: dict[str, list[int]], stem: str) -> Table:
    """Mean over samples of every measure, depth and part, with its interval."""
    data = Table(stem, ("measure", "layers", "region_row", "region_col", "value", "low", "high", "samples"))
    for measure in _MEASURES:
        by_layer = regions.by_sample(PART[1:], measure)
        for name, layers in depths.items():
            parts: dict[Key, list[Array]] = {}
            for (layer, *place), means in by_layer.items():
                if layer in layers:
                    parts.setdefault(tuple(place), []).append(means)
            over_layers = {place: _mean(np.stack(means)) for place, means in parts.items()}
            for (row, col), found in sorted(means_over_samples(over_layers).items()):
                numbers = {"value": found["mean"], "low": found["low"], "high": found["high"], "samples": found["n"]}
                data.add(measure=measure, layers=name, region_row=row, region_col=col, **numbers)
    return data


def _mean(numbers: Array) -> Array:
    """Mean along the first axis without the gaps; NaN where there is nothing else."""
    counts = np.isfinite(numbers).sum(0)
    means: Array = np.full(counts.shape, math.nan)
    np.divide(np.nansum(numbers, axis=0), counts, out=means, where=counts > 0)
    return means


def _counted(regions: Table) -> str:
    """Over how many images and samples means are, in words."""
    # A sample has its number of images in every part of which it has tokens.
    by_part = np.stack(list(regions.by_sample(PART[1:], "images").values()))
    images, samples = int(np.nanmax(by_part, axis=0).sum()), len(regions.distinct("sample"))
    if samples == 1:
        return "the image" if images == 1 else f"{images:,} images"
    alike = "" if images == samples else ", each sample counted once"
    return f"{images:,} images of {samples:,} samples{alike}"


def _intervals(data: Table) -> str:
    """How far intervals over samples reach, which a map of colours cannot show."""
    reach = dict.fromkeys(_MEASURES, 0.0)
    for row in data:
        if row["low"] is not None:
            low, value, high = (cast("float", row[end]) for end in ("low", "value", "high"))
            reach[str(row["measure"])] = max(reach[str(row["measure"])], value - low, high - value)
    ends = " and ".join(f"{far:.2g} in ({panel})" for panel, far in zip("ab", reach.values(), strict=True))
    return (
        f" 95 % bootstrap intervals over samples reach at most {ends} from the mean; {data.name}.csv has that of every "
        "part, and regions_over_samples.csv those of every layer."
    )


def _depths(layers: list[int]) -> dict[str, list[int]]:
    """All layers, then the first, middle and last third of them where there are at least three."""
    parts = np.array_split(layers, 3) if len(layers) >= 3 else []
    return {"all layers": layers} | {_span(part.tolist()): part.tolist() for part in parts}


def _span(layers: list[int]) -> str:
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]}–{layers[-1]}"


def _map(data: Table, measure: str, layers: str, size: int) -> Array:
    """The means of all parts, ``[size, size]``; NaN where no image has tokens."""
    cells = np.full((size, size), math.nan)
    for row in data.where(measure=measure, layers=layers):
        cells[whole(row["region_row"]), whole(row["region_col"])] = row["value"]
    return cells


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
