"""From images and a prompt to a dump on disk."""

from __future__ import annotations

import logging
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import torch

from ecokv_cli.dump.schema import SCHEMA_VERSION, BoxInfo, Decoded, ImageInfo, Manifest
from ecokv_cli.dump.versions import versions
from ecokv_cli.dump.writer import LayerWriter, fresh_folder, require_space
from ecokv_cli.errors import InputError, UsageError
from ecokv_cli.models.capture import Captured, capture
from ecokv_cli.models.layout import describe_tokens
from ecokv_cli.models.limits import beyond_limit, require_room
from ecokv_cli.models.loading import DTYPES, LoadedModel
from ecokv_cli.models.prompting import prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ecokv_cli.models.settings import DumpSettings
    from ecokv_cli.sample.images import LoadedImage
    from ecokv_cli.sample.samples import Box, Sample

logger = logging.getLogger(__name__)


def write_dump(
    loaded: LoadedModel,
    sample: Sample,
    images: Sequence[LoadedImage],
    settings: DumpSettings,
    folder: Path,
    *,
    command: str = "",
    force: bool = False,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Manifest:
    """Run the model once on a sample and write its dump.

    Parameters
    ----------
    loaded
        The model.
    sample
        What to dump.
    images
        The images of the sample, loaded.
    settings
        What to record.
    folder
        Where the dump goes; it appears there only when complete.
    command
        The command line, for the manifest.
    force
        Replace an existing dump.
    progress
        Called with a phase name, how much is done and how much there is.

    Returns
    -------
    Manifest
        As written.

    Raises
    ------
    EcokvError
        For input the model refuses, a model that cannot be captured, or a disk that refuses.
    """
    stored = stored_dtype(settings.store_dtype, loaded)
    boxes = locate_boxes(sample.boxes, [image.original_size for image in images])
    torch.manual_seed(settings.seed)
    prepared = prepare(loaded, [image.image for image in images], sample.prompt, template=settings.template)
    tokens, grids = describe_tokens(loaded, prepared.inputs, [image.used_size for image in images])
    require_room(loaded, len(tokens.ids), tokens.roles.count("image"), settings.decode)
    info = loaded.info
    values = info.layers * info.kv_heads * 2 * info.head_dim * len(tokens.ids)
    require_space(folder, int(1.1 * values * stored.itemsize))
    with fresh_folder(folder, force=force) as partial:
        progress("prefill", 0, 1)
        captured = capture(
            loaded,
            prepared.inputs,
            window=settings.window,
            decode=settings.decode,
            ignore_eos=settings.ignore_eos,
            received=settings.received_attention,
            prerope=settings.prerope_keys,
            on_token=lambda done: progress("decode", done, settings.decode),
        )
        beyond = beyond_limit(loaded, captured)
        if beyond:
            logger.warning("%s", beyond)
        writer = LayerWriter(partial)
        names: list[str] = []
        for index in range(info.layers):
            tensors, scaling = captured.layer(index)
            held = captured.sliding.get(index)
            names = names if held else list(tensors)
            tensors = {name: tensor.to(stored) for name, tensor in tensors.items()}
            writer.add(index, tensors, scaling, held.window if held else None)
            progress("write", index + 1, info.layers)
        manifest = Manifest(
            schema_version=SCHEMA_VERSION,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            sample=folder.name,
            command=command,
            seed=settings.seed,
            model=info,
            attention=loaded.backend,
            compute_dtype=dtype_name(loaded.model.dtype),
            stored_dtype=dtype_name(stored),
            device=str(loaded.model.device),
            processor=processor_settings(loaded),
            images=tuple(_store_image(partial, i, image) for i, image in enumerate(images)),
            grids=grids,
            prompt=sample.prompt,
            rendered_sha256=prepared.rendered_sha256,
            tokens=tokens,
            position_ids=tuple(tuple(axis) for axis in captured.positions.tolist()),
            decoded=_decoded(loaded, captured),
            window=min(settings.window, len(tokens.ids)),
            tensors=tuple(names),
            layers=tuple(writer.records),
            seconds={name: round(value, 4) for name, value in captured.seconds.items()},
            versions=versions(),
            answers=sample.answers,
            boxes=boxes,
            settings=asdict(settings),
        )
        writer.finish(manifest)
    return manifest


def stored_dtype(name: str, loaded: LoadedModel) -> torch.dtype:
    """The dtype that ``--store-dtype`` means for a model.

    Raises
    ------
    UsageError
        If it is unknown.
    """
    if name == "auto":
        dtype: torch.dtype = loaded.model.dtype
        return dtype
    if name not in DTYPES:
        raise UsageError(f"--store-dtype {name}: unknown, choose auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def dtype_name(dtype: torch.dtype) -> str:
    """Name of a dtype in a manifest, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def locate_boxes(boxes: Sequence[Box], sizes: Sequence[tuple[int, int]]) -> tuple[BoxInfo, ...]:
    """Boxes in pixels as fractions of their images, whose original (width, height) are `sizes`.

    Raises
    ------
    InputError
        If a box reaches beyond its image.
    """
    located = []
    for number, box in enumerate(boxes):
        (width, height), (x0, y0, x1, y1) = sizes[box.image], box.box
        if x1 > width or y1 > height:
            raise InputError(
                f"box {number} ({box.text!r}) reaches to {x1:g}, {y1:g} on image {box.image} of {width} x {height} "
                f"pixels; boxes are in pixels of the original image"
            )
        located.append(BoxInfo(box.text, box.image, (x0 / width, y0 / height, x1 / width, y1 / height)))
    return tuple(located)


def processor_settings(loaded: LoadedModel) -> dict[str, object]:
    """What the image processor is set to; empty for a text model."""
    part = getattr(loaded.processor, "image_processor", None)
    if part is None:
        return {}
    settings = {k: v for k, v in part.to_dict().items() if isinstance(v, bool | int | float | str | list | dict)}
    return {"class": type(part).__name__, **settings}


def _store_image(folder: Path, index: int, image: LoadedImage) -> ImageInfo:
    name = f"image_{index:03d}.png"
    image.image.save(folder / name)
    return ImageInfo(image.source, name, image.format, image.sha256, image.original_size, image.used_size, image.notes)


def _decoded(loaded: LoadedModel, captured: Captured) -> Decoded:
    decode = loaded.tokenizer.decode
    strings = tuple(decode([token], skip_special_tokens=False) for token in captured.answer)
    return Decoded(tuple(captured.answer), strings, decode(captured.answer, skip_special_tokens=True), captured.ended)
