"""Pieces that several figures share: layer axes, heads-by-layers maps, legends, panel letters."""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.ticker import NullLocator

from ecokv_cli.figures.style import INK, QUIET, new_figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.collections import QuadMesh
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    from ecokv_cli.figures.style import Layout
    from ecokv_cli.studies.tables import Table, Value

    Array = npt.NDArray[np.float64]

WIDE = 5.0
"""From this many inches on, panels stand side by side."""

_TICK_STEPS = (1, 2, 4, 5, 8, 10, 20, 40)
_CHARACTER, _HANDLE = 0.06, 0.42
"""Rough widths in inches of one character of a legend, and of an entry's handle and gaps."""

_ROOM = 0.05
"""Share of the height of a logarithmic axis that is left free at either end."""

LINE = 0.125
"""Inches that a further line of a label takes."""


def whole(value: Value) -> int:
    """A cell that holds a whole number, as int."""
    return int(cast("int", value))


def ordered(table: Table, column: str) -> list[int]:
    """The whole numbers of a column, each once, ascending."""
    return sorted({whole(value) for value in table.distinct(column)})


def names(table: Table, column: str) -> list[str]:
    """The texts of a column, each once, in order of appearance."""
    return [str(value) for value in table.distinct(column)]


def grid(table: Table, column: str) -> Array:
    """Mean over samples of a column, as ``[heads, layers]``; undefined numbers are NaN."""
    layers, heads = ordered(table, "layer"), ordered(table, "kv_head")
    cells = table.aggregate(("kv_head", "layer"), column, lambda v: float(np.mean(v)))
    return np.array([[cells.get((head, layer), math.nan) for layer in layers] for head in heads], dtype=np.float64)


def over_heads(cells: Array, reduce: Callable[[Array], float]) -> Array:
    """Reduce every layer's defined heads to one number, as ``[layers]``; a layer without any gives NaN."""
    defined = [column[np.isfinite(column)] for column in cells.T]
    return np.array([reduce(column) if column.size else math.nan for column in defined], dtype=np.float64)


def label_layers(axis: Axis, layers: Sequence[int], room: int = 12) -> None:
    """Put ticks at the places 0, 1, ... of the given layers, at most `room` of them, named by layer number."""
    step = next((s for s in _TICK_STEPS if len(layers) <= s * room), len(layers))
    consecutive = list(layers) == list(range(layers[0], layers[0] + len(layers)))
    places = [i for i, layer in enumerate(layers) if (layer if consecutive else i) % step == 0]
    axis.set_ticks(places, [str(layers[i]) for i in places])


def heat_map(axes: Axes, cells: Array, norm: Normalize, cmap: str) -> QuadMesh:
    """Draw a ``[heads, layers]`` map, head 0 on top; undefined cells show a grey hatch."""
    rows, columns = cells.shape
    axes.patch.set(facecolor="#efefef", edgecolor=QUIET, hatch="//////")
    mesh = axes.pcolormesh(
        np.arange(columns + 1) - 0.5,
        np.arange(rows + 1) - 0.5,
        np.ma.masked_invalid(cells),
        norm=norm,
        cmap=cmap,
        edgecolor="white",
        linewidth=0.3,
    )
    axes.set_ylim(rows - 0.5, -0.5)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return mesh


def dot_below(axes: Axes, cells: Array, middle: float) -> None:
    """Mark the cells below the middle of a diverging map with dots: in grey print both of its ends are dark."""
    below = np.argwhere(cells < middle)
    axes.plot(below[:, 1], below[:, 0], "o", color=INK, markersize=1.1, markeredgewidth=0)


def map_height(heads: int) -> float:
    """Inches that a heads-by-layers map is tall."""
    return float(np.clip(0.12 * heads, 0.46, 1.6))


def round_limits(cells: Array) -> tuple[float, float]:
    """The range of the defined cells, widened to tenths."""
    defined = cells[np.isfinite(cells)]
    if not defined.size:
        return 0.0, 1.0
    low, high = math.floor(10 * float(defined.min())) / 10, math.ceil(10 * float(defined.max())) / 10
    return low, max(high, low + 0.1)


def panel_grid(
    width: float,
    count: int,
    columns: int,
    height: float,
    *,
    extra: float = 0.0,
    layout: Layout = "constrained",
    share: str = "",
) -> tuple[Figure, list[Axes]]:
    """Make a figure of `count` equal panels, at most `columns` in a row and sharing the axes named in `share`.

    Panels are `height` inches tall, and the figure has `extra` inches more.
    """
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = new_figure(width, rows * height + extra, layout)
    axes = figure.subplots(rows, columns, squeeze=False, sharex="x" in share, sharey="y" in share).ravel().tolist()
    for ax in axes[count:]:
        ax.set_visible(False)
    for ax in axes[max(count - columns, 0) : count] if "x" in share else ():
        # Shared axes name their ticks in the last row alone, where a column may end in an empty place.
        ax.tick_params(labelbottom=True)
    return figure, axes[:count]


def spaced(places: Sequence[float], span: float, room: int) -> list[int]:
    """Indices of ascending places, greedily thinned so that no more than `room` fit into `span`."""
    chosen: list[int] = []
    for i, place in enumerate(places):
        if not chosen or place - places[chosen[-1]] >= span / room:
            chosen.append(i)
    return chosen


def letter(axes: Iterable[Axes], texts: Sequence[str] = ()) -> None:
    """Put panel letters (a, b, ...) at the top left of the axes, with a short text beside each if given."""
    for i, ax in enumerate(axes):
        name = chr(ord("a") + i)
        ax.annotate(name, (0, 1), (0, 4), "axes fraction", "offset points", fontweight="bold", fontsize=9)
        if texts:
            ax.set_title(texts[i], loc="center")


def legend_above(figure: Figure, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """Put a legend over the whole figure, in as few rows as its width allows."""
    folded = _folded(figure.get_figwidth(), labels)
    columns = math.ceil(len(labels) / _legend_rows(figure.get_figwidth(), folded))
    figure.legend(handles, folded, loc="outside upper center", ncols=columns)


def legend_height(width: float, labels: Sequence[str]) -> float:
    """Inches that `legend_above` needs in a figure of the given width."""
    folded = _folded(width, labels)
    return 0.155 * _legend_rows(width, folded) + 0.05 + LINE * sum(label.count("\n") for label in folded)


def breadth(label: str) -> float:
    """Inches that a label is wide, roughly: those of its longest line."""
    return _CHARACTER * max(map(len, label.split("\n")))


def fold(label: str, inches: float) -> str:
    """Break the name of a method, or of two, or a few words into lines that fit.

    Lines end before brackets and minus signs and after commas; pieces too long for a line also end before plus signs,
    after equals signs and between words.
    """
    pieces = re.split(r"(?=\[)|(?<=,)|(?= − )", label)
    lines = [""]
    for piece in itertools.chain(*(_pieces(piece, inches) for piece in pieces)):
        if not lines[-1] or breadth(lines[-1] + piece.rstrip()) <= inches:
            lines[-1] += piece
        else:
            lines.append(piece.lstrip())
    return "\n".join(line.rstrip() for line in lines)


def _pieces(piece: str, inches: float) -> list[str]:
    """A piece that fits into a line, or what it is broken into."""
    return [piece] if breadth(piece) <= inches else re.split(r"(?=\+)|(?<==)|(?<= )", piece)


def most_lines(labels: Iterable[str]) -> int:
    """Lines of the label that has most."""
    return max(label.count("\n") + 1 for label in labels)


def _folded(width: float, labels: Sequence[str]) -> list[str]:
    return [fold(label, width - _HANDLE) for label in labels]


def _legend_rows(width: float, labels: Sequence[str]) -> int:
    widths = [breadth(label) + _HANDLE for label in labels]
    count, rows = len(labels), 1
    # A legend fills column after column, and a column is as wide as its widest entry.
    while rows < count and sum(max(widths[i : i + rows]) for i in range(0, count, rows)) > width:
        rows += 1
    return rows


def listed(items: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def averaged(table: Table) -> str:
    """What means are taken over, in words."""
    samples = len(table.distinct("sample"))
    return "layers and KV heads" if samples == 1 else f"{samples:,} samples, layers and KV heads"


def and_samples(table: Table) -> str:
    """`` and 4 samples``, to follow what else a mean is taken over; empty for a single sample."""
    samples = len(table.distinct("sample"))
    return f" and {samples:,} samples" if samples > 1 else ""


def log_axis(ax: Axes, values: Array) -> None:
    """Give the y axis a logarithmic scale between the round numbers around the positive `values`, with plain ticks.

    There is room for half a mark beyond both. Without a positive value the scale stays linear.
    """
    defined = values[np.isfinite(values) & (values > 0)]
    if not defined.size:
        return
    low, high = float(defined.min()), float(defined.max())
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = (1, 2, 5) if high / low < 100 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    first = max(tick for tick in ticks if tick <= low)
    last = min(tick for tick in ticks if tick >= high and tick > first)
    room = (last / first) ** _ROOM
    ax.set(yscale="log", ylim=(first / room, last * room))
    ax.yaxis.set_minor_locator(NullLocator())
    shown = [tick for tick in ticks if first <= tick <= last]
    ax.set_yticks(shown, [f"{tick:g}" for tick in shown])


def counted(number: int, thing: str) -> str:
    """``1 head``, ``2 heads``."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def evicting(methods: list[str]) -> list[str]:
    """The methods without the full cache, which keeps everything and would only take room."""
    return [method for method in methods if method != "full"] or methods
