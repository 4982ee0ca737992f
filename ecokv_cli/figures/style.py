"""The look of every figure and how figures are written: one place for sizes, type, colours and bytes."""

from __future__ import annotations

import io
import math
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import AutoLocator

from ecokv_cli.errors import OutputError, UsageError
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Dash = Literal["solid"] | tuple[float, tuple[float, ...]]
Layout = Literal["constrained", "compressed"]

WIDTHS = {"single": 3.3, "double": 6.9}
"""Widths in inches of one and of two columns of a paper."""

NARROWEST, WIDEST = 3, 20
"""Inches that a figure may be wide."""

KINDS = ("pdf", "png", "svg")
"""File formats that figures can be written in."""

FORMATS = ("pdf", "png")
"""What `save` writes when it is not told otherwise."""

DPI = 300

SEQUENTIAL = "viridis"
DIVERGING = "RdBu_r"

INK = "#1a1a1a"
QUIET = "#8c8c8c"
FAINT = "#e3e3e3"

# The Okabe-Ito colours, which stay apart under the common colour deficiencies (yellow is too pale on white).
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"

_SMALL, _TEXT, _LETTER = 7.0, 7.5, 9.0

_LOOK: dict[str, Any] = {
    # DejaVu Sans travels with matplotlib, so figures do not change with the fonts of a machine.
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": _TEXT,
    "axes.labelsize": _TEXT,
    "axes.titlesize": _TEXT,
    "axes.titlepad": 4.0,
    "axes.labelpad": 3.0,
    "xtick.labelsize": _SMALL,
    "ytick.labelsize": _SMALL,
    "legend.fontsize": _SMALL,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.6,
    "lines.markeredgewidth": 0.8,
    "patch.linewidth": 0.6,
    "hatch.linewidth": 0.55,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 0.0,
    "ytick.minor.size": 0.0,
    "xtick.major.pad": 2.5,
    "ytick.major.pad": 2.5,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.4,
    "legend.handletextpad": 0.6,
    "legend.borderaxespad": 0.2,
    "figure.dpi": DPI,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    # Type 42 (TrueType): several submission systems reject matplotlib's default, Type 3.
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "ecokv",
}

_METADATA: dict[str, dict[str, str | None]] = {
    "pdf": {"Creator": "ecokv", "Producer": "ecokv", "CreationDate": None},
    "png": {"Software": "ecokv"},
    "svg": {"Creator": "ecokv", "Date": None},
}


@dataclass(frozen=True)
class MethodStyle:
    """How one eviction method looks: colour for the screen; marker, dash and hatch for grey print."""

    color: str
    marker: str
    dash: Dash
    hatch: str
    hollow: bool = False

    @property
    def face(self) -> str:
        """Fill of the markers."""
        return "white" if self.hollow else self.color


_KNOWN = {
    "full": MethodStyle(BLACK, "_", (0, (5, 2)), ""),
    "random": MethodStyle(QUIET, "x", (0, (1, 1.4)), "....."),
    "snapkv": MethodStyle(BLUE, "o", "solid", "/////"),
    "keydiff": MethodStyle(GREEN, "^", (0, (4, 1.5, 1, 1.5)), "-----"),
    "snapkv+mixkv": MethodStyle(ORANGE, "s", (0, (3, 1.2)), "\\\\\\\\\\"),
    "snapkv+ecokv": MethodStyle(VERMILLION, "D", "solid", "xxxxx"),
    "oracle": MethodStyle(BLACK, "*", (0, (1, 1)), "++++"),
}
_OTHER_COLORS = (SKY, PURPLE, BLUE, GREEN, ORANGE, VERMILLION, BLACK)
_OTHER_MARKERS = ("v", "P", "X", "<", ">", "h", "p", "d", "8")
_OTHER_DASHES: tuple[Dash, ...] = ("solid", (0, (6, 1.5)), (0, (2, 1)), (0, (5, 1.2, 1, 1.2, 1, 1.2)))
_OTHER_HATCHES = ("|||||", "ooo", "OO", "**", "//..", "\\\\..", "xx..", "||--", "..--", "++oo", "//oo")


def method_styles(methods: Iterable[str]) -> dict[str, MethodStyle]:
    """Give every method its look.

    The methods that ecokv compares by default always look the same, also with options (``random[seed=1]``) unless
    several variants of one method are compared. All others take the free looks in the order of their names, so that
    a method looks the same in all figures of a run.
    """
    names = sorted(set(methods))
    plain = {name: name.partition("[")[0] for name in names}
    alone = {name for name in names if list(plain.values()).count(plain[name]) == 1}
    fixed = {name: _KNOWN[plain[name]] for name in names if plain[name] in _KNOWN and (name in _KNOWN or name in alone)}
    free = [name for name in names if name not in fixed]
    return fixed | {name: _other_style(i) for i, name in enumerate(free)}


def _other_style(i: int) -> MethodStyle:
    color, marker = _OTHER_COLORS[i % len(_OTHER_COLORS)], _OTHER_MARKERS[i % len(_OTHER_MARKERS)]
    dash, hatch = _OTHER_DASHES[i % len(_OTHER_DASHES)], _OTHER_HATCHES[i % len(_OTHER_HATCHES)]
    return MethodStyle(color, marker, dash, hatch, hollow=True)


def inches(width: str | float) -> float:
    """Width of a figure in inches.

    Parameters
    ----------
    width
        ``single`` (3.3 in), ``double`` (6.9 in) or a number of inches from 3 to 20, also as text. In anything
        narrower, words of several figures would run into each other at their fixed size.

    Raises
    ------
    UsageError
        For anything else.
    """
    if width in WIDTHS:
        return WIDTHS[str(width)]
    try:
        number = float(width)
    except ValueError:
        number = math.nan
    if not NARROWEST <= number <= WIDEST:
        why = "; in a narrower one words would overlap" if number < NARROWEST else ""
        raise UsageError(
            f"figure width {width!r}: give single, double or a number of inches from {NARROWEST} to {WIDEST}{why}"
        )
    return number


@contextmanager
def look() -> Iterator[None]:
    """Run a block under ecokv's settings of matplotlib, whatever the user's own matplotlibrc says."""
    with matplotlib.style.context(["default", _LOOK]):
        yield


def new_figure(width: float, height: float, layout: Layout = "constrained") -> Figure:
    """Make an empty figure of `width` x `height` inches; call it under `look`.

    Axes of a fixed shape (images, matrices) stand closer together with the ``compressed`` layout.
    """
    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def freeze(figure: Figure) -> None:
    """Lay the figure out once and for all, so that every save writes the same bytes and nothing is cut off."""
    for ax in figure.findobj(Axes):
        for axis in (ax.xaxis, ax.yaxis):
            locator = axis.get_major_locator()
            if isinstance(locator, AutoLocator):
                # By default the number of ticks follows the size of the axes, which follows the width of tick labels,
                # which follows the ticks: the layout may then never come to rest.
                locator.set_params(nbins=5)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def encode(figure: Figure, kind: str, *, title: str = "", dpi: int = DPI) -> bytes:
    """Return the bytes of a figure as ``pdf``, ``png`` or ``svg``; the same figure always gives the same bytes."""
    if kind not in KINDS:
        raise UsageError(f"figure format {kind!r}: choose from {', '.join(KINDS)}")
    buffer = io.BytesIO()
    metadata = _METADATA[kind] | ({"Title": title} if title else {})
    with look():
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    return buffer.getvalue()


def save(
    figure: Figure, folder: Path, name: str, formats: Sequence[str] = FORMATS, data: Table | None = None
) -> list[Path]:
    """Write a figure in each format, and the numbers behind it as CSV, all named `name`.

    Files are written under a temporary name and renamed when complete.

    Returns
    -------
    list of Path
        The files written, figures first.

    Raises
    ------
    UsageError
        For an unknown format.
    OutputError
        If the folder cannot be written.
    """
    contents = {f"{name}.{kind}": encode(figure, kind, title=name) for kind in formats}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".writing-", dir=folder) as scratch:
            drafts = [Path(scratch) / file for file in contents]
            for draft in drafts:
                draft.write_bytes(contents[draft.name])
            if data is not None:
                drafts.append(Table(name, data.columns, data.rows).write_csv(Path(scratch)))
            return [draft.replace(folder / draft.name) for draft in drafts]
    except OSError as error:
        raise OutputError(f"figure {name}: cannot write to {folder}: {error.strerror or error}") from error
