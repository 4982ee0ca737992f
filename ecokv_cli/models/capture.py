"""One prefill and a greedy answer, with everything a dump needs recorded on the way."""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from ecokv_cli.errors import ModelError
from ecokv_cli.models.attention import recording
from ecokv_cli.models.recording import (
    DecodeRecorder,
    LayerRecord,
    PrefillRecorder,
    recorded_positions,
    recorded_prerope,
)
from ecokv_cli.models.sliding import Held, hold, windows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ecokv_cli.models.loading import LoadedModel


@dataclass
class Captured:
    """Result of `capture`; tensors stay on the model's device until `layer` is asked for.

    Attributes
    ----------
    cache
        The model's own cache: prompt and decoded tokens; of sliding-window layers only their last ones.
    sliding
        What the cache of each sliding-window layer held after the prompt.
    positions
        ``[axes, N]`` position ids of the prompt.
    answer
        Ids of the decoded tokens, end of sequence included if it came.
    ended
        Whether end of sequence came.
    steps
        Decoded tokens that were fed back, whose queries and keys are therefore recorded.
    logits, last
        Logits after the prompt ``[vocabulary]`` and the position ids of its last token, from which decoding starts.
    seconds
        Time of prefill and of decoding.
    """

    cache: DynamicCache
    sliding: dict[int, Held]
    records: dict[int, LayerRecord]
    prerope: dict[int, torch.Tensor]
    positions: torch.Tensor
    prompt_tokens: int
    answer: list[int]
    ended: bool
    steps: int
    logits: torch.Tensor
    last: torch.Tensor
    seconds: dict[str, float]

    def layer(self, index: int) -> tuple[dict[str, torch.Tensor], float]:
        """Tensors of one layer by their dump names, without batch axis, and the softmax scaling.

        Of a sliding-window layer there are only the keys and values that its cache held after the prompt.
        """
        record, cached, n = self.records[index], self.cache.layers[index], self.prompt_tokens
        if index in self.sliding:
            return {"keys": self.sliding[index].keys, "values": self.sliding[index].values}, record.scaling
        keys, values = cached.keys[0], cached.values[0]
        queries = record.window_queries
        empty = queries.new_zeros(queries.shape[0], 0, queries.shape[2])
        tensors = {
            "keys": keys[:, :n],
            "values": values[:, :n],
            "window_queries": queries,
            "decode_queries": torch.stack(record.decode_queries, dim=1) if record.decode_queries else empty,
            "decode_keys": keys[:, n:],
            "decode_values": values[:, n:],
        }
        if record.window_mask is not None:
            tensors["window_mask"] = record.window_mask
        if record.received is not None:
            tensors["received_attention"] = record.received
        if index in self.prerope:
            tensors["prerope_keys"] = self.prerope[index]
        return tensors, record.scaling


@torch.inference_mode()
def capture(
    loaded: LoadedModel,
    inputs: dict[str, Any],
    *,
    window: int,
    decode: int,
    ignore_eos: bool = False,
    received: bool = False,
    prerope: bool = False,
    on_token: Callable[[int], None] | None = None,
) -> Captured:
    """Run one prefill, decode greedily, and record.

    Decoding is plain argmax (no penalties), each token at the position that follows the last one. Every decoded
    token but an end of sequence is fed back, so its query is recorded too.

    Parameters
    ----------
    loaded
        The model.
    inputs
        Processor output for one sample.
    window
        How many of the last prompt queries to keep.
    decode
        Most tokens to decode.
    ignore_eos
        Go on past end of sequence.
    received
        Also sum the attention every position receives from all queries (needs time quadratic in N).
    prerope
        Also keep the keys before rotary embedding.
    on_token
        Called with the number of tokens decoded so far.

    Raises
    ------
    ModelError
        If a layer was not captured exactly once, its cache is not the keys its attention used, every layer is a
        sliding window that is shorter than the prompt, or M-RoPE did not notice an image.
    """
    model = loaded.model
    device = model.device
    inputs = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
    n = inputs["input_ids"].shape[1]
    _forget_rope_deltas(model)
    cache = DynamicCache(config=model.config)
    name = f"{loaded.info.id} ({loaded.info.architecture})"
    windows = windows_of(cache, n + decode, name)
    forward = forward_with(model, cache)
    recorder = PrefillRecorder(window, windows, received=received)
    began = time.monotonic()
    with recorded_positions(model) as seen, recorded_prerope(model, n, enabled=prerope) as before, recording(recorder):
        logits = forward(**inputs)
    prefilled = time.monotonic()
    first = logits[0, -1]
    _check(loaded, recorder.layers, cache, windows, n)
    held = hold(cache, windows)
    last = seen[-1][..., -1:] if seen else torch.tensor([[n - 1]], device=device)
    positions = seen[-1].reshape(-1, n) if seen else torch.arange(n)[None]
    _require_places(loaded, inputs, positions)
    stop = set() if ignore_eos else end_ids(model, loaded.tokenizer)
    answer: list[int] = []
    steps = 0
    with recording(DecodeRecorder(recorder.layers)):
        for step in range(decode):
            token = logits[:, -1:].argmax(-1)
            answer.append(int(token))
            if on_token:
                on_token(len(answer))
            if answer[-1] in stop:
                break
            logits = forward(input_ids=token, position_ids=last + 1 + step)
            steps += 1
    ended = bool(answer) and answer[-1] in stop
    seconds = {"prefill": prefilled - began, "decode": time.monotonic() - prefilled}
    return Captured(
        cache, held, recorder.layers, before, positions.cpu(), n, answer, ended, steps, first, last, seconds
    )


def forward_with(model: Any, cache: DynamicCache) -> Callable[..., torch.Tensor]:
    """The model's forward with the given cache, returning logits of the last position only."""
    known = inspect.signature(type(model).forward).parameters
    # transformers 5.24 renamed past_key_values to cache.
    options: dict[str, Any] = {"cache" if "cache" in known else "past_key_values": cache, "use_cache": True}
    if "logits_to_keep" in known:
        options["logits_to_keep"] = 1

    def call(**inputs: Any) -> torch.Tensor:
        logits: torch.Tensor = model(**inputs, **options).logits
        return logits

    return call


def _forget_rope_deltas(model: Any) -> None:
    """Drop the M-RoPE offset that a previous prompt left on the model."""
    for module in model.modules():
        if getattr(module, "rope_deltas", None) is not None:
            module.rope_deltas = None


def end_ids(model: Any, tokenizer: Any) -> set[int]:
    """Tokens that end an answer."""
    ids = model.generation_config.eos_token_id
    if ids is None:
        ids = tokenizer.eos_token_id
    return set() if ids is None else set(ids) if isinstance(ids, list) else {ids}


def _require_places(loaded: LoadedModel, inputs: Mapping[str, Any], positions: torch.Tensor) -> None:
    """Refuse a run in which an image of several cells was given the positions of a text."""
    grid = inputs.get("image_grid_thw")
    if grid is None or len(positions) == 1 or (positions != positions[0]).any():
        return
    merge = loaded.model.config.vision_config.spatial_merge_size
    if int(grid.prod(dim=1).max()) > merge**2:
        raise ModelError(
            f"{loaded.info.id} ({loaded.info.architecture}): its image tokens have the positions of a text, because "
            f"the chat template does not place images as this model expects; use another --chat-template"
        )


def _check(
    loaded: LoadedModel, records: dict[int, LayerRecord], cache: DynamicCache, windows: Mapping[int, int], n: int
) -> None:
    info = loaded.info
    if sorted(records) != list(range(info.layers)):
        missing = sorted(set(range(info.layers)) - records.keys())
        raise ModelError(
            f"{info.id} ({info.architecture}): layers {missing} were not captured; they do not use transformers' "
            f"attention interface, so the model cannot be analysed"
        )
    for index in records:
        held = min(n, windows[index] - 1) if index in windows else n
        found, wanted = tuple(cache.layers[index].keys.shape), (1, info.kv_heads, held, info.head_dim)
        if found != wanted:
            raise ModelError(
                f"{info.id} ({info.architecture}): layer {index} caches keys of shape {found}, expected {wanted}; "
                f"its cache cannot be analysed"
            )
