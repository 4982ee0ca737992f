"""One sample looked at closely: kept cells with the boxes of the answer, and what each head loses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from ecokv_cli.figures.budgets import at_budget, budgets_of, in_name, labelled
from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.overlay import kept_over_image
from ecokv_cli.figures.pages import cells_on, cut_out, finest_grid
from ecokv_cli.figures.parts import (
    LINE,
    WIDE,
    fold,
    grid,
    heat_map,
    label_layers,
    letter,
    map_height,
    most_lines,
    names,
    ordered,
    panel_grid,
    round_limits,
)
from ecokv_cli.figures.style import SEQUENTIAL, VERMILLION, inches
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ecokv_cli.dump.schema import BoxInfo, ImageGrid
    from ecokv_cli.eviction.budget import Budget
    from ecokv_cli.figures.parts import Array
    from ecokv_cli.studies.explain import Explanation


AXIS, LETTERS = 0.3, 0.3
"""Inches for the names of heads, and beside a panel's heading, on either side, for a panel's letter."""


def kept_over_answer(positions: Table, dump: Explanation, width: str | float = "double") -> list[Drawing | None]:
    """Draw kept positions over each image of a sample as `kept_over_image` does, with its boxes, once per budget.

    Parameters
    ----------
    positions
        The `explain_positions` table.
    dump
        The explained sample.
    width
        See `style.inches`.
    """
    drawings: list[Drawing | None] = []
    for number, image in enumerate(dump.question.images):
        grid_of = finest_grid(dump.grids, number)
        if grid_of is None:
            continue
        cells, page = cells_on(positions, grid_of), cut_out(image, grid_of)
        for budget in budgets_of(_evicted(positions)):
            drawing = kept_over_image(cells, page, budget=budget, image=number, width=width)
            drawings.append(drawing and _with_boxes(drawing, dump, grid_of))
    return drawings


def region_lost_by_head(region: Table, width: str | float = "double") -> list[Drawing | None]:
    """Draw the attention on the answer's region that every layer and head loses, a panel per method, once per budget.

    Parameters
    ----------
    region
        The `explain_region` table.
    width
        See `style.inches`.

    Returns
    -------
    list of Drawing or None
        The first panel is what there is to lose.
    """
    inside = region.where(region="answer")
    return [_region_map(inside, budget, width) for budget in budgets_of(_evicted(inside))]


def mass_kept_by_head(fidelity: Table, width: str | float = "double") -> list[Drawing | None]:
    """Draw the held-out attention mass that every layer and head keeps, a panel per method, once per budget.

    Parameters
    ----------
    fidelity
        The `explain_fidelity` table.
    width
        See `style.inches`.
    """
    return [_mass_map(fidelity, budget, width) for budget in budgets_of(_evicted(fidelity))]


@drawn
def _region_map(region: Table, budget: Budget, width: str | float) -> Drawing:
    rows = region.where(budget=budget)
    methods = names(rows, "method")
    one = rows.where(method=methods[0])
    maps = {"full cache: all there is": grid(one, "attention")}
    maps |= {_with_answer(rows, method): grid(rows.where(method=method), "lost") for method in methods}
    cells = int(str(rows.rows[0]["tokens"]))
    caption = (
        f"Attention on the answer's region ({cells} image tokens that a box of the answer overlaps) by the queries of "
        "the answer that the full cache gives, mean over queries and the query heads of each KV head. (a) What there "
        f"is to lose; the others: what each method loses of it {at_budget(budget)}, in attention of the "
        "full cache (0 = the head keeps all it looks at). The score is that of its own answer. Bright heads read "
        "the answer; a method that loses them is likely to answer wrongly, though one layer may make up for another, "
        "which is not seen here: each layer is judged with the full cache in all others."
    )
    figure = _maps(rows, maps, "attention", width, zero=True)
    name = f"region_lost_by_head_{in_name(budget)}"
    title = f"Attention on the answer lost by head, {labelled(budget)}"
    return Drawing(name, title, figure, rows, caption)


@drawn
def _mass_map(fidelity: Table, budget: Budget, width: str | float) -> Drawing:
    rows = fidelity.where(budget=budget)
    maps = {_with_answer(rows, m): grid(rows.where(method=m), "mass") for m in names(rows, "method")}
    caption = (
        f"Attention mass that falls on what each method keeps {at_budget(budget)}, by layer and KV head, "
        "of the queries of the answer that the full cache gives (1 = nothing they look at is evicted). The score is "
        "that of the method's own answer. Each layer is judged with the full cache in all others."
    )
    figure = _maps(rows, maps, "attention mass kept", width, zero=False)
    return Drawing(
        f"mass_kept_by_head_{in_name(budget)}", f"Attention mass kept by head, {labelled(budget)}", figure, rows,
        caption,
    )  # fmt: skip


def _maps(rows: Table, maps: dict[str, Array], label: str, width: str | float, *, zero: bool) -> Figure:
    """A heads-by-layers map per entry with one scale for all, from 0 or up to 1."""
    size = inches(width)
    low, high = round_limits(np.concatenate([cells.ravel() for cells in maps.values()]))
    first = next(iter(maps.values()))
    columns = 3 if size >= WIDE else 1
    titles = [fold(title, (size - AXIS) / columns - LETTERS) for title in maps]
    height = map_height(len(first)) + 0.3 + LINE * (most_lines(titles) - 1)
    figure, axes = panel_grid(size, len(maps), columns, height, extra=0.6, share="xy")
    norm = Normalize(0, high) if zero else Normalize(low, 1)
    meshes = [heat_map(ax, cells, norm, SEQUENTIAL) for ax, cells in zip(axes, maps.values(), strict=True)]
    heads = ordered(rows, "kv_head")
    for i, ax in enumerate(axes):
        label_layers(ax.xaxis, ordered(rows, "layer"))
        label_layers(ax.yaxis, heads, room=5)
        if i % columns == 0:
            ax.set_ylabel("KV head")
    for ax in axes[-columns:]:
        ax.set_xlabel("layer")
    letter(axes, titles)
    bar = figure.colorbar(meshes[0], ax=axes, location="bottom", shrink=0.4, aspect=30, pad=0.02, label=label)
    bar.outline.set_visible(False)
    return figure


def _with_answer(rows: Table, method: str) -> str:
    """A method with the score of its answer, as a panel's heading."""
    score = rows.where(method=method).rows[0]["score"]
    return f"{method}, score {float(str(score)):.2g}"


def _with_boxes(drawing: Drawing, explained: Explanation, page: ImageGrid) -> Drawing:
    """The drawing with the boxes on its image; the layout stays, as they lie on axes that are there."""
    shown = [(box, mine) for box, mine in explained.boxes if box.image == page.image]
    for ax in drawing.figure.axes:
        for box, mine in shown if ax.images else ():
            ax.add_patch(_rectangle(box, page, mine=mine))
    words = ""
    if shown:
        words = " The solid box is where the answer stands" + (
            "; dotted boxes are the sample's other boxes." if not all(mine for _, mine in shown) else "."
        )
    if explained.focus:
        words += " The single head is the one that looks most at the answer's region on the full cache."
    return replace(
        drawing,
        stem=drawing.stem.replace("kept_over_image", "kept_over_answer"),
        title=drawing.title.replace("Kept image tokens", "Kept image tokens and the answer"),
        caption=f"{drawing.caption}{words}",
    )


def _rectangle(box: BoxInfo, page: ImageGrid, *, mine: bool) -> Rectangle:
    """A box in cells of the grid."""
    x0, y0, x1, y1 = page.box
    across, down = page.cols / (x1 - x0), page.rows / (y1 - y0)
    left, top = (box.box[0] - x0) * across, (box.box[1] - y0) * down
    size = (box.box[2] - box.box[0]) * across, (box.box[3] - box.box[1]) * down
    style = "solid" if mine else (0, (1, 1))
    # The white rim sets the box off from kept cells, which are as dark as it is in grey print.
    rim = [withStroke(linewidth=2.4, foreground="white")]
    return Rectangle(
        (left, top), *size, fill=False, edgecolor=VERMILLION, linewidth=1.2, linestyle=style, path_effects=rim
    )


def _evicted(table: Table) -> Table:
    return Table(table.name, table.columns, [row for row in table if row["budget"] is not None])
