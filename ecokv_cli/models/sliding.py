"""Sliding-window layers: which they are, and their attention over long prompts without an N x N mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ecokv_cli.errors import ModelError

if TYPE_CHECKING:
    from transformers import DynamicCache

BLOCK = 1024
"""Queries per block; up to here the model's own mask is used, which is at most 1 MiB then."""


@dataclass(frozen=True)
class Held:
    """What the cache of a sliding-window layer holds after the prompt: its last ``window - 1`` positions.

    Attributes
    ----------
    window
        Positions that a query sees, its own included.
    keys, values
        ``[H, min(N, window - 1), D]``, keys after rotary embedding.
    """

    window: int
    keys: torch.Tensor
    values: torch.Tensor


def windows_of(cache: DynamicCache, length: int, model: str) -> dict[int, int]:
    """Sliding-window layers of a model and their windows, for a prompt and answer of `length` positions together.

    In a model that also has full layers all its sliding ones count, however short the prompt: they are made for another
    purpose and belong in no average with the full ones. In a model that has nothing else none counts where the window
    is longer than everything it is given, because then they all are full attention.

    Parameters
    ----------
    cache
        Made for the model, still empty.
    length
        Prompt and tokens to decode.
    model
        Its name, for the error.

    Raises
    ------
    ModelError
        If all layers have windows, and those leave out a part of the prompt or answer.
    """
    windows = {i: layer.sliding_window for i, layer in enumerate(cache.layers) if layer.is_sliding}
    if len(windows) < len(cache.layers):
        return windows
    shortest = min(windows.values())
    if length < shortest:
        return {}
    raise ModelError(
        f"{model}: every layer is a sliding window of {shortest} and prompt and answer may be {length} tokens, so no "
        f"layer keeps the whole prompt; shorten the prompt, lower --decode, or choose a model with full attention"
    )


def hold(cache: DynamicCache, windows: dict[int, int]) -> dict[int, Held]:
    """Copies of what the sliding-window layers hold now."""
    return {
        i: Held(window, cache.layers[i].keys[0].clone(), cache.layers[i].values[0].clone())
        for i, window in windows.items()
    }


def mask_or_none(**options: Any) -> torch.Tensor | None:
    """The mask transformers asks for; None for a long prompt in sliding-window layers, which `in_blocks` then does.

    Only where the pattern is nothing but causal and sliding: a mask that lets image tokens see each other stays whole.
    """
    # Older transformers 5 give the positions of the queries, newer ones their number.
    queries = options["q_length"] if "q_length" in options else len(options["cache_position"])
    padding = options.get("attention_mask")
    plain = options.get("allow_is_causal_skip", True) and (padding is None or bool(padding.all()))
    if plain and options.get("local_size") and BLOCK < queries == options["kv_length"]:
        return None
    mask: torch.Tensor | None = sdpa_mask(**options)
    return mask


def needs_blocks(query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, window: int) -> bool:
    """Whether this is a layer whose mask `mask_or_none` left to `in_blocks`."""
    return mask is None and max(window, BLOCK + 1) <= query.shape[2] == key.shape[2]


def in_blocks(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int, options: dict[str, Any]
) -> tuple[torch.Tensor, None]:
    """Causal attention over the last `window` positions, `BLOCK` queries at a time.

    Query t sees keys t - window + 1 to t. Memory grows with N and not with N x N.

    Parameters
    ----------
    module
        The attention layer.
    query, key, value
        ``[1, H_q, N, D]``, ``[1, H, N, D]`` and ``[1, H, N, Dv]``.
    window
        Positions a query sees, its own included.
    options
        Passed on to transformers' sdpa.

    Returns
    -------
    tuple
        ``[1, N, H_q, Dv]``, and None in place of attention weights.
    """
    n = query.shape[2]
    positions = torch.arange(n, device=query.device)
    outputs = []
    for start in range(0, n, BLOCK):
        end, first = min(start + BLOCK, n), max(start - window + 1, 0)
        distance = positions[start:end, None] - positions[first:end]
        seen = (distance >= 0) & (distance < window)
        part = (query[:, :, start:end], key[:, :, first:end], value[:, :, first:end])
        outputs.append(sdpa_attention_forward(module, *part, seen[None, None], **options)[0])
    return torch.cat(outputs, dim=1), None
