"""The figures of each study, and the folder that keeps them with their captions."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from PIL import Image

from ecokv_cli.figures.eviction import kept_by_age, kept_by_role, overlap_matrix
from ecokv_cli.figures.fidelity import fidelity_by_budget
from ecokv_cli.figures.geometry import cosine_distribution, geometry_by_layer, pca_scatter
from ecokv_cli.figures.overlay import GridImage, kept_over_image
from ecokv_cli.figures.redundancy import lambda_by_layer, spearman_by_layer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.dump.schema import ImageGrid
    from ecokv_cli.figures.drawing import Drawing
    from ecokv_cli.studies.analyze import Analysis
    from ecokv_cli.studies.evict import Eviction
    from ecokv_cli.studies.tables import Table

INDEX = "figures.json"


@dataclass(frozen=True)
class Plate:
    """A saved figure: its PNG, size in inches, heading and caption."""

    png: Path
    inches: tuple[float, float]
    title: str
    caption: str


def draw_analysis(result: Analysis, width: str) -> list[Drawing]:
    """Figures of the geometry of every sample."""
    drawings: list[Drawing | None] = []
    samples = result.geometry.distinct("sample")
    for sample in samples:
        geometry, histogram, pca = (t.where(sample=sample) for t in (result.geometry, result.histogram, result.pca))
        drawn = [
            cosine_distribution(histogram, width) if len(histogram) else None,
            geometry_by_layer(geometry, width),
            pca_scatter(pca, width),
            lambda_by_layer(geometry, width),
            spearman_by_layer(geometry, width),
        ]
        drawings += _named(drawn, str(sample), alone=len(samples) == 1)
    return [drawing for drawing in drawings if drawing]


def draw_eviction(result: Eviction, samples: Sequence[Dump], width: str) -> list[Drawing]:
    """Figures of the simulated eviction of every sample."""
    drawings: list[Drawing | None] = []
    for dump in samples:
        name = dump.manifest.sample
        drawn: list[Drawing | None] = [
            fidelity_by_budget(result.fidelity.where(sample=name), width),
            *_overlays(result.positions.where(sample=name), dump, width),
            kept_by_age(result.recency.where(sample=name), width),
            kept_by_role(result.roles.where(sample=name), width),
            overlap_matrix(result.overlap.where(sample=name), width),
        ]
        drawings += _named(drawn, name, alone=len(samples) == 1)
    return [drawing for drawing in drawings if drawing]


def save_drawings(folder: Path, drawings: Iterable[Drawing], formats: Sequence[str]) -> None:
    """Save figures with their data; a PNG is always among them, for the report."""
    folder.mkdir()
    index = []
    for drawing in drawings:
        drawing.save(folder, list(dict.fromkeys([*formats, "png"])))
        size = [float(inches) for inches in drawing.figure.get_size_inches()]
        index.append({"stem": drawing.stem, "inches": size, "title": drawing.title, "caption": drawing.caption})
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def load_plates(folder: Path) -> list[Plate]:
    """Figures that `save_drawings` left in `folder`."""
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    return [
        Plate(folder / f"{entry['stem']}.png", tuple(entry["inches"]), entry["title"], entry["caption"])
        for entry in index
    ]


def _named(drawings: Iterable[Drawing | None], sample: str, *, alone: bool) -> list[Drawing | None]:
    """Put the sample's name before file names and headings where there are several samples."""
    if alone:
        return list(drawings)
    return [d and replace(d, stem=f"{sample}-{d.stem}", title=f"{sample}: {d.title}") for d in drawings]


def _overlays(positions: Table, dump: Dump, width: str) -> list[Drawing | None]:
    """Kept positions over each image, on its finest grid."""
    drawn: list[Drawing | None] = []
    for number in range(len(dump.manifest.images)):
        grids = [grid for grid in dump.manifest.grids if grid.image == number]
        if not grids:
            continue
        grid = max(grids, key=lambda g: g.rows * g.cols)
        cells = replace(
            positions, rows=[row for row in positions if _on(grid, row["position"]) and row["row"] is not None]
        )
        page = _cropped(dump, grid)
        budgets = [int(str(budget)) for budget in cells.distinct("budget")]
        drawn += [kept_over_image(cells, page, budget=budget, image=number, width=width) for budget in budgets]
    return drawn


def _on(grid: ImageGrid, position: object) -> bool:
    return isinstance(position, int) and 0 <= position - grid.start < grid.rows * (grid.cols + grid.extra)


def _cropped(dump: Dump, grid: ImageGrid) -> GridImage:
    """The part of the image that the grid covers."""
    with Image.open(dump.folder / dump.manifest.images[grid.image].file) as image:
        x0, y0, x1, y1 = grid.box
        box = (round(x0 * image.width), round(y0 * image.height), round(x1 * image.width), round(y1 * image.height))
        return GridImage(image.convert("RGB").crop(box), grid.rows, grid.cols)
