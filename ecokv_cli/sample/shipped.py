"""The sample pages that come with ecokv, and their questions and answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ecokv_cli.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

MANIFEST = "samples.jsonl"

_INSTALLED = Path(__file__).parent / "inputs"
_CHECKOUT = Path(__file__).parents[2] / "sample_inputs"

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class ShippedSample:
    """One image with a question.

    Attributes
    ----------
    id
        Short name, also the stem of the image file.
    image
        Path of the image.
    prompt
        The question.
    answers
        The accepted answers; empty where none is known.
    boxes
        Pixel boxes ``(x0, y0, x1, y1)``, right and bottom exclusive, of the ``key`` and ``value`` asked
        for; empty where none is known.
    """

    id: str
    image: Path
    prompt: str
    answers: tuple[str, ...]
    boxes: Mapping[str, Box]


def shipped_folder() -> Path:
    """Find the folder of the samples: inside an installed package, or beside it in a checkout.

    Raises
    ------
    InputError
        If neither is there.
    """
    for folder in (_INSTALLED, _CHECKOUT):
        if (folder / MANIFEST).is_file():
            return folder
    raise InputError(
        f"the shipped samples are missing: no {MANIFEST} in {str(_INSTALLED)!r} or {str(_CHECKOUT)!r}; "
        "reinstall ecokv-cli, or give your own image and prompt"
    )


def shipped_samples() -> tuple[ShippedSample, ...]:
    """List the shipped samples in the order of their manifest.

    Raises
    ------
    InputError
        If the samples are missing.
    """
    folder = shipped_folder()
    lines = (folder / MANIFEST).read_text(encoding="utf-8").splitlines()
    return tuple(_parse(json.loads(line), folder) for line in lines)


def default_sample() -> ShippedSample:
    """Return the sample used when the user names none: a two-column page asked for a five-digit number.

    Raises
    ------
    InputError
        If the samples are missing.
    """
    return shipped_samples()[0]


def _parse(row: dict[str, Any], folder: Path) -> ShippedSample:
    boxes = {label: (x0, y0, x1, y1) for label, (x0, y0, x1, y1) in row["boxes"].items()}
    return ShippedSample(row["id"], folder / row["image"], row["prompt"], tuple(row["answers"]), boxes)
