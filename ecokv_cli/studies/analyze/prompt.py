"""The positions of one sample, in the groups that tables tell apart: roles and regions of images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ecokv_cli.dump.schema import ImageGrid, Manifest

SPLIT = 3
"""Regions along each side of an image."""


@dataclass(frozen=True, order=True)
class Region:
    """Part of an image: row 0 is the top, column 0 the left."""

    image: int
    row: int
    col: int


@dataclass(frozen=True)
class Prompt:
    """The manifest of a sample and groups of its positions, found once for all layers."""

    manifest: Manifest

    @cached_property
    def roles(self) -> dict[str, torch.Tensor]:
        """Members ``[N]`` (boolean) of each role that occurs."""
        tokens = self.manifest.tokens
        return {name: torch.tensor([role == name for role in tokens.roles]) for name in tokens.by_role()}

    @cached_property
    def regions(self) -> dict[Region, torch.Tensor]:
        """Members ``[N]`` (boolean) of each part of an image that holds tokens, over all grids of the image.

        Cells on padding, outside the image, are in none.
        """
        found: dict[Region, list[int]] = {}
        for grid in self.manifest.grids:
            for row in range(grid.rows):
                start = grid.start + row * (grid.cols + grid.extra)
                for col in range(grid.cols):
                    region = _region(grid, row, col)
                    if region is not None:
                        found.setdefault(region, []).append(start + col)
        members = torch.zeros(len(found), len(self.manifest.tokens.ids), dtype=torch.bool)
        for inside, positions in zip(members, found.values(), strict=True):
            inside[positions] = True
        return dict(sorted(zip(found, members, strict=True)))


def _region(grid: ImageGrid, row: int, col: int) -> Region | None:
    """The part that the centre of a cell lies in; None outside the image."""
    x0, y0, x1, y1 = grid.box
    x, y = x0 + (x1 - x0) * (col + 0.5) / grid.cols, y0 + (y1 - y0) * (row + 0.5) / grid.rows
    return Region(grid.image, int(SPLIT * y), int(SPLIT * x)) if 0 <= x < 1 and 0 <= y < 1 else None
