"""What a model is watched with while it runs: recorders of its attention calls, hooks on its modules."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ecokv_cli.errors import ModelError
from ecokv_cli.models.received import received_attention

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


@dataclass
class LayerRecord:
    """What the attention calls of one layer have shown so far."""

    window_queries: torch.Tensor
    window_mask: torch.Tensor | None
    scaling: float
    received: torch.Tensor | None
    decode_queries: list[torch.Tensor] = field(default_factory=list)


class PrefillRecorder:
    """Keeps the last `window` queries of every layer, and received attention of the full ones if asked."""

    def __init__(self, window: int, sliding: Collection[int], *, received: bool) -> None:
        self.window = window
        self.sliding = sliding
        self.received = received
        self.layers: dict[int, LayerRecord] = {}

    def see(self, module: Any, query: torch.Tensor, key: torch.Tensor, mask: Any, options: dict[str, Any]) -> None:
        """Record one prefill call."""
        index = module.layer_idx
        if index in self.layers:
            raise ModelError(f"layer {index} attends more than once per step, so its cache cannot be analysed")
        n, full, window = query.shape[2], index not in self.sliding, options.get("sliding_window")
        if full and window is not None and n >= window:
            raise ModelError(f"layer {index} attends to the last {window} positions only and caches all {n}")
        scaling = float(options.get("scaling") or query.shape[-1] ** -0.5)
        first = max(n - self.window, 0)
        last = query[0, :, first:].clone(memory_format=torch.contiguous_format)
        received = received_attention(query[0], key[0], mask, scaling) if self.received and full else None
        self.layers[index] = LayerRecord(last, _beyond_causal(mask, first), scaling, received)


def _beyond_causal(mask: torch.Tensor | None, first: int) -> torch.Tensor | None:
    """Which of the positions from `first` on see which, ``[W, W]`` bool; None where each sees no later one.

    Masks of transformers are ``[1, 1, N, N]``: bool, True where seen, or added to logits, 0 where seen.
    """
    if mask is None:
        return None
    corner = mask[0, 0, first:, first : mask.shape[2]]
    seen = corner if corner.dtype == torch.bool else corner == 0
    return seen.clone() if seen.triu(1).any() else None


class DecodeRecorder:
    """Appends the query of each decoded token to the layers of a prefill."""

    def __init__(self, layers: dict[int, LayerRecord]) -> None:
        self.layers = layers

    def see(self, module: Any, query: torch.Tensor, key: torch.Tensor, mask: Any, options: dict[str, Any]) -> None:  # noqa: ARG002
        """Record one decoding call."""
        self.layers[module.layer_idx].decode_queries.append(query[0, :, -1].clone())


def rotary_embeddings(model: Any) -> list[Any]:
    """The modules of a decoder that turn position ids into rotations; none where positions are learned."""
    return [m for m in model.get_decoder().modules() if type(m).__name__.endswith("RotaryEmbedding")]


@contextmanager
def recorded_positions(model: Any) -> Iterator[list[torch.Tensor]]:
    """Position ids that the decoder's rotary embedding is given; the one place where every model has them right."""
    seen: list[torch.Tensor] = []

    def note(_: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        found = options.get("position_ids", arguments[1] if len(arguments) > 1 else None)
        if isinstance(found, torch.Tensor):
            seen.append(found)

    handles = [m.register_forward_pre_hook(note, with_kwargs=True) for m in rotary_embeddings(model)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def recorded_prerope(model: Any, positions: int, *, enabled: bool) -> Iterator[dict[int, torch.Tensor]]:
    """Keys of N = `positions` before rotary embedding, ``[H, N, D]``: what each layer's key norm or projection gives.

    Raises
    ------
    ModelError
        If a layer has neither.
    """
    keys: dict[int, torch.Tensor] = {}
    handles = []
    for module in model.get_decoder().modules() if enabled else ():
        if not hasattr(module, "layer_idx") or not hasattr(module, "head_dim"):
            continue
        source = getattr(module, "k_norm", None) or getattr(module, "k_proj", None)
        if source is None:
            raise ModelError(
                f"{type(model).__name__}: layer {module.layer_idx} has no key projection of its own, so keys before "
                f"rotary embedding cannot be recorded; leave out --prerope-keys"
            )

        def note(
            _: Any,
            given: tuple[Any, ...],
            output: torch.Tensor,
            index: int = module.layer_idx,
            dim: int = module.head_dim,
        ) -> None:
            # A norm is given heads of positions or, where they were already swapped, positions of heads.
            swapped = output.dim() == 4 and not given[0].is_contiguous()
            rows = output[0].transpose(0, 1) if swapped else output[0]
            keys[index] = rows.reshape(positions, -1, dim).transpose(0, 1)

        handles.append(source.register_forward_hook(note))
    try:
        yield keys
    finally:
        for handle in handles:
            handle.remove()
