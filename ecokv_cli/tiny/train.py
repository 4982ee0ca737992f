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

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ecokv_cli.tiny import checkpoint
from ecokv_cli.tiny.batches import IGNORED, make_batch
from ecokv_cli.tiny.documents import ALPHABET, WORDS

PEAK_RATE = 1.5e-3
WARM_UP = 100
DECAY = 0.3
SAVE_EVERY = 200
ASK_LAYER, SHOW_LAYER = 1, 3
GUIDED_HEADS = 2


class Heads(torch.nn.Module):
    """Read-outs of an image token: two characters, key word (last class = none), place in the number."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.reading = torch.nn.Linear(hidden, 2 * len(ALPHABET))
        self.linking = torch.nn.Linear(hidden, len(WORDS) + 1)
        self.place = torch.nn.Linear(hidden, 4)


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
