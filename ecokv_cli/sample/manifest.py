"""Manifests the user hands in: many samples as JSONL, one object per line, all checked before anything runs."""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ecokv_cli.errors import InputError
from ecokv_cli.sample.names import id_name
from ecokv_cli.sample.prompts import check_characters, is_blank
from ecokv_cli.sample.samples import Box, Sample
from ecokv_cli.sample.sources import STDIN, display, read_source

if TYPE_CHECKING:
    import os

_CORNERS = "[x0, y0, x1, y1] in pixels"
_FURTHEST = 1 << 31


def read_manifest(source: str | os.PathLike[str]) -> tuple[Sample, ...]:
    """Read a manifest: UTF-8, one JSON object per line; blank lines and unknown fields are passed over.

    Parameters
    ----------
    source
        A path, or the string ``-`` for standard input. Relative image paths start at the manifest's folder, or at
        the working directory for standard input.

    Returns
    -------
    tuple of Sample
        In the order of the lines, ids unique. Whether the images exist is not checked here.

    Notes
    -----
    Fields; ``null`` counts as absent:

    * ``id``: text, made a folder name (`id_name`); ``line-0001`` for the first line and so on if absent.
    * ``image`` or ``images``: a path or a list of paths; absent for text only.
    * ``prompt``: text, literally (no ``@FILE``); may be blank where there is an image.
    * ``answers``: a list of texts.
    * ``boxes``: a list of ``{"text": ..., "box": [x0, y0, x1, y1], "image": 0}``, or an object of labels and boxes
      on the first image, where the text of ``value`` is the first answer and that of other labels the label.

    Raises
    ------
    InputError
        If the file cannot be read, is not UTF-8 or holds no sample, or a line is at fault; then naming the file, the
        line, the field, what was found and what was expected.
    """
    name = display(source, "manifest")
    folder = Path() if source == STDIN else Path(source).parent
    data = read_source(source, "manifest").removeprefix(codecs.BOM_UTF8)
    samples: list[Sample] = []
    taken: dict[str, int] = {}
    # Split at line feeds only: str.splitlines would also split inside texts, at U+2028 for one.
    for number, raw in enumerate(data.split(b"\n"), start=1):
        if not raw.strip():
            continue
        where = f"{name}, line {number}"
        row = _Row(where, _fields(raw, where))
        sample = row.sample(number, folder)
        first = taken.setdefault(sample.id, number)
        if first != number:
            row.refuse("id", f"the folder name {sample.id!r}, taken by line {first}", "an id of its own")
        samples.append(sample)
    if not samples:
        raise InputError(f"{name} holds no sample: write one JSON object per line")
    return tuple(samples)


def _fields(raw: bytes, where: str) -> dict[str, Any]:
    """The fields of one line; null counts as absent."""
    try:
        found = json.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: byte 0x{raw[error.start]:02x} is not UTF-8: save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where}: not JSON ({error.msg}, column {error.colno}): write one JSON object per line"
        ) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; a thousand brackets
        raise InputError(f"{where}: not usable as JSON ({error}): write one JSON object per line") from None
    if not isinstance(found, dict):
        raise InputError(f'{where}: found {_kind(found)}, expected an object such as {{"image": ..., "prompt": ...}}')
    return {field: value for field, value in found.items() if value is not None}


@dataclass(frozen=True)
class _Row:
    """One line on its way to a sample; `where` names it in messages."""

    where: str
    fields: dict[str, Any]

    def refuse(self, field: str, found: str, expected: str) -> NoReturn:
        raise InputError(f"{self.where}, field {field!r}: found {found}, expected {expected}")

    def sample(self, number: int, folder: Path) -> Sample:
        images = tuple(folder / path for path in self._images())
        answers = tuple(self._text(f"answers[{i}]", answer) for i, answer in enumerate(self._list("answers")))
        return Sample(
            self._id(number), images, self._prompt(bool(images)), answers, tuple(self._boxes(answers, len(images)))
        )

    def _id(self, number: int) -> str:
        found = self.fields.get("id", f"line-{number:04d}")
        try:
            return id_name(self._text("id", found))
        except ValueError as error:
            self.refuse("id", _kind(found), str(error))

    def _images(self) -> list[str]:
        given = [field for field in ("image", "images") if field in self.fields]
        if len(given) > 1:
            self.refuse("images", "both 'image' and 'images'", "one of the two")
        if not given:
            return []
        field, found = given[0], self.fields[given[0]]
        if isinstance(found, str):
            return [self._path(field, found)]
        if not isinstance(found, list):
            self.refuse(field, _kind(found), "a path or a list of paths")
        return [self._path(f"{field}[{i}]", path) for i, path in enumerate(found)]

    def _path(self, field: str, found: Any) -> str:
        if not isinstance(found, str) or not found:
            self.refuse(field, _kind(found), "a path")
        return found

    def _prompt(self, has_images: bool) -> str:
        if "prompt" not in self.fields:
            self.refuse("prompt", "nothing", 'a text ("" for an image without a question)')
        prompt = self._text("prompt", self.fields["prompt"]).replace("\r\n", "\n")
        if not has_images and is_blank(prompt):
            self.refuse("prompt", "a blank text and no image", "an image or a prompt with text")
        try:
            check_characters(prompt)
        except InputError as error:
            raise InputError(f"{self.where}, field 'prompt': {error}") from None
        return prompt

    def _boxes(self, answers: tuple[str, ...], images: int) -> list[Box]:
        found = self.fields.get("boxes", [])
        if isinstance(found, dict):
            texts = {"value": answers[0]} if answers else {}
            entries = {f"boxes.{label}": {"text": texts.get(label, label), "box": box} for label, box in found.items()}
        elif isinstance(found, list):
            entries = {f"boxes[{i}]": entry for i, entry in enumerate(found)}
        else:
            self.refuse("boxes", _kind(found), "a list of boxes, or an object of labels and boxes")
        if entries and not images:
            self.refuse("boxes", f"{len(entries)} and no image", "an image that they are on")
        return [self._box(field, entry, images) for field, entry in entries.items()]

    def _box(self, field: str, entry: Any, images: int) -> Box:
        if not isinstance(entry, dict):
            self.refuse(field, _kind(entry), f'an object {{"text": ..., "box": {_CORNERS}}}')
        image = entry.get("image", 0)
        if not isinstance(image, int) or isinstance(image, bool) or not 0 <= image < images:
            self.refuse(f"{field}.image", _kind(image), f"the number of an image, 0 to {images - 1}")
        return Box(self._text(f"{field}.text", entry.get("text")), self._corners(field, entry.get("box")), image)

    def _corners(self, field: str, found: Any) -> tuple[float, float, float, float]:
        if not isinstance(found, list) or len(found) != 4:
            self.refuse(field, _kind(found), _CORNERS)
        for number in found:
            if not isinstance(number, int | float) or isinstance(number, bool):
                self.refuse(field, f"{_kind(number)} among the corners", _CORNERS)
            if not 0 <= number <= _FURTHEST:
                self.refuse(field, f"{_kind(number)} as a corner", f"pixels from 0 to {_FURTHEST}")
        x0, y0, x1, y1 = found
        if x0 >= x1 or y0 >= y1:
            self.refuse(field, "an empty box", "x0 < x1 and y0 < y1, as right and bottom are exclusive")
        return x0, y0, x1, y1

    def _list(self, field: str) -> list[Any]:
        found = self.fields.get(field, [])
        if not isinstance(found, list):
            self.refuse(field, _kind(found), "a list of texts")
        return found

    def _text(self, field: str, found: Any) -> str:
        if not isinstance(found, str):
            self.refuse(field, _kind(found), "a text")
        if not found.isascii() and any("\ud800" <= character <= "\udfff" for character in found):
            self.refuse(field, f"{_kind(found)} with a lone surrogate", "text that can be written as UTF-8")
        return found


def _kind(value: Any) -> str:
    """Say in a few words what a JSON value is."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)} entries"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = ascii(value) if isinstance(value, str) else f"the number {value}"
    return text if len(text) <= 60 else f"{text[:56]} ..."
