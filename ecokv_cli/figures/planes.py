"""Positions in the plane of the first two principal components: all of a head, and what each method keeps of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.lines import Line2D

from ecokv_cli.figures.budgets import at_budget, budgets_of, in_name, labelled
from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import (
    LINE,
    WIDE,
    fold,
    legend_above,
    legend_height,
    letter,
    listed,
    most_lines,
    names,
    panel_grid,
)
from ecokv_cli.figures.profiles import TENSOR_NAMES
from ecokv_cli.figures.roles import MARKS, present_roles
from ecokv_cli.figures.style import FAINT, inches, new_figure
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ecokv_cli.eviction.budget import Budget
    from ecokv_cli.figures.parts import Array
    from ecokv_cli.studies.tables import Value

_MOST_CLOUDS = 9
_EVICTED = "#b9bec4"


@drawn
def pca_scatter(pca: Table, width: str | float = "double", tensor: str = "keys") -> Drawing | None:
    """Draw vectors in the plane of their first two principal components, one panel per layer and KV head.

    At most nine panels are drawn (the first nine); a table without such rows gives None.

    Parameters
    ----------
    pca
        The `pca` table of one sample.
    width
        See `style.inches`.
    tensor
        Which vectors: ``keys``, ``values`` or ``prerope_keys``.
    """
    pca = pca.where(tensor=tensor)
    clouds = list(dict.fromkeys((row["layer"], row["kv_head"]) for row in pca))
    if not clouds:
        return None
    shown = clouds[:_MOST_CLOUDS]
    tables = [pca.where(layer=layer, kv_head=head) for layer, head in shown]
    columns = min(len(shown), 3 if inches(width) >= WIDE else 1 if len(shown) == 1 else 2)
    lines = math.ceil(len(shown) / columns)
    tallest = max(map(_flatness, tables))
    panel = (inches(width) / columns - 0.5) * tallest + (0.65 if len(shown) > 1 else 0.45)
    figure = new_figure(inches(width), lines * panel + 0.2)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for ax, table in zip(panels, tables, strict=False):
        _cloud(ax, table)
    for ax in panels[len(shown) :]:
        ax.set_visible(False)
    if len(shown) > 1:
        letter(panels[: len(shown)], [f"layer {layer}, head {head}" for layer, head in shown])
    present = present_roles(pca)
    legend_above(figure, [MARKS[role].handle for role in present], present)
    stem = "pca_scatter" + ("" if tensor == "keys" else f"_{tensor}")
    data = Table(stem, pca.columns, [row for table in tables for row in table])
    which = listed([f"KV head {head} of layer {layer}" for layer, head in shown])
    noun = TENSOR_NAMES[tensor]
    caption = (
        f"{noun.capitalize()} of sample {listed(names(pca, 'sample'))} projected on their first two principal "
        f"components: {which}. Every mark is one position of the prompt; "
        "axis labels give the share of the variance that each component explains, and both axes have the same scale. "
        f"Marks that lie together are {noun} that are alike; the smaller the explained shares, the more of the "
        "differences this plane cannot show."
    )
    if len(clouds) > len(shown):
        caption += f" {len(clouds) - len(shown)} further chosen heads are not drawn."
    if not all(row["ev2"] for row in data):
        caption += " Where a component explains 0.0 % the vectors vary along fewer directions, and it is drawn as 0."
    return Drawing(stem, f"{noun.capitalize()} in two dimensions", figure, data, caption)


def _flatness(points: Table) -> float:
    """Height over width of a cloud, kept within what looks well."""
    spans = [float(np.ptp(points.numbers(c))) if points.numbers(c) else 0.0 for c in ("pc1", "pc2")]
    return float(np.clip(spans[1] / spans[0], 0.5, 1.0)) if spans[0] > 0 else 0.5


def _cloud(ax: Axes, points: Table) -> None:
    _cross(ax)
    crowd = _crowd(points)
    for order, (role, mark) in enumerate(MARKS.items()):
        at = _coordinates(points.where(role=role))
        sizes = {"s": mark.size**2 * crowd, "linewidth": mark.line * crowd}
        looks = {"marker": mark.marker, "facecolor": mark.face, "edgecolor": mark.edge}
        ax.scatter(at[:, 0], at[:, 1], rasterized=True, zorder=1 + order, **sizes, **looks)  # type: ignore[arg-type]
    ax.set(xlabel=_component(1, points), ylabel=_component(2, points))
    ax.set_aspect("equal", adjustable="datalim")


def kept_in_planes(plane: Table, positions: Table, width: str | float = "double") -> list[Drawing | None]:
    """`kept_in_plane` for every budget."""
    return [kept_in_plane(plane, positions, budget=budget, width=width) for budget in budgets_of(positions)]


@drawn
def kept_in_plane(plane: Table, positions: Table, *, budget: Budget, width: str | float = "double") -> Drawing | None:
    """Draw which keys of one head every method keeps, in the plane of the full cache, on the same axes.

    Parameters
    ----------
    plane
        The `plane` table of one sample: coordinates of every position, fitted once on the full cache.
    positions
        The `positions` table of the same sample; its rows of the head that `plane` is about tell what is kept.
    budget
        Which budget to draw.
    width
        See `style.inches`.

    Returns
    -------
    Drawing or None
        None when nothing is there to draw.
    """
    if not plane.rows:
        return None
    layer, head = plane.rows[0]["layer"], plane.rows[0]["kv_head"]
    here = positions.where(budget=budget, layer=layer, kv_head=head)
    methods = [method for method in names(here, "method") if method != "full"]
    if not methods:
        return None
    columns = min(len(methods), 4 if inches(width) >= WIDE else 2)
    # Methods fill whole rows where they can: 6 stand as 3 + 3 rather than as 4 + 2.
    columns = math.ceil(len(methods) / math.ceil(len(methods) / columns))
    across = (inches(width) - 0.45) / columns
    titles = [fold(method, across - 0.1) for method in methods]
    panel = across * _flatness(plane) + 0.26 + LINE * (most_lines(titles) - 1)
    extra = legend_height(inches(width), ["x" * 14] * 4) + 0.25
    figure, axes = panel_grid(inches(width), len(methods), columns, panel, extra=extra, share="xy")
    data = Table("kept_in_plane", ("method", "position", "role", "pc1", "pc2", "kept"))
    limits = _limits(plane)
    for ax, method, title in zip(axes, methods, titles, strict=True):
        kept = {row["position"] for row in here.where(method=method) if row["kept"]}
        _kept_cloud(ax, plane, kept)
        ax.set(xlim=limits[0], ylim=limits[1])
        ax.set_aspect("equal")
        ax.set_title(title)
        for row in plane:
            data.add(method=method, kept=row["position"] in kept, **{c: row[c] for c in data.columns[1:5]})
    figure.supxlabel(_component(1, plane), fontsize="medium")
    figure.supylabel(_component(2, plane), fontsize="medium")
    present = present_roles(plane)
    evicted = Line2D([], [], linestyle="", marker="o", markersize=2.4, color=_EVICTED, markeredgewidth=0)
    labels = [*(f"kept {role}" for role in present), "evicted"]
    legend_above(figure, [*(MARKS[role].handle for role in present), evicted], labels)
    caption = (
        f"Keys that each method keeps {at_budget(budget)} in KV head {head} of layer {layer}, sample "
        f"{plane.rows[0]['sample']}, on the first two principal components of all keys. The plane is fitted once on "
        "the full cache, so all panels have the same axes; axis labels give the share of the variance each component "
        "explains. Grey dots are evicted. A method that keeps marks all over the cloud keeps diverse keys; one whose "
        "marks crowd together keeps keys that are alike, and leaves parts of the cloud without any."
    )
    title = f"Kept keys in two dimensions, {labelled(budget)}"
    return Drawing(f"kept_in_plane_{in_name(budget)}", title, figure, data, caption)


def _limits(plane: Table) -> Array:
    """The range of both components, ``[2, 2]``, with some room; no flatter than `_flatness` allows."""
    at = _coordinates(plane)
    middle, half = (at.max(0) + at.min(0)) / 2, 0.54 * np.ptp(at, axis=0)
    half = np.maximum(half, [half[1], 0.5 * half[0]])
    half = np.where(half > 0, half, 1.0)
    return np.stack([middle - half, middle + half], axis=1)


def _kept_cloud(ax: Axes, plane: Table, kept: set[Value]) -> None:
    _cross(ax)
    crowd = _crowd(plane)
    gone = _coordinates(Table(plane.name, plane.columns, [row for row in plane if row["position"] not in kept]))
    ax.scatter(gone[:, 0], gone[:, 1], s=3.2 * crowd, color=_EVICTED, linewidth=0, rasterized=True, zorder=1)
    for order, (role, mark) in enumerate(MARKS.items()):
        rows = [row for row in plane.where(role=role) if row["position"] in kept]
        at = _coordinates(Table(plane.name, plane.columns, rows))
        looks = {"marker": mark.marker, "facecolor": mark.face, "edgecolor": mark.edge, "linewidth": 1.4 * mark.line}
        size = 0.8 * mark.size**2
        ax.scatter(at[:, 0], at[:, 1], s=size, rasterized=True, zorder=2 + order, **looks)  # type: ignore[arg-type]


def _cross(ax: Axes) -> None:
    ax.axhline(0, color=FAINT, linewidth=0.5, zorder=0)
    ax.axvline(0, color=FAINT, linewidth=0.5, zorder=0)


def _crowd(points: Table) -> float:
    """Smaller marks where there are many."""
    return float(np.clip(math.sqrt(400 / len(points)), 0.25, 1))


def _coordinates(points: Table) -> Array:
    """``[N, 2]``; an undefined coordinate counts as 0."""
    numbers = [[float(cast("float", row[c] or 0)) for c in ("pc1", "pc2")] for row in points]
    return np.array(numbers, dtype=np.float64).reshape(-1, 2)


def _component(number: int, points: Table) -> str:
    ratio = points.rows[0][f"ev{number}"]
    share = "undefined" if ratio is None else f"{100 * float(cast('float', ratio)):.1f} %"
    return f"PC {number} ({share})"
