"""The images of a dump as backgrounds for what is kept of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PIL import Image

from ecokv_cli.figures.budgets import budgets_of
from ecokv_cli.figures.overlay import GridImage, kept_over_image
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.dump.schema import ImageGrid
    from ecokv_cli.figures.drawing import Drawing


def kept_over_images(positions: Table, dump: Dump, width: str | float = "double") -> list[Drawing | None]:
    """Draw kept positions over each image of a sample, on its finest grid, once per budget; see `kept_over_image`.

    Of an image in tiles that is the grid of the whole image.
    """
    drawn: list[Drawing | None] = []
    for number, info in enumerate(dump.manifest.images):
        grid = finest_grid(dump.manifest.grids, number)
        if grid is None:
            continue
        cells = cells_on(positions, grid)
        with Image.open(dump.folder / info.file) as image:
            page = cut_out(image, grid)
        drawn += [
            kept_over_image(cells, page, budget=budget, image=number, width=width) for budget in budgets_of(cells)
        ]
    return drawn


def finest_grid(grids: Iterable[ImageGrid], image: int) -> ImageGrid | None:
    """The grid of an image that covers most of it, then the finest: the whole is preferred to one of its tiles."""
    return max((grid for grid in grids if grid.image == image), key=_reach, default=None)


def cells_on(positions: Table, grid: ImageGrid) -> Table:
    """The rows of positions that are cells of a grid."""
    rows = [row for row in positions if _on(grid, row["position"]) and row["row"] is not None]
    return Table(positions.name, positions.columns, rows)


def cut_out(image: Image.Image, grid: ImageGrid) -> GridImage:
    """The part of an image that a grid covers."""
    x0, y0, x1, y1 = grid.box
    box = (round(x0 * image.width), round(y0 * image.height), round(x1 * image.width), round(y1 * image.height))
    return GridImage(image.convert("RGB").crop(box), grid.rows, grid.cols)


def _reach(grid: ImageGrid) -> tuple[float, int]:
    x0, y0, x1, y1 = grid.box
    return (x1 - x0) * (y1 - y0), grid.rows * grid.cols


def _on(grid: ImageGrid, position: object) -> bool:
    return isinstance(position, int) and 0 <= position - grid.start < grid.rows * (grid.cols + grid.extra)
