"""Batches that train the shipped model: rendered pages as patches, their questions as tokens, and what is true of them.

A batch is a pure function of its step, so a run that is stopped and resumed sees the same ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ecokv_cli.tiny import checkpoint
from ecokv_cli.tiny.documents import ALPHABET, CELL, TILE, TRAIN_SEEDS, WORDS, Document, choose_layout, render

TOKENS_PER_BATCH = 3600
QUESTIONS = 10
IGNORED = -100
IDS = checkpoint.vocabulary()


def page_size(progress: float, rng: np.random.Generator) -> tuple[int, int]:
    """Lines and columns of the next batch: small pages first, all sizes from a quarter of the phase on."""
    columns = int(rng.integers(1, 3)) if progress > 0.06 else 1
    width = 8 if columns == 1 else 16
    top = 8 if progress < 0.06 else 12 if progress < 0.12 else 16 if progress < 0.25 else 24
    limit = min(top, 384 // width)
    return int(rng.integers(4 if progress < 0.25 else max(4, 64 // width), limit + 1)), columns


def patches(pixels: np.ndarray) -> torch.Tensor:
    """Greyscale ``uint8 [B, H, W]`` to the image processor's patch rows ``[B * gh * gw, 3 * 2 * 14 * 14]``."""
    x = torch.from_numpy(pixels).float().div_(127.5).sub_(1.0)
    batch, height, width = x.shape
    x = x.view(batch, height // TILE, 2, CELL, width // TILE, 2, CELL).permute(0, 1, 4, 2, 5, 3, 6)
    x = x.reshape(-1, 1, CELL * CELL).expand(-1, 6, -1)
    return x.reshape(-1, 6 * CELL * CELL)


def targets(document: Document) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per tile: the two characters ``[h, w, 2]``, the word index (last = none) and the place in the value."""
    height, width = document.layout.tiles
    characters = np.zeros((height, 2 * width), dtype=np.int64)
    words = np.full((height, width), len(WORDS), dtype=np.int64)
    place = np.zeros((height, width), dtype=np.int64)
    for field in document.fields:
        for text, box in ((field.key, field.key_box), (field.value, field.value_box)):
            row, column = round(box[1] / TILE), 2 * round(box[0] / TILE)
            characters[row, column : column + len(text)] = [ALPHABET.index(c) for c in text]
            last = column // 2 + (len(text) + 1) // 2
            words[row, column // 2 : last] = WORDS.index(field.key)
            if text is field.value:
                place[row, column // 2 : last] = np.arange(1, last - column // 2 + 1)
    return characters.reshape(height, width, 2), words, place


def encode(document: Document, rng: np.random.Generator, tokenizer: Any) -> dict[str, list[int]]:
    """One multi-question conversation, with one image placeholder: ``tokens``, ``labels``, ``asked`` and ``shown``.

    Where an answer is due (elsewhere `IGNORED`): the token to predict, the position of the key word in ``tokens``, and
    the tile that shows the digit.
    """
    fields, width = document.fields, document.layout.tiles[1]
    row: dict[str, list[int]] = {"tokens": [], "labels": [], "asked": [], "shown": []}
    for turn, index in enumerate(rng.permutation(len(fields))[:QUESTIONS]):
        field = fields[index]
        question = checkpoint.TEMPLATES[rng.integers(len(checkpoint.TEMPLATES))].format(field.key)
        content: Any = [{"type": "text", "text": question}]
        if turn == 0:
            content.insert(0, {"type": "image"})
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, return_dict=False
        )
        answer = [*(IDS[d] for d in field.value), IDS["<|im_end|>"]]
        word = len(row["tokens"]) + prompt.index(IDS[checkpoint.SPACE + field.key])
        first = round(field.value_box[1] / TILE) * width + round(field.value_box[0] / TILE)
        silent = [IGNORED] * len(prompt)
        row["tokens"] += [*prompt, *answer]
        row["labels"] += [*silent, *answer]
        row["asked"] += [*silent, *([word] * len(answer))]
        row["shown"] += [*silent, *(first + i // 2 for i in range(len(field.value))), IGNORED]
    return row


def positions(before: int, height: int, width: int, after: int) -> torch.Tensor:
    """M-RoPE positions ``[3, 1, length]`` of text, one image and text, as the model computes them."""
    grid = torch.stack(
        [
            torch.zeros(height * width, dtype=torch.long),
            torch.arange(height).repeat_interleave(width),
            torch.arange(width).repeat(height),
        ]
    )
    start = before + max(height, width)
    parts = [torch.arange(before).expand(3, -1), grid + before, torch.arange(start, start + after).expand(3, -1)]
    return torch.cat(parts, dim=1)[:, None]


def make_batch(step: int, progress: float, tokenizer: Any) -> dict[str, Any]:
    """The batch of `step`: equal-sized pages and their questions, a pure function of the arguments."""
    rng = np.random.default_rng((20_260, step))
    lines, columns = page_size(progress, rng)
    layout = choose_layout(int(rng.integers(1 << 30)), lines, columns)
    height, width = layout.tiles
    count = max(8, min(48, TOKENS_PER_BATCH // (height * width + 60)))
    seeds = rng.integers(TRAIN_SEEDS.start, TRAIN_SEEDS.stop, count)
    documents = [render(int(seed), lines, columns, layout) for seed in seeds]
    rows = [encode(d, rng, tokenizer) for d in documents]
    before = rows[0]["tokens"].index(IDS["<|image_pad|>"])
    length = max(len(row["tokens"]) for row in rows)
    text = {
        name: torch.tensor([row[name] + [fill] * (length - len(row[name])) for row in rows])
        for name, fill in (("tokens", IDS["<pad>"]), ("labels", IGNORED), ("asked", IGNORED), ("shown", IGNORED))
    }
    truth = zip(("chars", "words", "place"), zip(*(targets(d) for d in documents), strict=True), strict=True)
    return {
        "patches": patches(np.stack([d.pixels for d in documents])),
        "grid": torch.tensor([[1, 2 * height, 2 * width]] * count),
        "before": before,
        "positions": positions(before, height, width, length - before - 1),
        **text,
        **{name: torch.from_numpy(np.stack(parts)) for name, parts in truth},
    }
