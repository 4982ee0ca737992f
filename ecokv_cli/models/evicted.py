"""Decoding on an evicted cache: really smaller tensors, original positions, one mask per head where heads differ."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from ecokv_cli.models.attention import switch_attention, use_backend
from ecokv_cli.models.capture import end_ids, forward_with

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ecokv_cli.eviction.memory import Memory
    from ecokv_cli.eviction.selection import Selection
    from ecokv_cli.models.capture import Captured
    from ecokv_cli.models.loading import LoadedModel

BACKENDS = {"sdpa": "ecokv_sdpa_evicted", "eager": "ecokv_eager_evicted"}


@dataclass(frozen=True)
class Evicted:
    """The prompt part of one layer's cache after eviction.

    Attributes
    ----------
    keys, values
        ``[1, H, K, D]`` and ``[1, H, K, Dv]``, K the longest head of the layer.
    valid
        ``[H, K]`` bool, False where a shorter head is padded; None if none is.
    memory
        What remembers the evicted, for methods that have such a thing.
    sliding
        Whether this is a sliding-window layer, from which nothing is evicted.
    """

    keys: torch.Tensor
    values: torch.Tensor
    valid: torch.Tensor | None
    memory: Memory | None
    sliding: bool = False

    @property
    def bytes(self) -> int:
        """Size of everything that has to be kept."""
        tensors = [self.keys, self.values, self.valid]
        if self.memory:
            tensors += [self.memory.state, self.memory.normaliser, self.memory.share]
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


@dataclass(frozen=True)
class Decoding:
    """A greedy answer on some cache.

    Attributes
    ----------
    ids
        Decoded tokens, end of sequence included if it came.
    ended
        Whether end of sequence came.
    logits
        ``[steps, vocabulary]`` of every forward pass, if asked for.
    seconds
        Time of all forward passes.
    cache_bytes
        Size of the prompt's cache, all layers.
    """

    ids: list[int]
    ended: bool
    logits: torch.Tensor | None
    seconds: float
    cache_bytes: int


def compact(captured: Captured, index: int, selection: Selection) -> Evicted:
    """Gather what a selection keeps of one layer's prompt cache."""
    layer, n = captured.cache.layers[index], captured.prompt_tokens
    return gathered(layer.keys[:, :, :n], layer.values[:, :, :n], selection)


def gathered(keys: torch.Tensor, values: torch.Tensor, selection: Selection) -> Evicted:
    """What a selection keeps of keys ``[1, H, N, D]`` and values ``[1, H, N, Dv]``; the same tensors if that is all."""
    if bool(selection.mask.all()):
        return Evicted(keys, values, None, None)
    positions, valid = selection.indices()
    keys, values = (t.gather(2, positions[None, ..., None].expand(-1, -1, -1, t.shape[-1])) for t in (keys, values))
    return Evicted(keys, values, None if bool(valid.all()) else valid, selection.memory)


def untouched(captured: Captured, index: int) -> Evicted:
    """A sliding-window layer with what its cache held after the prompt."""
    held = captured.sliding[index]
    return Evicted(held.keys[None], held.values[None], None, None, sliding=True)


def masked(captured: Captured, index: int, selection: Selection) -> Evicted:
    """The same on the full tensors: everything stays in place and the evicted are masked; for proofs, saves nothing."""
    layer, n = captured.cache.layers[index], captured.prompt_tokens
    return Evicted(layer.keys[:, :, :n], layer.values[:, :, :n], selection.mask, selection.memory)


@torch.inference_mode()
def decode_evicted(
    loaded: LoadedModel,
    captured: Captured,
    layers: Sequence[Evicted],
    steps: int,
    *,
    ignore_eos: bool = False,
    keep_logits: bool = False,
    forced: Sequence[int] = (),
) -> Decoding:
    """Decode greedily from the end of the prompt on an evicted cache.

    Every decoded token stands at the position that follows on the full prompt, M-RoPE included; nothing is renumbered.

    Parameters
    ----------
    loaded
        The model.
    captured
        Its prefill; left as it is.
    layers
        One entry per decoder layer; of sliding-window layers what `untouched` gives.
    steps
        Most tokens to decode.
    ignore_eos
        Go on past end of sequence.
    keep_logits
        Return the logits of every pass.
    forced
        Tokens to feed instead of the decoded ones, for comparisons of logits.

    Returns
    -------
    Decoding
        The answer; its first token comes from the prefill, which is the same for every method.
    """
    cache = DynamicCache(config=loaded.model.config)
    for index, layer in enumerate(layers):
        cache.update(layer.keys, layer.values, index)
        if layer.sliding:
            cache.layers[index].cumulative_length = captured.prompt_tokens
    forward = forward_with(loaded.model, cache)
    stop = set() if ignore_eos else end_ids(loaded.model, loaded.tokenizer)
    ids, seen = [int(captured.logits.argmax())], []
    began = time.monotonic()
    with evicted_attention(loaded, layers):
        while len(ids) < steps and ids[-1] not in stop:
            fed = forced[len(ids) - 1] if forced else ids[-1]
            token = torch.tensor([[fed]], device=captured.logits.device)
            logits = forward(input_ids=token, position_ids=captured.last + len(ids))[0, -1]
            ids.append(int(logits.argmax()))
            if keep_logits:
                seen.append(logits)
    return Decoding(
        ids[:steps], ids[-1] in stop, torch.stack(seen) if seen else None, time.monotonic() - began,
        sum(layer.bytes for layer in layers),
    )  # fmt: skip


class Entries(Protocol):
    """What a decoding step has to know of one layer's cache: padding and memory, as in `Evicted`."""

    @property
    def valid(self) -> torch.Tensor | None: ...  # noqa: D102
    @property
    def memory(self) -> Memory | None: ...  # noqa: D102


_active: ContextVar[Sequence[Entries]] = ContextVar("ecokv_evicted")


@contextmanager
def reading(layers: Sequence[Entries]) -> Iterator[None]:
    """Inside the block the attention switched on by `use_evicted` reads caches that are described by `layers`."""
    token = _active.set(layers)
    try:
        yield
    finally:
        _active.reset(token)


@contextmanager
def evicted_attention(loaded: LoadedModel, layers: Sequence[Evicted]) -> Iterator[None]:
    """Inside the block the model's attention knows which entries of its cache are padding, and reads memories."""
    use_evicted(loaded.model, loaded.backend)
    try:
        with reading(layers):
            yield
    finally:
        use_backend(loaded.model, loaded.backend)


def use_evicted(model: Any, backend: str) -> None:
    """Switch the decoder layers of `model` to the form of `backend` that decodes on evicted caches."""
    AttentionInterface.register("ecokv_sdpa_evicted", _sdpa)
    AttentionInterface.register("ecokv_eager_evicted", _eager)
    AttentionMaskInterface.register("ecokv_sdpa_evicted", sdpa_mask)
    AttentionMaskInterface.register("ecokv_eager_evicted", eager_mask)
    switch_attention(model, BACKENDS[backend])


def _sdpa(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:  # noqa: ARG001
    layer = _active.get()[module.layer_idx]
    mask = _head_mask(layer, query, key)
    output, weights = sdpa_attention_forward(module, query, key, value, mask, **options)
    return _with_memory(layer, query, output), weights


def _eager(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:  # noqa: ARG001
    layer = _active.get()[module.layer_idx]
    mask = _head_mask(layer, query, key)
    added = None
    if mask is not None:
        added = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, torch.finfo(query.dtype).min)
    own = sys.modules[type(module).__module__].eager_attention_forward
    output, weights = own(module, query, key, value, added, **options)
    return _with_memory(layer, query, output), weights


def _head_mask(layer: Entries, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """``[1, H_q, 1, K + t]``: kept prompt entries and everything decoded since; None if all may be seen.

    The one query of a step sees whatever its layer's cache holds, in sliding-window layers too; transformers' own mask
    goes by the length of another layer and is not used.
    """
    if layer.valid is None:
        return None
    decoded = key.shape[2] - layer.valid.shape[1]
    seen = torch.cat([layer.valid, layer.valid.new_ones(len(layer.valid), decoded)], dim=1)
    return seen.repeat_interleave(query.shape[1] // len(seen), dim=0)[None, :, None]


def _with_memory(layer: Entries, query: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """`output` ``[1, 1, H_q, Dv]`` with the memory of the evicted blended in."""
    if layer.memory is None:
        return output
    kv_heads = len(layer.memory.share)
    grouped = query[0, :, 0].view(kv_heads, -1, query.shape[-1])
    exact = output[0, 0].view(kv_heads, grouped.shape[1], -1)
    blended = layer.memory.blend(grouped.float(), exact.double())
    return blended.to(output.dtype).reshape(output.shape)
