"""What must hold in a manifest beyond the kinds of its fields, so that nobody who reads it has to check again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ecokv_cli.dump.schema import Manifest

ROLES = ("text", "image", "special")


def first_fault(manifest: Manifest) -> str:
    """The first thing that does not add up, naming the field; empty if all does."""
    return next(_faults(manifest), "")


def _faults(manifest: Manifest) -> Iterator[str]:
    yield from _shape_faults(manifest)
    yield from _token_faults(manifest)
    yield from _image_faults(manifest)
    yield from _place_faults(manifest)
    yield from _layer_faults(manifest)


def _shape_faults(manifest: Manifest) -> Iterator[str]:
    model = manifest.model
    for name in ("layers", "query_heads", "kv_heads", "head_dim"):
        if getattr(model, name) < 1:
            yield f"model.{name} is {getattr(model, name)}, expected 1 or more"
    if model.query_heads % model.kv_heads:
        yield f"model.query_heads is {model.query_heads}, expected a multiple of {model.kv_heads} KV heads"
    if not 0 <= manifest.window <= len(manifest.tokens.ids):
        yield f"window is {manifest.window}, expected 0 to {len(manifest.tokens.ids)}"
    if len(manifest.decoded.strings) != len(manifest.decoded.ids):
        yield f"decoded.strings has {len(manifest.decoded.strings)} entries, expected {len(manifest.decoded.ids)}"
    if manifest.decoded.fed_back < 0:
        yield "decoded.ended is true, expected at least one decoded token then"


def _token_faults(manifest: Manifest) -> Iterator[str]:
    positions, images = len(manifest.tokens.ids), len(manifest.images)
    columns = vars(manifest.tokens) | {f"position_ids[{i}]": axis for i, axis in enumerate(manifest.position_ids)}
    for name, column in columns.items():
        if len(column) != positions:
            yield f"{name} has {len(column)} entries, expected {positions}"
    for position, role in enumerate(manifest.tokens.roles):
        if role not in ROLES:
            yield f"tokens.roles[{position}] is {role!r}, expected {', '.join(ROLES)}"
    for position, image in enumerate(manifest.tokens.image):
        if image is not None and not 0 <= image < images:
            yield f"tokens.image[{position}] is {image}, there are {images} images"


def _image_faults(manifest: Manifest) -> Iterator[str]:
    for number, image in enumerate(manifest.images):
        yield from _name_faults(f"images[{number}].file", image.file)
        for name in ("original_size", "used_size"):
            if min(getattr(image, name)) < 1:
                yield f"images[{number}].{name} is {getattr(image, name)}, expected pixels from 1 on"


def _place_faults(manifest: Manifest) -> Iterator[str]:
    positions, images = len(manifest.tokens.ids), len(manifest.images)
    for number, grid in enumerate(manifest.grids):
        end = grid.start + grid.rows * (grid.cols + grid.extra)
        if not 0 <= grid.image < images:
            yield f"grids[{number}].image is {grid.image}, there are {images} images"
        if min(grid.start, grid.rows - 1, grid.cols - 1, grid.extra) < 0 or end > positions:
            yield f"grids[{number}] is {grid.rows} x {grid.cols} from {grid.start}, there are {positions} positions"
        if not all(map(math.isfinite, grid.box)):
            yield f"grids[{number}].box holds NaN or infinity"
    for number, box in enumerate(manifest.boxes):
        if not 0 <= box.image < images:
            yield f"boxes[{number}].image is {box.image}, there are {images} images"
        if not all(map(math.isfinite, box.box)):
            yield f"boxes[{number}].box holds NaN or infinity"


def _layer_faults(manifest: Manifest) -> Iterator[str]:
    indices = [record.index for record in manifest.layers]
    if indices != list(range(manifest.model.layers)):
        yield f"layers are numbered {_short(indices)}, expected 0 to {manifest.model.layers - 1} in order"
    for record in manifest.layers:
        yield from _name_faults(f"layers[{record.index}].file", record.file)
        if (record.kind, record.window is None) not in (("full", True), ("sliding", False)):
            yield f"layers[{record.index}].kind is {_short(record.kind)} with window {record.window}"
        if record.window is not None and record.window < 1:
            yield f"layers[{record.index}].window is {record.window}, expected 1 or more"
        if record.bytes < 0:
            yield f"layers[{record.index}].bytes is {record.bytes}, expected 0 or more"
        if not math.isfinite(record.scaling):
            yield f"layers[{record.index}].scaling is {record.scaling}, expected a number"


def _name_faults(field: str, name: str) -> Iterator[str]:
    """A file of a dump lies in its folder, whatever the manifest says."""
    if not name or name.startswith(".") or any(character in name for character in "/\\:\0"):
        yield f"{field} is {_short(name)}, expected the name of a file in the dump's folder"


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."
