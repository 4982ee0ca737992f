"""What is asked: the shipped document task, or the user's own manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ecokv_cli.dump.schema import BoxInfo
from ecokv_cli.errors import InputError, UsageError
from ecokv_cli.studies.docqa import QUESTION
from ecokv_cli.studies.evaluate import Question
from ecokv_cli.tiny.documents import HELD_OUT_SEEDS, held_out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from PIL.Image import Image

    from ecokv_cli.sample.samples import Sample
    from ecokv_cli.tiny.documents import Box

TASKS = ("docqa",)
DOCQA_STEPS = 8
"""An answer has three to five digits, a token each, and an end."""


def docqa(count: int, smallest: int = 64) -> Iterator[Question]:
    """Held-out pages of `smallest` to 384 image tokens, one question each, exact answers of three to five digits."""
    if count > len(HELD_OUT_SEEDS):
        raise UsageError(f"--samples {count}: the task has {len(HELD_OUT_SEEDS)} held-out pages")
    for number, (document, field) in enumerate(held_out(count, HELD_OUT_SEEDS, smallest)):
        image = document.image.convert("RGB")
        yield Question(
            f"page-{number:04d}",
            (image,),
            QUESTION.format(field.key),
            (field.value,),
            f"docqa {document.seed} {document.image_tokens}",
            (_located(field.value, field.value_box, image), _located(field.key, field.key_box, image)),
        )


def questions(samples: list[Sample], max_pixels: int | None) -> Iterator[Question]:
    """The samples of a manifest, images loaded one sample at a time."""
    from ecokv_cli.models.dumping import locate_boxes
    from ecokv_cli.sample.images import load_image

    for sample in samples:
        if not sample.answers:
            raise InputError(f'sample {sample.id}: has no answers to compare with; add "answers" to its line')
        images = [load_image(str(source), max_pixels=max_pixels) for source in sample.images]
        identity = " ".join([sample.prompt, *sample.answers, *(image.sha256 for image in images), str(max_pixels)])
        try:
            boxes = locate_boxes(sample.boxes, [image.original_size for image in images])
        except InputError as error:
            raise InputError(f"sample {sample.id}: {error}") from None
        yield Question(
            sample.id, tuple(image.image for image in images), sample.prompt, sample.answers, identity, boxes
        )


def _located(text: str, box: Box, image: Image) -> BoxInfo:
    """A box in pixels as a fraction of the only image."""
    x0, y0, x1, y1 = box
    return BoxInfo(text, 0, (x0 / image.width, y0 / image.height, x1 / image.width, y1 / image.height))
