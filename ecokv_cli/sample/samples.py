"""A sample: images, a prompt, and what is known about the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Box:
    """Where a piece of text stands on an image.

    Attributes
    ----------
    text
        The text, or the name of what is there.
    box
        ``(x0, y0, x1, y1)`` in pixels of the upright original image, right and bottom exclusive.
    image
        Which image of the sample, from 0.
    """

    text: str
    box: tuple[float, float, float, float]
    image: int = 0


@dataclass(frozen=True)
class Sample:
    """What one dump is made from.

    Attributes
    ----------
    id
        Name of the sample and of its folder.
    images
        Paths in order, or the string ``-`` for standard input; empty for text only.
    prompt
        The question.
    answers
        The accepted answers; empty where none is known.
    boxes
        Places on the images worth knowing; empty where none is known.
    """

    id: str
    images: tuple[str | Path, ...]
    prompt: str
    answers: tuple[str, ...] = ()
    boxes: tuple[Box, ...] = ()
