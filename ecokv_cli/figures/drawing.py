"""A finished figure with its name, its numbers and the words that explain it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ecokv_cli.figures.style import FORMATS, freeze, look, save

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from ecokv_cli.studies.tables import Table

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result", bound="Drawing | None")


@dataclass(frozen=True)
class Drawing:
    """A figure ready to be saved or shown.

    Attributes
    ----------
    stem
        File name without its ending.
    title
        A few words for the heading above the figure; never drawn into it.
    figure
        The figure, laid out at its final size.
    data
        The numbers that are drawn.
    caption
        How to read it: what the axes are, what high and low mean, caveats.
    name
        Its name in the list of figures; several drawings, of single samples or budgets, may share one.
    """

    stem: str
    title: str
    figure: Figure
    data: Table
    caption: str
    name: str = ""

    def save(self, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
        """Write the figure and its data CSV into `folder`; see `style.save`."""
        return save(self.figure, folder, self.stem, formats, self.data)


def drawn(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Run a function that draws under ecokv's look and lay its figure out."""

    @wraps(function)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with look():
            drawing = function(*args, **kwargs)
            if drawing is not None:
                freeze(drawing.figure)
        return drawing

    return wrapper
