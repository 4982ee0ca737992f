"""The calibration error of every method in every layer, with the chosen route marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import Normalize

from ecokv_cli.figures.budgets import at_budget, budgets_of, in_name, labelled
from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import LINE, breadth, fold, heat_map, label_layers, most_lines, names, ordered, whole
from ecokv_cli.figures.rows import NAMES
from ecokv_cli.figures.style import inches, new_figure

if TYPE_CHECKING:
    from ecokv_cli.studies.tables import Table


@drawn
def route_profile(profile: Table, width: str | float = "double") -> Drawing:
    """Draw methods by layers, coloured by error, with a mark on the method chosen for each layer.

    Parameters
    ----------
    profile
        The `profile` table of one budget.
    width
        See `style.inches`.
    """
    layers, methods = ordered(profile, "layer"), names(profile, "method")
    cells = np.full((len(methods), len(layers)), np.nan)
    for row in profile:
        cells[methods.index(str(row["method"])), layers.index(whole(row["layer"]))] = float(str(row["error"]))
    folded = [fold(method, NAMES * inches(width)) for method in methods]
    figure = new_figure(inches(width), 0.9 + (0.075 + LINE * most_lines(folded)) * len(methods))
    axes = figure.subplots()
    mesh = heat_map(axes, cells, Normalize(float(np.nanmin(cells)), float(np.nanmax(cells))), "viridis")
    chosen = [(layers.index(whole(r["layer"])), methods.index(str(r["method"]))) for r in profile if r["chosen"]]
    for size, colour in ((4.5, "black"), (2.5, "white")):
        axes.plot(*zip(*chosen, strict=True), linestyle="none", marker="o", markersize=size, color=colour)
    axes.set_yticks(range(len(methods)), folded)
    room = (inches(width) - max(map(breadth, folded)) - 0.75) / 0.15
    label_layers(axes.xaxis, layers, min(int(room), 12))
    axes.set_xlabel("layer")
    figure.colorbar(mesh, ax=axes, label="output error", pad=0.01)
    (budget,) = budgets_of(profile)
    caption = (
        f"Relative output error on held-out queries of every candidate method in every layer {at_budget(budget)}, mean "
        f"over {profile.rows[0]['samples']} calibration samples and all KV heads; darker is better. The "
        "dot marks the method the route takes in that layer. Every layer is judged with the full cache upstream."
    )
    return Drawing(
        f"route_profile_{in_name(budget)}", f"Method by layer at {labelled(budget)}", figure, profile, caption
    )
