"""What is asked: the shipped document task, or the user's own manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ecokv_cli.errors import UsageError
from ecokv_cli.studies.docqa import QUESTION
from ecokv_cli.studies.evaluate import Question
from ecokv_cli.tiny.documents import HELD_OUT_SEEDS, held_out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ecokv_cli.sample.samples import Sample

TASKS = ("docqa",)
DOCQA_STEPS = 8
"""An answer has three to five digits, a token each, and an end."""


def docqa(count: int, smallest: int = 64) -> Iterator[Question]:
    """Held-out pages of `smallest` to 384 image tokens, one question each, exact answers of three to five digits."""
    if count > len(HELD_OUT_SEEDS):
        raise UsageError(f"--samples {count}: the task has {len(HELD_OUT_SEEDS)} held-out pages")
    for number, (document, field) in enumerate(held_out(count, HELD_OUT_SEEDS, smallest)):
        yield Question(
            f"page-{number:04d}",
            (document.image.convert("RGB"),),
            QUESTION.format(field.key),
            (field.value,),
            f"docqa {document.seed} {document.image_tokens}",
        )


def questions(samples: list[Sample], max_pixels: int | None) -> Iterator[Question]:
    """The samples of a manifest, images loaded one sample at a time."""
    from ecokv_cli.errors import InputError
    from ecokv_cli.sample.images import load_image

    for sample in samples:
        if not sample.answers:
            raise InputError(f'sample {sample.id}: has no answers to compare with; add "answers" to its line')
        images = [load_image(str(source), max_pixels=max_pixels) for source in sample.images]
        identity = " ".join([sample.prompt, *sample.answers, *(image.sha256 for image in images), str(max_pixels)])
        yield Question(sample.id, tuple(image.image for image in images), sample.prompt, sample.answers, identity)
