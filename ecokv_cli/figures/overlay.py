"""Kept image tokens drawn over the image they come from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from PIL import Image

from ecokv_cli.figures.budgets import at_budget, in_name, labelled
from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import LINE, WIDE, fold, listed, most_lines, names, whole
from ecokv_cli.figures.style import QUIET, inches, new_figure
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ecokv_cli.eviction.budget import Budget
    from ecokv_cli.figures.parts import Array
    from ecokv_cli.studies.tables import Value

_EVICTED = np.array([[0.8, 0.8, 0.8], [1.0, 1.0, 1.0]])
_KEPT = np.array([[0.0, 0.05, 0.12], [0.45, 0.72, 0.94]])
"""Colours of a black and of a white pixel. The lightest kept is darker than the darkest evicted, even in grey print."""

_ALL = ("all", "all")
_PIXELS = 200
"""Pixels per inch that an image is scaled to."""

_CELL_LINES = 0.07
"""Inches; cells at least as large get thin lines between them."""


@dataclass(frozen=True)
class GridImage:
    """An image and the grid of its tokens: `rows` x `cols` cells of equal size that cover it."""

    image: Image.Image
    rows: int
    cols: int


@drawn
def kept_over_image(
    positions: Table,
    page: GridImage,
    *,
    budget: Budget,
    image: int = 0,
    width: str | float = "double",
) -> Drawing | None:
    """Draw which cells of an image each method keeps: over all heads, and for the chosen head if the table has one.

    Parameters
    ----------
    positions
        The `positions` table of one sample.
    page
        The image and its grid.
    budget
        Which budget to draw.
    image
        Its number in the table's `image` column.
    width
        See `style.inches`.

    Returns
    -------
    Drawing or None
        None when the table has no rows for this image and budget.
    """
    cells = positions.where(image=image, budget=budget)
    if not cells.rows:
        return None
    methods = [m for m in names(cells, "method") if m != "full"] or names(cells, "method")
    scopes = sorted(dict.fromkeys((row["layer"], row["kv_head"]) for row in cells), key=lambda scope: scope != _ALL)

    bands = math.ceil(len(methods) / (6 if inches(width) >= WIDE else 3))
    columns = math.ceil(len(methods) / bands)
    across = (inches(width) - 0.25) / columns - 0.08
    tall = min(across * page.image.height / page.image.width, 2.4)
    titles = [fold(method, across) for method in methods]
    heading = 0.3 + LINE * max(most_lines(titles) - 2, 0)
    figure = new_figure(inches(width), bands * (len(scopes) * (tall + 0.22) + heading) + 0.5, "compressed")
    axes = figure.subplots(bands * len(scopes), columns, squeeze=False)
    for i in range(bands * columns):
        band, column = divmod(i, columns)
        for k, (layer, head) in enumerate(scopes):
            ax = axes[band * len(scopes) + k, column]
            if i >= len(methods):
                ax.set_visible(False)
                continue
            _draw(ax, page, _shares(cells.where(method=methods[i], layer=layer, kv_head=head), page), across)
            if k == 0:
                ax.set_title(titles[i])
            if column == 0 and len(scopes) > 1:
                ax.set_ylabel(_scope_name(layer, head))
    _colour_bar(figure, axes)
    data = Table("kept_over_image", cells.columns, [row for row in cells if row["method"] in methods])
    chosen = listed([_scope_name(*scope) for scope in scopes if scope != _ALL]) if len(scopes) > 1 else ""
    caption = (
        f"Image tokens that each method keeps {at_budget(budget)}, drawn over the image: every cell is "
        f"one of {page.rows} x {page.cols} image tokens. Dark blue cells are kept in all layers and KV heads, pale "
        "cells are evicted everywhere, shades between give the share of layers and heads that keep the cell. "
        "The percentage below is the share of image tokens kept; methods differ in it because text competes for the "
        "budget."
    )
    if chosen:
        caption += f" Further rows show single heads ({chosen}), where a cell is either kept or not."
    return Drawing(
        f"kept_over_image_{image}_{in_name(budget)}", f"Kept image tokens, {labelled(budget)}", figure, data, caption
    )


def _scope_name(layer: Value, head: Value) -> str:
    return "all heads" if (layer, head) == _ALL else f"layer {layer}, head {head}"


def _shares(cells: Table, page: GridImage) -> Array:
    """Kept share per cell, ``[rows, cols]`` in 0..1."""
    shares = np.zeros((page.rows, page.cols))
    for row in cells:
        shares[whole(row["row"]), whole(row["col"])] = float(cast("float", row["kept"]))
    return shares


def _draw(ax: Axes, page: GridImage, shares: Array, across: float) -> None:
    """Draw the page, dark where cells are kept and pale where they are evicted."""
    size = round(across * _PIXELS), max(1, round(across * _PIXELS * page.image.height / page.image.width))
    light = np.asarray(_grey(page.image).resize(size, Image.Resampling.LANCZOS), dtype=np.float64)[..., None] / 255
    rows = (np.arange(size[1]) * page.rows) // size[1]
    cols = (np.arange(size[0]) * page.cols) // size[0]
    kept = shares[np.ix_(rows, cols)][..., None]
    pixels = (1 - kept) * _toned(_EVICTED, light) + kept * _toned(_KEPT, light)
    aspect = (page.image.height / page.rows) / (page.image.width / page.cols)
    ax.imshow(pixels, extent=(0, page.cols, page.rows, 0), aspect=aspect)
    if across / page.cols >= _CELL_LINES:
        ax.vlines(range(1, page.cols), 0, page.rows, color="white", linewidth=0.25)
        ax.hlines(range(1, page.rows), 0, page.cols, color="white", linewidth=0.25)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set(visible=True, color=QUIET, linewidth=0.5)
    ax.set_xlabel(f"{100 * shares.mean():.0f} % kept", labelpad=2)


def _grey(image: Image.Image) -> Image.Image:
    """The image in grey, on white where it is transparent."""
    if not image.has_transparency_data:
        return image.convert("L")
    layers = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), layers).convert("L")


def _toned(ends: Array, light: Array) -> Array:
    """Colours for lightness 0..1, between those of a black and of a white pixel."""
    return np.asarray((1 - light) * ends[0] + light * ends[1], dtype=np.float64)


def _colour_bar(figure: Figure, axes: npt.NDArray[np.object_]) -> None:
    shades = LinearSegmentedColormap.from_list("kept", [tuple(_EVICTED[1]), tuple(_KEPT[1])])
    scale = ScalarMappable(Normalize(0, 1), shades)
    bar = figure.colorbar(scale, ax=axes, location="bottom", shrink=0.4, aspect=30, pad=0.02)
    bar.set_label("share of layers and heads that keep the cell")
    bar.set_ticks([0, 0.5, 1], labels=["0", "0.5", "1"])
    bar.outline.set(edgecolor=QUIET, linewidth=0.5)
