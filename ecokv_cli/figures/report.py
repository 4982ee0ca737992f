"""One self-contained HTML page per run: what was done, what came out, and how to read it."""

from __future__ import annotations

import base64
import math
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined, Template

from ecokv_cli.errors import OutputError
from ecokv_cli.figures.drawing import Drawing
from ecokv_cli.figures.style import KINDS, encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ecokv_cli.figures.gallery import Plate
    from ecokv_cli.studies.tables import Table, Value

_PIXELS_PER_INCH = 200
_SCREEN_PER_INCH = 125
"""CSS pixels that an inch of a figure takes on a wide screen: 7 pt of a figure become about 12 px."""


@dataclass(frozen=True)
class TableView:
    """A table as the page shows it.

    Attributes
    ----------
    table
        The rows.
    caption
        What they are and how to read them.
    columns
        Which columns to show, in this order; all if empty.
    limit
        How many rows to show at most; the page says how many there are.
    file
        Where the whole table lies, relative to the page; empty if nowhere.
    """

    table: Table
    caption: str
    columns: Sequence[str] = ()
    limit: int = 20
    file: str = ""


@dataclass(frozen=True)
class Section:
    """A chapter of the page: a heading, then paragraphs, tables and figures (drawn or saved) in this order.

    `folder` is where the figures were saved, relative to the page; the page links the files that are there.
    """

    title: str
    text: Sequence[str] = ()
    tables: Sequence[TableView] = ()
    figures: Sequence[Drawing | Plate] = ()
    folder: str = ""


def write_report(
    path: Path,
    title: str,
    sections: Sequence[Section],
    *,
    summary: Sequence[str],
    settings: Mapping[str, object],
    versions: Mapping[str, str],
    command: str,
    highlights: Mapping[str, str] | None = None,
) -> Path:
    """Write a run's report as one HTML file that needs nothing else: no network, no scripts, no other files.

    Parameters
    ----------
    path
        The file to write; its folder must exist. It is replaced only when the new page is complete.
    title
        Heading of the page.
    sections
        The chapters.
    summary
        Paragraphs that open the page.
    settings
        What decided the result, by name; lists are shown with commas.
    versions
        Libraries and model revisions, by name.
    command
        The exact command line that made the run.
    highlights
        A few key numbers by name, already formatted.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    page = _template().render(
        title=title,
        summary=summary,
        highlights=highlights or {},
        chapters=list(_chapters(sections, path.parent)),
        settings={name: _setting(value) for name, value in settings.items()},
        versions=versions,
        command=command,
    )
    try:
        with tempfile.TemporaryDirectory(prefix=".writing-", dir=path.parent) as scratch:
            draft = Path(scratch) / path.name
            draft.write_text(page, encoding="utf-8", newline="\n")
            return draft.replace(path)
    except OSError as error:
        raise OutputError(f"report {path}: cannot be written: {error.strerror or error}") from error


def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(files("ecokv_cli.figures").joinpath("report.html.j2").read_text(encoding="utf-8"))


def _chapters(sections: Iterable[Section], home: Path) -> Iterable[dict[str, Any]]:
    """Sections as the template reads them, with tables and figures numbered through."""
    tables = figures = 0
    for section in sections:
        chapter: dict[str, Any] = {"title": section.title, "text": section.text, "tables": [], "figures": []}
        for view in section.tables:
            tables += 1
            chapter["tables"].append({"number": tables} | _table(view))
        for picture in section.figures:
            figures += 1
            chapter["figures"].append({"number": figures} | _figure(picture, section.folder, home))
        yield chapter


def _files(folder: str, stem: str) -> list[tuple[str, str]]:
    """What `Drawing.save` may have left: kinds with names relative to the page."""
    kinds = {kind.upper(): kind for kind in KINDS} | {"data": "csv"}
    return [(kind, f"{folder}/{stem}.{ending}") for kind, ending in kinds.items()] if folder else []


def _figure(picture: Drawing | Plate, folder: str, home: Path) -> dict[str, Any]:
    if isinstance(picture, Drawing):
        image, stem = encode(picture.figure, "png", dpi=_PIXELS_PER_INCH), picture.stem
        width, height = picture.figure.get_size_inches()
    else:
        image, stem = picture.png.read_bytes(), picture.png.stem
        width, height = picture.inches
    return {
        "title": picture.title,
        "caption": picture.caption,
        "source": f"data:image/png;base64,{base64.b64encode(image).decode()}",
        "width": round(width * _SCREEN_PER_INCH),
        "height": round(height * _SCREEN_PER_INCH),
        "files": [(kind, name) for kind, name in _files(folder, stem) if (home / name).is_file()],
    }


def _table(view: TableView) -> dict[str, Any]:
    columns = tuple(view.columns) or view.table.columns
    rows = view.table.rows[: view.limit]
    cells = [(_budgets if name == "budget" else _column)([row[name] for row in rows]) for name in columns]
    return {
        "caption": view.caption,
        "columns": [(n.replace("_", " "), _numeric([row[n] for row in rows])) for n in columns],
        "rows": list(zip(*cells, strict=True)),
        "shown": len(rows),
        "total": len(view.table),
        "file": view.file,
    }


def _numeric(values: Sequence[Value]) -> bool:
    return all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values)


def _column(values: Sequence[Value]) -> list[tuple[str, str]]:
    """Text and sort key of every cell; all floats of a column get the decimals that give its largest four digits."""
    largest = max((abs(value) for value in values if isinstance(value, float)), default=0.0)
    decimals = min(max(3 - math.floor(math.log10(largest)), 0), 4) if largest else 1
    return [(_shown(value, decimals), "" if value is None else str(value)) for value in values]


def _budgets(values: Sequence[Value]) -> list[tuple[str, str]]:
    """As `_column`, but a share of the prompt stands as it was asked, beside tokens."""
    return [(str(v) if isinstance(v, float) else _shown(v), "" if v is None else str(v)) for v in values]


def _shown(value: object, decimals: int = 0) -> str:
    """A value for reading; a dash for what is undefined, a power of ten for what would round to zero."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        vanishes = value and abs(value) < 0.5 * 10**-decimals
        return (f"{value:.1e}" if vanishes else f"{value:.{decimals}f}").replace("-", "−")
    return str(value)


def _setting(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_setting, value))
    return str(value) if isinstance(value, float) else _shown(value)
