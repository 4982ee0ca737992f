"""Attention sinks: where they are, how far they stick out, and what the statistics are without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D

from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import counted, legend_above, letter, listed, log_axis, ordered
from ecokv_cli.figures.profiles import (
    TENSORS,
    Stroke,
    add_profile,
    draw_profile,
    label_panels,
    layer_panels,
    profile,
    profile_table,
)
from ecokv_cli.figures.roles import MARKS, present_roles
from ecokv_cli.figures.style import INK, inches
from ecokv_cli.studies.reduced import Reduced
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ecokv_cli.figures.profiles import Profile

_WITHOUT = Stroke(INK, (0, (1, 1)), "")
_COSINES = {"cos_mean": TENSORS["keys"], "cos_mean_no_sinks": _WITHOUT}
_NAMED = 3
"""Sinks that a caption names."""


@drawn
def sinks_by_layer(sinks: Table, geometry: Table, width: str | float = "double") -> Drawing | None:
    """Draw the attention and the key norm of every sink by layer, and the mean cosine with and without sinks.

    Parameters
    ----------
    sinks
        The `sinks` table.
    geometry
        The `geometry` table.
    width
        See `style.inches`.

    Returns
    -------
    Drawing or None
        None when no position is a sink.
    """
    if not sinks.rows:
        return None
    keys = geometry.where(tensor="keys")
    layers = ordered(keys, "layer")
    figure, panels = layer_panels(inches(width), 3, tall=2.0, extra=0.2)
    measures = {"attention": "attention / even share", "key_norm_relative": "key norm / median"}
    for ax, (column, label) in zip(panels, measures.items(), strict=False):
        _points(ax, sinks, column, layers)
        ax.set_ylabel(label)
    found = {column: profile(keys, column) for column in _COSINES}
    for column, stroke in _COSINES.items():
        draw_profile(panels[2], found[column], stroke, spread=False)
    panels[2].set_ylabel("mean cosine of keys")
    for ax in panels:
        ax.set_xlim(-0.5, len(layers) - 0.5)
    label_panels(panels, layers)
    letter(panels)
    present = present_roles(sinks)
    handles = [*(MARKS[role].handle for role in present), TENSORS["keys"].handle]
    handles.append(Line2D([], [], color=INK, linestyle=_WITHOUT.dash))
    legend_above(figure, handles, [*present, "all positions", "without sinks"])
    data = _data(sinks, found)
    samples = len(keys.distinct("sample"))
    of, shown = f" of {samples:,} samples" if samples > 1 else "", samples
    if isinstance(sinks, Reduced) and sinks.first < len(sinks.samples):
        of, shown = f" of the first {sinks.first:,} samples with sinks, {samples:,} in all", sinks.first
    bands = " (bands: 95 % bootstrap intervals over samples)" if samples > 1 else ""
    caption = (
        f"Attention sinks, one mark per sink and layer{of}: (a) attention from the observation window over what an "
        "even spread would give, (b) key norm over the median of the head, both means over KV heads on logarithmic "
        f"axes; (c) mean cosine of keys with and without the sinks{bands}. A position is flagged if in most heads it "
        "draws more than ten times its even share, or if its norm is an "
        f"outlier; nothing is removed elsewhere. Most often: {_most_often(sinks, len(layers) * shown)}. Lines apart "
        "in (c) mean that a few positions decide the statistics of that layer."
    )
    return Drawing("sinks_by_layer", "Attention sinks by layer", figure, data, caption)


def _data(sinks: Table, lines: dict[str, Profile]) -> Table:
    """The sinks, and below them the lines, which `measure` names."""
    marks = ("sample", "position", "token", "role", "reason", "attention", "key_norm_relative")
    data = profile_table("sinks_by_layer", *marks)
    for row in sinks:
        data.rows.append(dict.fromkeys(data.columns) | {column: row[column] for column in (*marks, "layer")})
    for measure, line in lines.items():
        add_profile(data, line, measure=measure, **dict.fromkeys(marks))
    return data


def _points(ax: Axes, sinks: Table, column: str, layers: list[int]) -> None:
    places = {layer: i for i, layer in enumerate(layers)}
    for order, (role, mark) in enumerate(MARKS.items()):
        rows = [row for row in sinks.where(role=role) if row[column] is not None]
        x, y = [places[row["layer"]] for row in rows], [float(str(row[column])) for row in rows]  # type: ignore[index]
        looks = {"markerfacecolor": mark.face, "markeredgecolor": mark.edge, "markeredgewidth": mark.line}
        ax.plot(x, y, linestyle="", marker=mark.marker, markersize=1.2 * mark.size, zorder=2 + order, **looks)  # type: ignore[arg-type]
    ax.axhline(1, color=INK, linewidth=0.6, zorder=0.5)
    log_axis(ax, np.array([1.0, *sinks.numbers(column)]))


def _most_often(sinks: Table, layers: int) -> str:
    """The positions that are sinks in most layers, with their tokens."""
    counts: dict[tuple[object, object], int] = {}
    for row in sinks:
        key = (row["position"], row["token"])
        counts[key] = counts.get(key, 0) + 1
    first = sorted(counts.items(), key=lambda item: -item[1])[:_NAMED]
    return listed([f"position {at} “{token}” ({n} of {counted(layers, 'layer')})" for (at, token), n in first])
