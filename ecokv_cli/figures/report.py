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
from ecokv_cli.figures.style import encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ecokv_cli.figures.drawing import Drawing
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
    """A chapter of the page: a heading, then paragraphs, tables and figures in this order.

    `folder` is where the figures were saved, relative to the page; empty if they were not.
    """

    title: str
    text: Sequence[str] = ()
    tables: Sequence[TableView] = ()
    figures: Sequence[Drawing] = ()
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
        chapters=list(_chapters(sections)),
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


def _chapters(sections: Iterable[Section]) -> Iterable[dict[str, Any]]:
    """Sections as the template reads them, with tables and figures numbered through."""
    tables = figures = 0
    for section in sections:
        chapter: dict[str, Any] = {"title": section.title, "text": section.text, "tables": [], "figures": []}
        for view in section.tables:
            tables += 1
            chapter["tables"].append({"number": tables} | _table(view))
        for drawing in section.figures:
            figures += 1
            chapter["figures"].append({"number": figures} | _figure(drawing, section.folder))
        yield chapter


def _figure(drawing: Drawing, folder: str) -> dict[str, Any]:
    image = encode(drawing.figure, "png", dpi=_PIXELS_PER_INCH)
    width, height = drawing.figure.get_size_inches()
    return {
        "title": drawing.title,
        "caption": drawing.caption,
        "source": f"data:image/png;base64,{base64.b64encode(image).decode()}",
        "width": round(width * _SCREEN_PER_INCH),
        "height": round(height * _SCREEN_PER_INCH),
        "file": f"{folder}/{drawing.stem}" if folder else "",
    }


def _table(view: TableView) -> dict[str, Any]:
    columns = tuple(view.columns) or view.table.columns
    rows = view.table.rows[: view.limit]
    cells = [_column([row[name] for row in rows]) for name in columns]
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
        return ", ".join(map(str, value))
    return str(value) if isinstance(value, float) else _shown(value)
