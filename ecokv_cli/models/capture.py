"""One prefill and a greedy answer, with everything a dump needs recorded on the way."""

from __future__ import annotations

import inspect
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from ecokv_cli.errors import ModelError
from ecokv_cli.models.attention import recording
from ecokv_cli.models.received import received_attention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ecokv_cli.models.loading import LoadedModel


@dataclass
class _LayerRecord:
    """What the attention calls of one layer have shown so far."""

    window_queries: torch.Tensor
    scaling: float
    received: torch.Tensor | None
    decode_queries: list[torch.Tensor] = field(default_factory=list)


class _PrefillRecorder:
    """Keeps the last `window` queries of every layer, and received attention if asked."""

    def __init__(self, window: int, *, received: bool) -> None:
        self.window = window
        self.received = received
        self.layers: dict[int, _LayerRecord] = {}

    def see(self, module: Any, query: torch.Tensor, key: torch.Tensor, mask: Any, options: dict[str, Any]) -> None:
        """Record one prefill call."""
        index = module.layer_idx
        if index in self.layers:
            raise ModelError(f"layer {index} attends more than once per step, so its cache cannot be analysed")
        n = query.shape[2]
        sliding = options.get("sliding_window")
        if sliding is not None and n > sliding:
            raise ModelError(
                f"layer {index} attends to the last {sliding} of {n} positions only (sliding window); "
                f"give a prompt of at most {sliding} tokens"
            )
        scaling = float(options.get("scaling") or query.shape[-1] ** -0.5)
        last = query[0, :, max(n - self.window, 0) :].clone(memory_format=torch.contiguous_format)
        received = received_attention(query[0], key[0], mask, scaling) if self.received else None
        self.layers[index] = _LayerRecord(last, scaling, received)


class _DecodeRecorder:
    """Appends the query of each decoded token to the layers of a prefill."""

    def __init__(self, layers: dict[int, _LayerRecord]) -> None:
        self.layers = layers

    def see(self, module: Any, query: torch.Tensor, key: torch.Tensor, mask: Any, options: dict[str, Any]) -> None:  # noqa: ARG002
        """Record one decoding call."""
        self.layers[module.layer_idx].decode_queries.append(query[0, :, -1].clone())


@dataclass
class Captured:
    """Result of `capture`; tensors stay on the model's device until `layer` is asked for.

    Attributes
    ----------
    cache
        The model's own cache: prompt and decoded tokens.
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
    records: dict[int, _LayerRecord]
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
        """Tensors of one layer by their dump names, without batch axis, and the softmax scaling."""
        record, cached, n = self.records[index], self.cache.layers[index], self.prompt_tokens
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
        If a layer was not captured exactly once, or its cache is not the keys its attention used.
    """
    model = loaded.model
    device = model.device
    inputs = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
    n = inputs["input_ids"].shape[1]
    _forget_rope_deltas(model)
    cache = DynamicCache()
    forward = forward_with(model, cache)
    recorder = _PrefillRecorder(window, received=received)
    began = time.monotonic()
    with _recorded_positions(model) as seen, _recorded_prerope(model, enabled=prerope) as before, recording(recorder):
        logits = forward(**inputs)
    prefilled = time.monotonic()
    first = logits[0, -1]
    _check(loaded, recorder.layers, cache, n)
    last = seen[-1][..., -1:] if seen else torch.tensor([[n - 1]], device=device)
    positions = seen[-1].reshape(-1, n) if seen else torch.arange(n)[None]
    stop = set() if ignore_eos else end_ids(model, loaded.tokenizer)
    answer: list[int] = []
    steps = 0
    with recording(_DecodeRecorder(recorder.layers)):
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
    return Captured(cache, recorder.layers, before, positions.cpu(), n, answer, ended, steps, first, last, seconds)


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
    ids = model.generation_config.eos_token_id
    if ids is None:
        ids = tokenizer.eos_token_id
    return set() if ids is None else set(ids) if isinstance(ids, list) else {ids}


@contextmanager
def _recorded_positions(model: Any) -> Iterator[list[torch.Tensor]]:
    """Position ids that the decoder's rotary embedding is given; the one place where every model has them right."""
    seen: list[torch.Tensor] = []

    def note(_: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        found = options.get("position_ids", arguments[1] if len(arguments) > 1 else None)
        if isinstance(found, torch.Tensor):
            seen.append(found)

    rotary = [m for m in model.get_decoder().modules() if type(m).__name__.endswith("RotaryEmbedding")]
    handles = [m.register_forward_pre_hook(note, with_kwargs=True) for m in rotary]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _recorded_prerope(model: Any, *, enabled: bool) -> Iterator[dict[int, torch.Tensor]]:
    """Keys before rotary embedding: the output of each layer's key norm, or of its key projection."""
    keys: dict[int, torch.Tensor] = {}
    handles = []
    for module in model.get_decoder().modules() if enabled else ():
        source = getattr(module, "k_norm", None) or getattr(module, "k_proj", None)
        if source is None or not hasattr(module, "layer_idx"):
            continue

        def note(
            _: Any, __: Any, output: torch.Tensor, index: int = module.layer_idx, dim: int = module.head_dim
        ) -> None:
            keys[index] = output[0].reshape(output.shape[1], -1, dim).transpose(0, 1)

        handles.append(source.register_forward_hook(note))
    try:
        yield keys
    finally:
        for handle in handles:
            handle.remove()


def _check(loaded: LoadedModel, records: dict[int, _LayerRecord], cache: DynamicCache, n: int) -> None:
    info = loaded.info
    if sorted(records) != list(range(info.layers)):
        missing = sorted(set(range(info.layers)) - records.keys())
        raise ModelError(
            f"{info.id} ({info.architecture}): layers {missing} were not captured; they do not use transformers' "
            f"attention interface, so the model cannot be analysed"
        )
    for index in records:
        found, wanted = tuple(cache.layers[index].keys.shape[:3]), (1, info.kv_heads, n)
        if found != wanted:
            raise ModelError(
                f"{info.id} ({info.architecture}): layer {index} caches keys of shape {found}, expected {wanted}; "
                f"its cache cannot be analysed"
            )
