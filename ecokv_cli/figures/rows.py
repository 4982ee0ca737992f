"""Rows of a chart that have long names: names are folded, and each row is as tall as its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ecokv_cli.figures.parts import LINE, fold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

NAMES = 0.41
"""Share of a figure's width that the names of rows may take."""

_ROW = 0.17
"""Inches of a row whose name takes one line."""


@dataclass(frozen=True)
class Rows:
    """Where rows stand, from the first at the top.

    Attributes
    ----------
    names
        What each is called, folded.
    places
        The middle of each; one of a single line takes 1, and the first of all such rows stands at 0.
    span
        What all take together.
    """

    names: tuple[str, ...]
    places: tuple[float, ...]
    span: float

    @classmethod
    def of(cls, names: Sequence[str], width: float) -> Rows:
        """The rows of these names in a figure that is `width` inches wide; an empty name is a free row."""
        folded = tuple(fold(name, NAMES * width) for name in names)
        sizes = np.array([1 + LINE / _ROW * name.count("\n") for name in folded])
        places = np.cumsum(sizes) - sizes / 2 - 0.5
        return cls(folded, tuple(places.tolist()), float(sizes.sum()))

    @property
    def height(self) -> float:
        """Inches that all rows take."""
        return _ROW * self.span

    def label(self, ax: Axes) -> None:
        """Give the y axis the range of the rows, and their names; free rows have no tick."""
        named = [i for i, name in enumerate(self.names) if name]
        ax.set_ylim(self.span - 0.5, -0.5)
        ax.set_yticks([self.places[i] for i in named], [self.names[i] for i in named])
        ax.tick_params(axis="y", length=0)
