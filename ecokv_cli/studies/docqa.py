"""The project's own document-QA task: held-out pages, exact answers.

``python -m ecokv_cli.studies.docqa`` measures the shipped model on it, as its model card reports; with ``--export`` it
writes the pages with a manifest instead, for every command that takes one.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from scipy.stats import binomtest

from ecokv_cli.dump.writer import fresh_folder
from ecokv_cli.studies.tables import Table
from ecokv_cli.tiny import SHIPPED_MODEL
from ecokv_cli.tiny.documents import HELD_OUT_SEEDS, VALIDATION_SEEDS, held_out

if TYPE_CHECKING:
    from ecokv_cli.models.loading import LoadedModel

QUESTION = "what is the {}?"
SIZES = (64, 128, 192, 256, 320, 385)
"""Edges of the image-token bins that accuracy is reported for."""


def answer_pages(loaded: LoadedModel, count: int, seeds: range = HELD_OUT_SEEDS) -> Table:
    """Greedy answers to `count` questions on pages of 64 to 384 image tokens, full cache.

    Parameters
    ----------
    loaded
        A model that reads the shipped pages.
    count
        Pages, one question each.
    seeds
        Which pages; held-out ones unless told otherwise.

    Returns
    -------
    Table
        ``seed, image_tokens, columns, question, answer, predicted, correct``; correct is exact match.
    """
    from ecokv_cli.models.capture import capture
    from ecokv_cli.models.prompting import prepare

    table = Table("docqa", ("seed", "image_tokens", "columns", "question", "answer", "predicted", "correct"))
    for document, field in held_out(count, seeds):
        question = QUESTION.format(field.key)
        inputs = prepare(loaded, [document.image.convert("RGB")], question).inputs
        captured = capture(loaded, inputs, window=1, decode=8)
        predicted = loaded.tokenizer.decode(captured.answer, skip_special_tokens=True).strip()
        table.add(
            seed=document.seed,
            image_tokens=document.image_tokens,
            columns=document.layout.columns,
            question=question,
            answer=field.value,
            predicted=predicted,
            correct=predicted == field.value,
        )
    return table


def accuracy_by_size(answers: Table) -> Table:
    """Exact-match accuracy per size bin and over all, with 95 % Wilson intervals."""
    table = Table("accuracy", ("image_tokens", "pages", "accuracy", "low", "high"))
    bins = [(f"{low}-{high - 1}", low, high) for low, high in pairwise(SIZES)]
    for name, low, high in [*bins, ("all", 0, 1 << 30)]:
        found = [bool(row["correct"]) for row in answers if low <= int(str(row["image_tokens"])) < high]
        if found:
            interval = binomtest(sum(found), len(found)).proportion_ci(method="wilson")
            table.add(
                image_tokens=name,
                pages=len(found),
                accuracy=fmean(found),
                low=round(float(interval.low), 4),
                high=round(float(interval.high), 4),
            )
    return table


def export_pages(folder: Path, count: int, seeds: range = HELD_OUT_SEEDS) -> Path:
    """Write pages as PNG with a ``samples.jsonl`` of questions, answers and boxes, and return its path.

    Raises
    ------
    OutputError
        If `folder` exists.
    """
    lines = []
    with fresh_folder(folder, force=False) as partial:
        for number, (document, field) in enumerate(held_out(count, seeds)):
            name = f"page-{number:04d}"
            document.image.save(partial / f"{name}.png")
            boxes = {"key": field.key_box, "value": field.value_box}
            line = {"id": name, "image": f"{name}.png", "prompt": QUESTION.format(field.key), "answers": [field.value]}
            lines.append(json.dumps({**line, "boxes": boxes}))
        (partial / "samples.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "samples.jsonl"


def main() -> None:
    """Measure a checkpoint and print one JSON line per size bin, or export the pages."""
    from ecokv_cli.models.loading import load_model

    parser = argparse.ArgumentParser(
        prog="python -m ecokv_cli.studies.docqa", description="Exact-match accuracy on pages."
    )
    parser.add_argument("--model", default=str(SHIPPED_MODEL))
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--validation", action="store_true", help="validation instead of held-out pages")
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="write pages and manifest there, measure nothing")
    options = parser.parse_args()
    seeds = VALIDATION_SEEDS if options.validation else HELD_OUT_SEEDS
    if options.export:
        print(export_pages(options.export, options.count, seeds))  # noqa: T201 - a program's output
        return
    answers = answer_pages(load_model(options.model), options.count, seeds)
    for row in accuracy_by_size(answers):
        print(json.dumps(row))  # noqa: T201 - a program's output


if __name__ == "__main__":
    main()
