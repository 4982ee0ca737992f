"""Which prompt positions are image tokens, and where in the image they look.

An adapter is one function in `ADAPTERS`, keyed by ``config.model_type``: given a `Scene` it returns the pieces of
its images in order. Without one, or where its pieces do not add up, the tokens of an image are one single row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ecokv_cli.dump.schema import ImageGrid, Tokens
from ecokv_cli.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ecokv_cli.models.loading import LoadedModel

WHOLE = (0.0, 0.0, 1.0, 1.0)

Piece = tuple[int, int, int, tuple[float, float, float, float], int]
"""Image number, rows, columns, covered part of the image, extra tokens per row."""


@dataclass(frozen=True)
class Scene:
    """What an adapter may look at: configuration, processor and its output, image sizes, image tokens in all."""

    config: Any
    processor: Any
    inputs: dict[str, Any]
    sizes: Sequence[tuple[int, int]]
    tokens: int


def describe_tokens(
    loaded: LoadedModel, inputs: dict[str, Any], sizes: Sequence[tuple[int, int]]
) -> tuple[Tokens, tuple[ImageGrid, ...]]:
    """Roles of all positions and the image grids.

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
        If the number of image runs does not fit the number of images.
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
    scene = Scene(loaded.model.config, loaded.processor, inputs, sizes, len(positions))
    grids = _grids(scene, positions) if positions else ()
    image: list[int | None] = [None] * len(ids)
    row: list[int | None] = [None] * len(ids)
    col: list[int | None] = [None] * len(ids)
    for grid in grids:
        for r in range(grid.rows):
            start = grid.start + r * (grid.cols + grid.extra)
            for c in range(grid.cols + grid.extra):
                image[start + c] = grid.image
                if c < grid.cols:
                    row[start + c], col[start + c] = r, c
    strings = tuple(loaded.tokenizer.convert_ids_to_tokens(ids))
    return Tokens(tuple(ids), strings, tuple(roles), tuple(image), tuple(row), tuple(col)), grids


def _grids(scene: Scene, positions: list[int]) -> tuple[ImageGrid, ...]:
    pieces = ADAPTERS.get(scene.config.model_type, _single_row)(scene)
    if sum(rows * (cols + extra) for _, rows, cols, _, extra in pieces) != scene.tokens:
        pieces = _single_row(scene)
    grids, used = [], 0
    for image, rows, cols, box, extra in pieces:
        grids.append(ImageGrid(image, positions[used], rows, cols, box, extra))
        used += rows * (cols + extra)
    return tuple(grids)


def _single_row(scene: Scene) -> list[Piece]:
    images = len(scene.sizes)
    share, rest = divmod(scene.tokens, images)
    return [(i, 1, share + (rest if i == images - 1 else 0), WHOLE, 0) for i in range(images)]


def _qwen_vl(scene: Scene) -> list[Piece]:
    merge = scene.config.vision_config.spatial_merge_size
    grid = scene.inputs["image_grid_thw"].tolist()
    return [(i, t * h // merge, w // merge, WHOLE, 0) for i, (t, h, w) in enumerate(grid)]


def _llava(scene: Scene) -> list[Piece]:
    """A square grid, over the central square of the image where the processor crops."""
    vision = scene.config.vision_config
    side = vision.image_size // vision.patch_size
    cropped = getattr(getattr(scene.processor, "image_processor", None), "do_center_crop", False)
    pieces: list[Piece] = []
    for i, (width, height) in enumerate(scene.sizes):
        short = min(width, height)
        x, y = ((1 - short / width) / 2, (1 - short / height) / 2) if cropped else (0.0, 0.0)
        pieces.append((i, side, side, (x, y, 1 - x, 1 - y), 0))
    return pieces


def _llava_next(scene: Scene) -> list[Piece]:
    """A square base view, then the whole image at higher resolution with a newline token after each row."""
    import torch
    from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape, unpad_image

    vision = scene.config.vision_config
    side = vision.image_size // vision.patch_size
    pieces: list[Piece] = []
    for i, size in enumerate(scene.inputs["image_sizes"].tolist()):
        pieces.append((i, side, side, WHOLE, 0))
        tiles = get_anyres_image_grid_shape(size, scene.config.image_grid_pinpoints, vision.image_size)
        padded = torch.empty(1, tiles[0] * side, tiles[1] * side)
        _, rows, cols = unpad_image(padded, size).shape
        pieces.append((i, rows, cols, WHOLE, 1))
    return pieces


ADAPTERS: dict[str, Callable[[Scene], list[Piece]]] = {
    "qwen2_vl": _qwen_vl,
    "qwen2_5_vl": _qwen_vl,
    "qwen3_vl": _qwen_vl,
    "llava": _llava,
    "llava_next": _llava_next,
}
