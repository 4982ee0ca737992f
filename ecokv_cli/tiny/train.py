"""Train the shipped model on rendered pages: ``python -m ecokv_cli.tiny.train --output FOLDER``.

The model is a Qwen2-VL of 3-4 M parameters. Several losses share one forward pass:

* *answer*: next-token loss on the digits of several questions per page;
* *reading*: every image token predicts the two characters it covers;
* *linking*: every image token predicts the key word of its own field (a softmax over the language
  model's own word embeddings, so image and question meet in one space) and its place in the value;
* *asking*: where an answer is due, the state after `ASK_LAYER` layers predicts the key word that was asked for;
* *pointing*: the state after `POINT_LAYER` layers picks, among the image tokens, the one that shows the next digit.

Without the last two the model finds a digit by the digits before it long before it finds the first one by its key. All
auxiliary heads are thrown away. The learning rate is constant after warm-up and falls
linearly to zero over the last part, so that a run can be stopped, resumed or extended.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ecokv_cli.tiny import checkpoint
from ecokv_cli.tiny.documents import ALPHABET, CELL, TILE, TRAIN_SEEDS, WORDS, Document, choose_layout, render

PEAK_RATE = 1.5e-3
WARM_UP = 100
TOKENS_PER_BATCH = 3600
QUESTIONS = 8
ASK_LAYER, POINT_LAYER = 2, 3
IGNORED = -100
SAVE_EVERY = 200
IDS = checkpoint.vocabulary()
WORD_IDS = torch.tensor([IDS[checkpoint.SPACE + w] for w in WORDS])


class Heads(torch.nn.Module):
    """Auxiliary read-outs; `null` stands for an image token that belongs to no field."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.reading = torch.nn.Linear(hidden, 2 * len(ALPHABET))
        self.linking = torch.nn.Linear(hidden, hidden)
        self.place = torch.nn.Linear(hidden, 4)
        self.null = torch.nn.Parameter(torch.zeros(1, hidden))
        self.asking = torch.nn.Linear(hidden, hidden)
        self.pointer = torch.nn.Linear(hidden, 64)
        self.pointed = torch.nn.Linear(hidden, 64)


def page_size(progress: float, rng: np.random.Generator) -> tuple[int, int]:
    """Lines and columns of the next batch: small pages first, all sizes from a third of the way on."""
    columns = int(rng.integers(1, 3)) if progress > 0.08 else 1
    width = 8 if columns == 1 else 16
    top = 8 if progress < 0.08 else 12 if progress < 0.16 else 16 if progress < 0.33 else 24
    limit = min(top, 384 // width)
    return int(rng.integers(4 if progress < 0.33 else max(4, 64 // width), limit + 1)), columns


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
    """One multi-question conversation: ``tokens``, and where an answer is due ``labels``, ``asked`` and ``tiles``.

    ``asked`` is the index of the key word, ``tiles`` the image token that shows the digit; `IGNORED` elsewhere.
    """
    fields = document.fields
    width = document.layout.tiles[1]
    order = rng.permutation(len(fields))[:QUESTIONS]
    row: dict[str, list[int]] = {"tokens": [], "labels": [], "asked": [], "tiles": []}
    for turn, index in enumerate(order):
        field = fields[index]
        question = checkpoint.TEMPLATES[rng.integers(len(checkpoint.TEMPLATES))].format(field.key)
        content: Any = [{"type": "text", "text": question}]
        if turn == 0:
            content.insert(0, {"type": "image"})
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        prompt = prompt["input_ids"] if not isinstance(prompt, list) else prompt
        answer = [*(IDS[d] for d in field.value), IDS["<|im_end|>"]]
        first = round(field.value_box[1] / TILE) * width + round(field.value_box[0] / TILE)
        silent = [IGNORED] * len(prompt)
        row["tokens"] += [*prompt, *answer]
        row["labels"] += [*silent, *answer]
        row["asked"] += [*silent, *([WORDS.index(field.key)] * len(answer))]
        row["tiles"] += [*silent, *(first + i // 2 for i in range(len(field.value))), IGNORED]
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
        for name, fill in (("tokens", IDS["<pad>"]), ("labels", IGNORED), ("asked", IGNORED), ("tiles", IGNORED))
    }
    aux = [targets(d) for d in documents]
    return {
        "patches": patches(np.stack([d.pixels for d in documents])),
        "grid": torch.tensor([[1, 2 * height, 2 * width]] * count),
        "before": before,
        **text,
        "positions": positions(before, height, width, length - before - 1),
        **{
            name: torch.from_numpy(np.stack(parts))
            for name, parts in zip(("chars", "words", "place"), zip(*aux, strict=True), strict=True)
        },
    }


def losses(model: Any, heads: Heads, batch: dict[str, Any]) -> tuple[torch.Tensor, dict[str, float]]:
    """The weighted loss and what to log."""
    count = len(batch["tokens"])
    vision = model.model.visual(batch["patches"], grid_thw=batch["grid"]).pooler_output
    image = vision.view(count, -1, vision.shape[-1])
    embed = model.get_input_embeddings()
    table = embed(WORD_IDS)
    before = batch["before"]
    text = embed(batch["tokens"])
    joined = torch.cat([text[:, :before], image, text[:, before + 1 :]], dim=1)
    output = model.model.language_model(
        inputs_embeds=joined,
        position_ids=batch["positions"].expand(-1, count, -1),
        use_cache=False,
        output_hidden_states=True,
    )
    labels, asked, tiles = (batch[name][:, before + 1 :] for name in ("labels", "asked", "tiles"))
    due = labels != IGNORED
    here = slice(before + image.shape[1] - 1, -1)
    logits = output.last_hidden_state[:, here][due] @ embed.weight.T
    wanted = labels[due]
    answer = F.cross_entropy(logits, wanted)
    question = heads.asking(output.hidden_states[ASK_LAYER][:, here][due]) @ table.T
    asking = F.cross_entropy(question, asked[due])
    middle = output.hidden_states[POINT_LAYER]
    pages = middle[:, before : before + image.shape[1]]
    pointers = heads.pointer(middle[:, here]) @ heads.pointed(pages).transpose(1, 2)
    pointing = F.cross_entropy(pointers.flatten(0, 1), tiles.flatten(), ignore_index=IGNORED)
    reading_logits = heads.reading(image).view(-1, len(ALPHABET))
    reading = F.cross_entropy(reading_logits, batch["chars"].flatten())
    link_logits = heads.linking(image) @ torch.cat([table, heads.null]).T * 4.0
    link_logits = link_logits.flatten(0, 1)
    linking = F.cross_entropy(link_logits, batch["words"].flatten())
    place = F.cross_entropy(heads.place(image).flatten(0, 1), batch["place"].flatten())
    inside = batch["words"].flatten() != len(WORDS)
    ink = batch["chars"].flatten() != 0
    with torch.no_grad():
        log = {
            "answer_loss": answer.item(),
            "answer_accuracy": (logits.argmax(-1) == wanted).float().mean().item(),
            "asking_accuracy": (question.argmax(-1) == asked[due]).float().mean().item(),
            "pointing_accuracy": (pointers.argmax(-1) == tiles)[tiles != IGNORED].float().mean().item(),
            "reading_accuracy": (reading_logits.argmax(-1) == batch["chars"].flatten())[ink].float().mean().item(),
            "linking_accuracy": (link_logits.argmax(-1) == batch["words"].flatten())[inside].float().mean().item(),
        }
    return answer + 0.5 * (reading + linking + asking + pointing + 0.3 * place), log


def rate(step: int, steps: int, decay: float) -> float:
    """Fraction of the peak learning rate: warm-up, constant, linear fall over the last `decay` of the run."""
    tail = (steps - step) / max(decay * steps, 1)
    return min((step + 1) / WARM_UP, 1.0, max(tail, 0.0))


def train(output: Path, state_file: Path, steps: int, decay: float, seed: int) -> None:
    """Run or resume training; every `SAVE_EVERY` steps checkpoint and state file are renewed."""
    tokenizer = checkpoint.build_tokenizer()
    model = checkpoint.build_model(seed)
    heads = Heads(model.config.text_config.hidden_size)
    named = [*model.named_parameters(), *heads.named_parameters()]
    groups = [
        {"params": [p for _, p in named if p.ndim > 1], "weight_decay": 0.05},
        {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.98), fused=True)
    start, elapsed = 0, 0.0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"])
        heads.load_state_dict(state["heads"])
        optimizer.load_state_dict(state["optimizer"])
        start, elapsed = state["step"], state["elapsed"]
    curve = state_file.with_suffix(".csv")
    began = time.monotonic() - elapsed
    parameters = [p for _, p in named]
    for step in range(start, steps):
        batch = make_batch(step, step / steps, tokenizer)
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * rate(step, steps, decay)
        loss, log = losses(model, heads, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        done = step + 1
        if done % 20 == 0:
            row = {"step": done, "seconds": round(time.monotonic() - began), **{k: round(v, 4) for k, v in log.items()}}
            row["image_tokens"] = batch["words"][0].numel()
            fresh = not curve.exists()
            with curve.open("a", newline="") as file:
                writer = csv.DictWriter(file, row.keys())
                if fresh:
                    writer.writeheader()
                writer.writerow(row)
            print(json.dumps(row), flush=True)
        if done % SAVE_EVERY == 0 or done == steps:
            elapsed = time.monotonic() - began
            partial = state_file.with_suffix(".partial")
            torch.save(
                {
                    "model": model.state_dict(),
                    "heads": heads.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "step": done,
                    "elapsed": elapsed,
                },
                partial,
            )
            partial.replace(state_file)
            checkpoint.save(model, output)


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m ecokv_cli.tiny.train", description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--state", type=Path, required=True, help="resumable state file (weights, optimizer, step)")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--decay", type=float, default=0.25, help="last part of the run with a falling learning rate")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    train(options.output, options.state, options.steps, options.decay, options.seed)


if __name__ == "__main__":
    main()
