"""Rendered form pages with known answers: the shipped model's training data and document-QA task.

A page is a greyscale form of one or two columns. Every line of a column holds a key word and a
number of three to five digits. Pages vary in size, tab stop, margin, blank lines, contrast, noise
and per-field jitter, and are a pure function of ``(seed, lines, columns)``. Training, validation and
held-out pages use disjoint seed ranges (`TRAIN_SEEDS`, `VALIDATION_SEEDS`, `HELD_OUT_SEEDS`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from collections.abc import Iterator

TILE = 28
"""Pixels covered by one image token of the shipped model, and the height of one line."""

CELL = 14
"""Width of one character cell in pixels: two characters to a tile."""

WORDS = (
    "total date city name tax price order item street phone account balance amount invoice code due "
    "paid rate unit weight height width size color model serial batch lot room floor gate seat "
    "flight train bus hotel guest staff shift hours salary bonus loan fee fine score level grade "
    "page line book chapter year month week day age post area zone route stop meter volume"
).split()
"""The key words a page can show; unique on each page."""

ALPHABET = " abcdefghijklmnopqrstuvwxyz0123456789"

TRAIN_SEEDS = range(1 << 40)
VALIDATION_SEEDS = range(1 << 40, (1 << 40) + (1 << 20))
HELD_OUT_SEEDS = range(1 << 41, (1 << 41) + (1 << 20))

_VALUE_TILES = 3
_JITTER = 3

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Field:
    """One key and its value, with pixel boxes ``(x0, y0, x1, y1)``, right and bottom exclusive."""

    key: str
    value: str
    key_box: Box
    value_box: Box


@dataclass(frozen=True)
class Layout:
    """The geometry shared by all pages of one size: everything that decides the pixel grid."""

    lines: int
    columns: int
    margin: int
    tab: int

    @property
    def pitch(self) -> int:
        """Tiles from the start of one column to the start of the next."""
        return self.tab + _VALUE_TILES + 1

    @property
    def tiles(self) -> tuple[int, int]:
        """Height and width of the page in tiles."""
        return self.lines, self.margin + self.columns * self.pitch - 1 + self.margin


@dataclass(frozen=True)
class Document:
    """A page, its fields in reading order and the layout that placed them."""

    seed: int
    layout: Layout
    pixels: np.ndarray
    fields: tuple[Field, ...]

    @property
    def image(self) -> Image.Image:
        """The page as a greyscale PIL image."""
        return Image.fromarray(self.pixels, mode="L")

    @property
    def image_tokens(self) -> int:
        """How many image tokens the shipped model gives the page."""
        height, width = self.layout.tiles
        return height * width


def choose_layout(seed: int, lines: int, columns: int) -> Layout:
    """Draw margin and tab stop for a page of `lines` x `columns` fields."""
    rng = np.random.default_rng((seed, 1))
    return Layout(lines, columns, margin=int(rng.integers(0, 2)), tab=int(rng.integers(4, 6)))


def render(seed: int, lines: int, columns: int, layout: Layout | None = None) -> Document:
    """Render the page that belongs to `seed`.

    Parameters
    ----------
    seed
        Any non-negative integer; the same arguments give the same pixels.
    lines
        Text lines of the page, 1 or more; about one in ten is left blank.
    columns
        1 or 2 columns of fields; ``lines * columns`` may not exceed the number of `WORDS`.
    layout
        Overrides the drawn margin and tab stop (training renders equal-sized batches).

    Returns
    -------
    Document
        Pixels ``uint8 [28 * lines, width]`` and the ground truth.
    """
    if columns not in (1, 2) or lines < 1 or lines * columns > len(WORDS):
        raise ValueError(f"a page has 1 or 2 columns and at most {len(WORDS)} fields, not {lines} x {columns}")
    layout = layout or choose_layout(seed, lines, columns)
    rng = np.random.default_rng((seed, 2))
    height, width = layout.tiles
    ink = np.zeros((height * TILE, width * TILE), dtype=np.float32)
    keys = iter(rng.permutation(len(WORDS)))
    blank = rng.random((lines, columns)) < 0.1
    blank[rng.integers(lines), rng.integers(columns)] = False
    fields = []
    for line, column in np.argwhere(~blank).tolist():
        key = WORDS[next(keys)]
        digits = int(rng.integers(3, 6))
        value = "".join(str(d) for d in rng.integers(0, 10, digits))
        left = layout.margin + column * layout.pitch
        key_box = _stamp(ink, key, left * TILE, line * TILE, rng)
        value_box = _stamp(ink, value, (left + layout.tab) * TILE, line * TILE, rng)
        fields.append(Field(key, value, key_box, value_box))
    paper, dark, noise = rng.uniform(200, 255), rng.uniform(0, 110), rng.uniform(0, 14)
    pixels = paper + (dark - paper) * ink
    pixels += noise * rng.standard_normal(ink.shape, dtype=np.float32)
    return Document(seed, layout, np.clip(np.rint(pixels), 0, 255).astype(np.uint8), tuple(fields))


def _stamp(ink: np.ndarray, text: str, x: int, y: int, rng: np.random.Generator) -> Box:
    """Draw `text` near ``(x, y)`` and return its pixel box."""
    dx, dy = rng.integers(-_JITTER, _JITTER + 1, 2)
    x = int(np.clip(x + dx, 0, ink.shape[1] - CELL * len(text)))
    y = int(np.clip(y + dy, 0, ink.shape[0] - TILE))
    for i, character in enumerate(text):
        target = ink[y : y + TILE, x + i * CELL : x + (i + 1) * CELL]
        np.maximum(target, _glyphs()[character], out=target)
    return x, y, x + CELL * len(text), y + TILE


@lru_cache(maxsize=1)
def _glyphs() -> dict[str, np.ndarray]:
    """Coverage masks in [0, 1], one character cell each, from Pillow's built-in font."""
    font = ImageFont.load_default(size=21)
    masks = {}
    for character in ALPHABET:
        cell = Image.new("L", (CELL, TILE), 0)
        ImageDraw.Draw(cell).text((CELL / 2, TILE - 7), character, fill=255, font=font, anchor="ms")
        masks[character] = np.asarray(cell, dtype=np.float32) / 255
    return masks


def held_out(count: int, seeds: range = HELD_OUT_SEEDS, smallest: int = 64) -> Iterator[tuple[Document, Field]]:
    """Yield `count` held-out (page, question) pairs spread evenly over `smallest` (64 or more) to 384 image tokens.

    The i-th pair aims at the i-th of `count` evenly spaced sizes; one and two columns alternate where
    both can reach the size. Seeds lie in `HELD_OUT_SEEDS` and are never trained on.
    """
    for i in range(count):
        seed = seeds[i]
        target = smallest + (384 - smallest) * i / max(count - 1, 1)
        columns = 2 if target > 200 else 1 + i % 2
        width = choose_layout(seed, 1, columns).tiles[1]
        lines = min(max(round(target / width), -(-64 // width)), 384 // width)
        document = render(seed, lines, columns)
        field = document.fields[int(np.random.default_rng((seed, 3)).integers(len(document.fields)))]
        yield document, field
