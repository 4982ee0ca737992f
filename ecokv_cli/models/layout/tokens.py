"""Roles of all positions, and the grid of every image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ecokv_cli.dump.schema import ImageGrid, Tokens
from ecokv_cli.errors import ModelError
from ecokv_cli.models.layout.adapters import ADAPTERS
from ecokv_cli.models.layout.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ecokv_cli.models.layout.scene import Piece
    from ecokv_cli.models.loading import LoadedModel


def describe_tokens(
    loaded: LoadedModel, inputs: dict[str, Any], sizes: Sequence[tuple[int, int]]
) -> tuple[Tokens, tuple[ImageGrid, ...]]:
    """Roles of all positions and the image grids.

    Where no adapter knows the model, or what it says does not add up to the image tokens there are, no grid is
    given: the tokens then have no row and no column.

    Parameters
    ----------
    loaded
        The model.
    inputs
        Processor output.
    sizes
        (width, height) of each image.

    Raises
    ------
    ModelError
        If there are images and no image tokens, or the other way round.
    """
    ids = inputs["input_ids"][0].tolist()
    placeholder = loaded.image_token_id
    positions = [i for i, token in enumerate(ids) if token == placeholder]
    if bool(positions) != bool(sizes):
        raise ModelError(
            f"{loaded.info.id}: {len(sizes)} images gave {len(positions)} image tokens; "
            f"its chat template or processor does not place images"
        )
    special = set(loaded.tokenizer.all_special_ids)
    special |= {i for i, token in loaded.tokenizer.added_tokens_decoder.items() if token.special}
    roles = ["image" if t == placeholder else "special" if t in special else "text" for t in ids]
    strings = tuple(loaded.tokenizer.convert_ids_to_tokens(ids))
    scene = Scene(loaded.model.config, loaded.processor, inputs, sizes, strings, positions)
    image: list[int | None] = [None] * len(ids)
    row: list[int | None] = [None] * len(ids)
    col: list[int | None] = [None] * len(ids)
    pieces = _pieces(scene) if positions else []
    owners = [piece.image for piece in pieces for _ in range(piece.tokens)] or _owners(scene)
    for position, owner in zip(positions, owners, strict=True):
        image[position] = owner
    grids = _grids(pieces, positions)
    for grid in grids:
        for r in range(grid.rows):
            for c in range(grid.cols):
                position = grid.start + r * (grid.cols + grid.extra) + c
                row[position], col[position] = r, c
    return Tokens(tuple(ids), strings, tuple(roles), tuple(image), tuple(row), tuple(col)), grids


def _pieces(scene: Scene) -> list[Piece]:
    """What the model's adapter says, or nothing where it does not add up."""
    adapter = ADAPTERS.get(scene.config.model_type)
    pieces = adapter(scene) if adapter else []
    return pieces if sum(piece.tokens for piece in pieces) == len(scene.positions) else []


def _owners(scene: Scene) -> list[int | None]:
    """Image number of each image token without knowing the grid: every run is an image, if their numbers agree."""
    starts = set(scene.runs)
    if len(scene.sizes) != 1 and len(starts) != len(scene.sizes):
        return [None] * len(scene.positions)
    owners: list[int | None] = []
    number = -1
    for position in scene.positions:
        number += position in starts
        owners.append(number if len(scene.sizes) != 1 else 0)
    return owners


def _grids(pieces: list[Piece], positions: list[int]) -> tuple[ImageGrid, ...]:
    grids, used = [], 0
    for piece in pieces:
        if piece.cols:
            grids.append(ImageGrid(piece.image, positions[used], piece.rows, piece.cols, piece.box, piece.extra))
        used += piece.tokens
    return tuple(grids)
