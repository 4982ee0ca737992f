"""Whether two dumps are of one sample: the same images with the same prompt, whatever they are called."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.dump.schema import ImageInfo


def marks_of(dump: Dump) -> set[str]:
    """Digests of a sample; two dumps of one sample have at least one in common.

    Images are the same if their files are (however they were scaled), or their pixels as the model was given them
    (whatever the files were called, or saved as without loss). Prompts are the same if their texts are (whatever the
    chat template), or all token ids. The same image with another prompt is another sample; so is, as nothing tells, an
    image that was saved again with loss.
    """
    manifest = dump.manifest
    pixels = [_pixels(dump, image) for image in manifest.images]
    images = [_digest("files", *map(_file, manifest.images))]
    if all(pixels):
        images.append(_digest("pixels", *pixels))
    prompts = [_digest("text", manifest.prompt), _digest("tokens", *map(str, manifest.tokens.ids))]
    return {_digest(image, prompt) for image in images for prompt in prompts}


def distinct(dumps: Sequence[Dump]) -> tuple[list[Dump], dict[str, str]]:
    """The dumps without those of a sample that came before, and by the names of these what they repeat."""
    seen: dict[str, str] = {}
    kept, twins = [], {}
    for dump in dumps:
        marks, name = marks_of(dump), dump.manifest.sample
        same = next((seen[mark] for mark in sorted(marks) if mark in seen), None)
        if same is None:
            kept.append(dump)
            seen |= dict.fromkeys(marks, name)
        else:
            twins[name] = same
    return kept, twins


def _file(image: ImageInfo) -> str:
    """The file, and of several pages or frames which one: only the notes say that."""
    return "\n".join([image.sha256, *(note for note in image.notes if note.startswith("holds "))])


def _pixels(dump: Dump, image: ImageInfo) -> str:
    """Digest of an image as it was used; empty if the dump holds it no longer."""
    try:
        with Image.open(dump.folder / image.file) as found:
            return _digest(str(found.size), hashlib.sha256(found.convert("RGB").tobytes()).hexdigest())
    except OSError:
        return ""


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
