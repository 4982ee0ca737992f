"""The chosen figures of each study, and the folder that keeps them with their captions."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ecokv_cli.figures.registry import FIGURES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.figures.drawing import Drawing
    from ecokv_cli.figures.registry import FigureKind
    from ecokv_cli.studies.analyze import Analysis
    from ecokv_cli.studies.evict import Eviction
    from ecokv_cli.studies.explain import Explanation
    from ecokv_cli.studies.tables import Table

INDEX = "figures.json"

SAMPLES = 3
"""Figures of single samples are drawn for this many of them, the first ones."""


@dataclass(frozen=True)
class Plate:
    """A saved figure: its PNG, size in inches, heading and caption."""

    png: Path
    inches: tuple[float, float]
    title: str
    caption: str


def draw_analysis(result: Analysis, width: str, chosen: Sequence[str] = tuple(FIGURES["analysis"])) -> list[Drawing]:
    """Draw the chosen figures of the geometry: over all samples, or for the first `SAMPLES` where they show one.

    Parameters
    ----------
    result
        The tables.
    width
        See `style.inches`.
    chosen
        Names of figures, from `registry.parse_figures`; those of other studies are passed over.
    """
    samples = [str(sample) for sample in result.geometry.distinct("sample")]
    return _draw("analysis", result, dict.fromkeys(samples), width, chosen)


def draw_eviction(
    result: Eviction, samples: Sequence[Dump], width: str, chosen: Sequence[str] = tuple(FIGURES["eviction"])
) -> list[Drawing]:
    """Draw the chosen figures of the simulated eviction; as `draw_analysis`, with the dumps for their images."""
    return _draw("eviction", result, {dump.manifest.sample: dump for dump in samples}, width, chosen)


def draw_evaluation(
    accuracy: Table, cost: Table, width: str, chosen: Sequence[str] = tuple(FIGURES["evaluation"])
) -> list[Drawing]:
    """Draw the chosen figures of an evaluation from its tables."""
    return _draw("evaluation", SimpleNamespace(accuracy=accuracy, cost=cost), {}, width, chosen)


def draw_explanation(
    result: Explanation, width: str, chosen: Sequence[str] = tuple(FIGURES["explain"])
) -> list[Drawing]:
    """Draw the chosen figures of one explained sample."""
    return _draw("explain", result, {result.question.id: result}, width, chosen)


def undrawn(kind: str, chosen: Sequence[str], drawings: Sequence[Drawing]) -> list[str]:
    """One line for each chosen figure of a study that could not be drawn, with what it would need."""
    there = {drawing.name for drawing in drawings}
    missing = [(name, figure) for name, figure in FIGURES[kind].items() if name in chosen and name not in there]
    return [f"{name} is not drawn: it needs {figure.needs or 'rows in its tables'}" for name, figure in missing]


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


def _draw(kind: str, result: object, dumps: dict[str, Any], width: str, chosen: Sequence[str]) -> list[Drawing]:
    drawings: list[Drawing] = []
    for name, figure in FIGURES[kind].items():
        if name not in chosen:
            continue
        tables = [getattr(result, table) for table in figure.tables]
        made = _once(figure, tables, width) if figure.scope == "run" else _per_sample(figure, tables, dumps, width)
        drawings += [replace(drawing, name=name) for drawing in made]
    return drawings


def _once(figure: FigureKind, tables: Sequence[Table], width: str, **more: object) -> list[Drawing]:
    made = figure.draw(*tables, width=width, **more)
    return [drawing for drawing in (made if isinstance(made, list) else [made]) if drawing]


def _per_sample(figure: FigureKind, tables: Sequence[Table], dumps: dict[str, Any], width: str) -> Iterator[Drawing]:
    """Drawings of the first samples, each with the sample in its file name and heading where there are several."""
    for sample, dump in list(dumps.items())[:SAMPLES]:
        more = {"dump": dump} if figure.scope == "dump" else {}
        for drawing in _once(figure, [table.where(sample=sample) for table in tables], width, **more):
            if len(dumps) == 1:
                yield drawing
                continue
            caption = drawing.caption + f" Sample {sample}"
            if len(dumps) > SAMPLES:
                caption += f"; drawn for the first {SAMPLES} of {len(dumps):,} samples alone"
            yield replace(
                drawing, stem=f"{sample}-{drawing.stem}", title=f"{sample}: {drawing.title}", caption=f"{caption}."
            )
