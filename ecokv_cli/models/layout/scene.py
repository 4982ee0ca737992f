"""What an adapter is given, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

Box = tuple[float, float, float, float]
WHOLE: Box = (0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True)
class Scene:
    """What an adapter may look at.

    Attributes
    ----------
    config, processor
        Of the model.
    inputs
        What the processor returned.
    sizes
        (width, height) of each image in pixels, as the processor was given it.
    strings
        The prompt's tokens.
    positions
        Which of them are image tokens.
    """

    config: Any
    processor: Any
    inputs: dict[str, Any]
    sizes: Sequence[tuple[int, int]]
    strings: Sequence[str]
    positions: Sequence[int]

    @property
    def runs(self) -> list[int]:
        """First positions of unbroken runs of image tokens."""
        inside = set(self.positions)
        return [position for position in self.positions if position - 1 not in inside]

    @property
    def images(self) -> Any:
        """The image processor; None if there is none."""
        return getattr(self.processor, "image_processor", None)


@dataclass(frozen=True)
class Piece:
    """Consecutive image tokens: `rows` x `cols` cells in raster order, each row followed by `extra` tokens without one.

    `box` is the part of image number `image` that the cells cover, as fractions (x0, y0, x1, y1); it reaches beyond
    0 to 1 where the image was padded.
    """

    image: int
    rows: int
    cols: int
    box: Box = WHOLE
    extra: int = 0

    @property
    def tokens(self) -> int:
        """How many tokens it has."""
        return self.rows * (self.cols + self.extra)
