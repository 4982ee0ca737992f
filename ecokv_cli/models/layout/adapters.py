"""Where the image tokens of each architecture look: one small function per way of placing them.

An adapter is given a `Scene` and returns the pieces of its images in the order of the prompt. It is registered in
`ADAPTERS` under the ``config.model_type`` of the models it is for. Nothing else has to know an architecture.
"""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING, Any

from ecokv_cli.models.layout.scene import WHOLE, Box, Piece

if TYPE_CHECKING:
    from collections.abc import Callable

    from ecokv_cli.models.layout.scene import Scene


def _patches(scene: Scene) -> int:
    """Patches along the side of what the vision tower is given."""
    vision = scene.config.vision_config
    return int(vision.image_size // vision.patch_size)


def _qwen_vl(scene: Scene) -> list[Piece]:
    """The whole image at its own size; `merge` x `merge` patches are one token."""
    merge = scene.config.vision_config.spatial_merge_size
    grid = scene.inputs["image_grid_thw"].tolist()
    return [Piece(i, t * h // merge, w // merge) for i, (t, h, w) in enumerate(grid)]


def _llava(scene: Scene) -> list[Piece]:
    """A square grid: over the central square where the processor crops, over a larger one where it pads."""
    side = _patches(scene)
    crops, pads = (getattr(scene.images, name, False) for name in ("do_center_crop", "do_pad"))
    boxes = [_square(size, max if pads else min) if crops or pads else WHOLE for size in scene.sizes]
    return [Piece(i, side, side, box) for i, box in enumerate(boxes)]


def _square(size: tuple[int, int], side: Callable[[tuple[int, int]], int]) -> Box:
    """The square of the shorter or longer side, in the middle of an image."""
    x, y = ((1 - side(size) / length) / 2 for length in size)
    return x, y, 1 - x, 1 - y


def _gemma3(scene: Scene) -> list[Piece]:
    """The whole image squeezed into a square whose patches are pooled."""
    side = math.isqrt(scene.config.mm_tokens_per_image)
    return [Piece(i, side, side) for i in range(len(scene.sizes))]


def _llava_next(scene: Scene) -> list[Piece]:
    """A square base view of the whole image, then the whole image again with a newline token after each row."""
    sizes = scene.inputs["image_sizes"].tolist()
    return [piece for i, size in enumerate(sizes) for piece in _views(scene, i, size, math.inf)]


def _llava_onevision(scene: Scene) -> list[Piece]:
    """As LLaVA-NeXT, scaled down to a maximum; of images given as a group the padded base view alone, and a newline."""
    most, side = float(scene.config.vision_aspect_ratio.removeprefix("anyres_max_")), _patches(scene)
    grouped = bool((scene.inputs["batch_num_images"] > 1).any())
    pieces: list[Piece] = []
    for i, size in enumerate(scene.inputs["image_sizes"].tolist()):
        padded = [Piece(i, side, side, _square(scene.sizes[i], max)), Piece(i, 1, 0, extra=1)]
        pieces += padded if grouped else _views(scene, i, size, most)
    return pieces


def _views(scene: Scene, image: int, size: list[int], most: float) -> list[Piece]:
    """Base view and rows with newlines, of at most about `most` times as many cells as the base view."""
    import torch
    from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape, unpad_image

    side = _patches(scene)
    down, across = get_anyres_image_grid_shape(
        size, scene.config.image_grid_pinpoints, scene.config.vision_config.image_size
    )
    _, rows, cols = unpad_image(torch.empty(1, down * side, across * side), size).shape
    ratio = math.sqrt(rows * cols / (most * side**2))
    if ratio > 1.1:  # the model's own tolerance
        rows, cols = int(rows // ratio), int(cols // ratio)
    return [Piece(image, side, side), Piece(image, rows, cols, extra=1)]


def _internvl(scene: Scene) -> list[Piece]:
    """Square tiles over the whole image, then all of it once more if there are several."""
    side, images = math.isqrt(scene.config.image_seq_length), scene.images
    canvas: Any = vars(sys.modules[type(images).__module__])["get_optimal_tiled_canvas"]
    tile = (images.size["height"], images.size["width"])
    pieces = []
    for i, (width, height) in enumerate(scene.sizes):
        across, down = canvas((height, width), tile, images.min_patches, images.max_patches)
        pieces += _tiles(i, down, across, side)
    whole = [Piece(i, side, side) for i in range(len(scene.sizes))]
    # Cropping into tiles can be on by the processor's defaults or the image processor's, so the count decides.
    return whole if len(scene.positions) == sum(piece.tokens for piece in whole) else pieces


def _idefics3(scene: Scene) -> list[Piece]:
    """Square tiles, each after a token that says which one it is, then the whole image."""
    runs = scene.runs
    side = math.isqrt(len(scene.positions) // len(runs))
    pieces: list[Piece] = []
    down = across = image = 0
    for start in runs:
        tag = re.fullmatch(r"<row_(\d+)_col_(\d+)>", scene.strings[start - 1])
        if tag:
            down, across = int(tag[1]), int(tag[2])
            continue
        pieces += _tiles(image, max(down, 1), max(across, 1), side)
        down, across, image = 0, 0, image + 1
    return pieces


def _tiles(image: int, down: int, across: int, side: int) -> list[Piece]:
    """`down` x `across` tiles of `side` x `side` cells in raster order, and the whole image where that is not one."""
    if down * across == 1:
        return [Piece(image, side, side)]
    boxes = [(c / across, r / down, (c + 1) / across, (r + 1) / down) for r in range(down) for c in range(across)]
    return [Piece(image, side, side, box) for box in (*boxes, WHOLE)]


ADAPTERS: dict[str, Callable[[Scene], list[Piece]]] = {
    "gemma3": _gemma3,
    "idefics3": _idefics3,
    "internvl": _internvl,
    "llava": _llava,
    "llava_next": _llava_next,
    "llava_onevision": _llava_onevision,
    "paligemma": _llava,
    "qwen2_5_vl": _qwen_vl,
    "qwen2_vl": _qwen_vl,
    "qwen3_vl": _qwen_vl,
    "smolvlm": _idefics3,
}
