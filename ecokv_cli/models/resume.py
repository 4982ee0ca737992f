"""Which samples of a run are already there, made from the same input with the same settings."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from ecokv_cli.dump.reader import open_dump
from ecokv_cli.dump.runs import first_damage
from ecokv_cli.errors import DumpError, OutputError
from ecokv_cli.models.dumping import dtype_name, locate_boxes, processor_settings, stored_dtype
from ecokv_cli.sample.sources import source_sha256

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ecokv_cli.dump.schema import Manifest
    from ecokv_cli.models.loading import LoadedModel
    from ecokv_cli.models.settings import DumpSettings
    from ecokv_cli.sample.samples import Sample


class State(Enum):
    """What a run has of a sample."""

    ABSENT = auto()
    COMPLETE = auto()
    DAMAGED = auto()


def state_of(loaded: LoadedModel, sample: Sample, settings: DumpSettings, folder: Path) -> State:
    """Whether `folder` holds the dump that this model, sample and these settings would give.

    Device and library versions are not compared. Images are hashed, not decoded. A dump of the right making with a
    file missing or of the wrong size is damaged, and may be replaced.

    Raises
    ------
    OutputError
        If something else is there; a dump that was made otherwise is refused by the first field that differs.
    InputError
        If an image of the sample cannot be read, or a box reaches beyond it.
    """
    if not folder.exists():
        return State.ABSENT
    try:
        dump = open_dump(folder)
    except DumpError as error:
        raise OutputError(
            f"{folder} exists and is no dump to go on from ({error}); move it away, or add --force to replace it"
        ) from None
    for field, found, wanted in _comparison(dump.manifest, loaded, sample, settings):
        if found != wanted:
            raise OutputError(
                f"{folder} exists and was made with {field} {_short(found)}, now {_short(wanted)}; "
                f"add --force to replace it, or choose another run folder with --output"
            )
    return State.DAMAGED if first_damage(dump) else State.COMPLETE


def _comparison(
    manifest: Manifest, loaded: LoadedModel, sample: Sample, settings: DumpSettings
) -> Iterator[tuple[str, Any, Any]]:
    """Field by field: its name, what the manifest says, and what a new dump would."""
    for field, wanted in asdict(loaded.info).items():
        yield f"model.{field}", getattr(manifest.model, field), wanted
    yield "attention", manifest.attention, loaded.backend
    yield "compute_dtype", manifest.compute_dtype, dtype_name(loaded.model.dtype)
    yield "stored_dtype", manifest.stored_dtype, dtype_name(stored_dtype(settings.store_dtype, loaded))
    yield "processor", manifest.processor, json.loads(json.dumps(processor_settings(loaded)))
    # How the stored dtype was asked for does not matter, and what was stored is compared above.
    for field, wanted in asdict(settings).items():
        if field != "store_dtype":
            yield f"settings.{field}", manifest.settings.get(field, "(not recorded)"), wanted
    yield "number of images", len(manifest.images), len(sample.images)
    for number, (image, source) in enumerate(zip(manifest.images, sample.images, strict=True)):
        yield f"images[{number}].sha256", image.sha256, source_sha256(source, "image")
    yield "prompt", manifest.prompt, sample.prompt
    yield "answers", manifest.answers, sample.answers
    yield "boxes", manifest.boxes, locate_boxes(sample.boxes, [image.original_size for image in manifest.images])


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."
