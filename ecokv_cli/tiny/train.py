"""Train the shipped model on rendered pages: ``python -m ecokv_cli.tiny.train --output FOLDER --state FILE``.

The model is a Qwen2-VL of 3-4 M parameters, trained in two phases.

1. *Reading* trains the vision tower alone. Every image token predicts the two characters it covers, the key word of
   its own field, and its place in the field's number. The heads that do so are thrown away.
2. *Answering* trains the language model on the frozen tower, on the digits of several questions per page. Two query
   heads each of two layers are shown where to look while an answer is due: in `ASK_LAYER` at the key word that was
   asked for, in `SHOW_LAYER` at the image token that shows the next digit. Left to itself the model finds a digit by
   the digits before it, and the first one hardly ever.

In each phase the learning rate is constant after warm-up and falls linearly to zero over the last part. A run can be
stopped and resumed.
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
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ecokv_cli.tiny import checkpoint
from ecokv_cli.tiny.documents import ALPHABET, CELL, TILE, TRAIN_SEEDS, WORDS, Document, choose_layout, render

PEAK_RATE = 1.5e-3
WARM_UP = 100
DECAY = 0.3
TOKENS_PER_BATCH = 3600
QUESTIONS = 10
SAVE_EVERY = 200
ASK_LAYER, SHOW_LAYER = 1, 3
GUIDED_HEADS = 2
IGNORED = -100
IDS = checkpoint.vocabulary()


class Heads(torch.nn.Module):
    """Read-outs of an image token: two characters, key word (last class = none), place in the number."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.reading = torch.nn.Linear(hidden, 2 * len(ALPHABET))
        self.linking = torch.nn.Linear(hidden, len(WORDS) + 1)
        self.place = torch.nn.Linear(hidden, 4)


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


def see(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Image tokens of a batch, ``[B, tiles, hidden]``."""
    features = model.model.visual(batch["patches"], grid_thw=batch["grid"]).pooler_output
    tokens: torch.Tensor = features.view(len(batch["tokens"]), -1, features.shape[-1])
    return tokens


def reading_loss(model: Any, heads: Heads, batch: dict[str, Any]) -> tuple[torch.Tensor, dict[str, float]]:
    """Loss of the first phase and what to log."""
    image = see(model, batch).flatten(0, 1)
    characters, words, place = (batch[name].flatten() for name in ("chars", "words", "place"))
    read, linked = heads.reading(image).view(-1, len(ALPHABET)), heads.linking(image)
    loss = (
        F.cross_entropy(read, characters) + F.cross_entropy(linked, words) + F.cross_entropy(heads.place(image), place)
    )
    log = {
        "loss": loss.item(),
        "reading": _share(read.argmax(-1) == characters, characters != 0),
        "linking": _share(linked.argmax(-1) == words, words != len(WORDS)),
    }
    return loss, log


def answering_loss(model: Any, batch: dict[str, Any]) -> tuple[torch.Tensor, dict[str, float]]:
    """Loss of the second phase and what to log."""
    with torch.no_grad():
        image = see(model, batch)
    before, tiles = batch["before"], image.shape[1]
    embed = model.get_input_embeddings()
    text = embed(batch["tokens"])
    joined = torch.cat([text[:, :before], image, text[:, before + 1 :]], dim=1)
    looking: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    hidden = model.model.language_model(
        inputs_embeds=joined,
        position_ids=batch["positions"].expand(-1, len(text), -1),
        use_cache=False,
        looking=looking,
    ).last_hidden_state
    labels, asked, shown = (batch[name][:, before + 1 :] for name in ("labels", "asked", "shown"))
    start = before + tiles - 1
    due = labels != IGNORED
    logits = hidden[:, start:-1][due] @ embed.weight.T
    answer = F.cross_entropy(logits, labels[due])
    # The one placeholder stands for all tiles, so what follows it lies later by the rest of them.
    asked = torch.where(asked > before, asked + tiles - 1, asked)
    shown = torch.where(shown != IGNORED, shown + before, shown)
    asking, asking_right = _guided(*looking[ASK_LAYER], start, asked)
    showing, showing_right = _guided(*looking[SHOW_LAYER], start, shown)
    right = logits.argmax(-1) == labels[due]
    first = (torch.roll(due, 1, dims=1) != due)[due]
    log = {
        "loss": answer.item(),
        "digits": right.float().mean().item(),
        "first_digits": _share(right, first),
        "asking": asking_right,
        "showing": showing_right,
    }
    return answer + 0.5 * (asking + showing), log


def _guided(query: torch.Tensor, key: torch.Tensor, start: int, target: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Loss and hit rate of the first query heads of a layer against the position each row should look at."""
    rows = query[:, :GUIDED_HEADS, start:-1]
    logits = rows @ key[:, :1].transpose(2, 3) * query.shape[-1] ** -0.5
    places = torch.arange(key.shape[2])
    logits = logits.masked_fill(places > places[start:-1, None], -torch.inf).transpose(0, 1)
    wanted = target.expand(GUIDED_HEADS, -1, -1)
    loss = F.cross_entropy(logits.flatten(0, 2), wanted.flatten(), ignore_index=IGNORED)
    return loss, _share(logits.argmax(-1) == wanted, wanted != IGNORED)


def _attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
    looking = options.pop("looking", None)
    if looking is not None and module.layer_idx in (ASK_LAYER, SHOW_LAYER):
        looking[module.layer_idx] = (query, key)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


def _share(hit: torch.Tensor, among: torch.Tensor) -> float:
    return hit[among].float().mean().item()


def rate(step: int, steps: int) -> float:
    """Fraction of the peak learning rate: warm-up, constant, linear fall over the last `DECAY` of the phase."""
    tail = (steps - step) / max(DECAY * steps, 1)
    return min((step + 1) / WARM_UP, 1.0, max(tail, 0.0))


def train(output: Path, state_file: Path, reading: int, answering: int, seed: int) -> None:
    """Run or resume both phases; every `SAVE_EVERY` steps checkpoint and state file are renewed."""
    AttentionInterface.register("sdpa_looking", _attention)
    AttentionMaskInterface.register("sdpa_looking", sdpa_mask)
    tokenizer = checkpoint.build_tokenizer()
    model = checkpoint.build_model(seed)
    model.set_attn_implementation({"text_config": "sdpa_looking"})
    heads = Heads(model.config.text_config.hidden_size)
    parameters = [*model.parameters(), *heads.parameters()]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.05},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.98), fused=True)
    start, elapsed = 0, 0.0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"])
        heads.load_state_dict(state["heads"])
        optimizer.load_state_dict(state["optimizer"])
        start, elapsed = state["step"], state["elapsed"]
    began = time.monotonic() - elapsed
    for step in range(start, reading + answering):
        phase, here, length = ("reading", step, reading) if step < reading else ("answering", step - reading, answering)
        batch = make_batch(step, here / length, tokenizer)
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * rate(here, length)
        loss, log = reading_loss(model, heads, batch) if phase == "reading" else answering_loss(model, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        done, elapsed = step + 1, time.monotonic() - began
        if done % 20 == 0:
            rounded = {name: round(value, 4) for name, value in log.items()}
            size = batch["words"][0].numel()
            row = {"step": done, "seconds": round(elapsed), "image_tokens": size, **rounded}
            _append(state_file.with_name(f"{phase}.csv"), row)
            print(json.dumps(row), flush=True)
        if done % SAVE_EVERY == 0 or done == reading + answering:
            state = {"step": done, "elapsed": elapsed, "model": model.state_dict(), "heads": heads.state_dict()}
            partial = state_file.with_suffix(".partial")
            torch.save(state | {"optimizer": optimizer.state_dict()}, partial)
            partial.replace(state_file)
            checkpoint.save(model, output)


def _append(path: Path, row: dict[str, Any]) -> None:
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, row.keys())
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m ecokv_cli.tiny.train", description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--state", type=Path, required=True, help="resumable state file (weights, optimizer, step)")
    parser.add_argument("--reading", type=int, default=1200, help="steps of the first phase")
    parser.add_argument("--answering", type=int, default=2400, help="steps of the second phase")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    train(options.output, options.state, options.reading, options.answering, options.seed)


if __name__ == "__main__":
    main()
