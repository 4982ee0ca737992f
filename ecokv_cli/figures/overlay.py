"""Kept image tokens drawn over the image they come from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from PIL import Image

from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import WIDE, counted, names, ordered
from ecokv_cli.figures.style import DPI, inches, new_figure
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from ecokv_cli.figures.parts import Array

_EVICTED = np.array([[0.76, 0.76, 0.76], [1.0, 1.0, 1.0]])
_KEPT = np.array([[0.0, 0.06, 0.16], [0.38, 0.68, 0.92]])
"""Colours of a black and of a white pixel. The lightest kept is darker than the darkest evicted, even in grey print."""

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
    positions: Table, images: Sequence[GridImage], *, image: int = 0, budget: int | None = None, width: str | float = "double"
) -> Drawing | None:
    """Draw which cells of an image each method keeps: over all heads, and for the chosen head if the table has one.

    Parameters
    ----------
    positions
        The `positions` table of one sample.
    images
        The images of the sample, in the order of the table's `image` column.
    image
        Which of them to draw.
    budget
        Which budget to draw; the smallest if not given.
    width
        See `style.inches`.

    Returns
    -------
    Drawing or None
        None when there is no such image or the table has no rows for it.
    """
    cells = positions.where(image=image)
    if image >= len(images) or not cells.rows:
        return None
    budget = ordered(cells, "budget")[0] if budget is None else budget
    cells = cells.where(budget=budget)
    methods = [m for m in names(cells, "method") if m != "full"] or names(cells, "method")
    scopes = sorted(dict.fromkeys((row["layer"], row["kv_head"]) for row in cells), key=lambda s: s != ("all", "all"))
    page = images[image]
    columns = min(len(methods), 4 if inches(width) >= WIDE else 2)
    bands = math.ceil(len(methods) / columns)
    panel = (inches(width) - 0.3) / columns - 0.06
    tall = min(panel * page.image.height / page.image.width, 3.2)
    figure = new_figure(inches(width), bands * (len(scopes) * (tall + 0.06) + 0.3) + 0.45, "compressed")
    grid = figure.subplots(bands * len(scopes), columns, squeeze=False)
    for ax in grid.ravel():
        ax.set_axis_off()
    for i, method in enumerate(methods):
        band, column = divmod(i, columns)
        for k, (layer, head) in enumerate(scopes):
            ax = grid[band * len(scopes) + k, column]
            shares = _shares(cells.where(method=method, layer=layer, kv_head=head), page)
            _draw(ax, page, shares, panel)
            if k == 0:
                ax.set_title(method.replace("[", "\n["), linespacing=1.0)
            if column == 0 and len(scopes) > 1:
                name = "all heads" if layer == "all" else f"layer {layer}, head {head}"
                ax.text(-0.03, 0.5, name, transform=ax.transAxes, rotation=90, ha="right", va="center")
    _colour_bar(figure, grid)
    data = Table("kept_over_image", cells.columns, [row for row in cells if row["method"] in methods])
    return Drawing(f"kept_over_image_{image}_budget_{budget}", f"Kept image tokens at budget {budget:,}", figure, data, "")
