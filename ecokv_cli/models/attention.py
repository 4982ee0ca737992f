"""Attention functions registered with transformers that let a recorder see the queries.

Recording happens inside the model's own attention call, after rotary embedding, on tensors it has anyway: no
attention matrix is ever asked for, so memory grows with N and not with N x N.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask

from ecokv_cli.errors import UsageError
from ecokv_cli.models.sliding import in_blocks, mask_or_none, needs_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

# The name must contain "sdpa": transformers then refuses models whose attention sdpa cannot express (soft-capping,
# sinks) instead of letting them run wrongly.
BACKENDS = {"sdpa": "ecokv_sdpa", "eager": "ecokv_eager"}


class Recorder(Protocol):
    """What an attention call is shown to."""

    def see(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        mask: torch.Tensor | None,
        options: dict[str, Any],
    ) -> None:
        """Look at one layer's query ``[1, H_q, n, D]`` and key ``[1, H, N, D]``, both after rotary embedding."""


_active: ContextVar[Recorder | None] = ContextVar("ecokv_recorder", default=None)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Show every attention call inside the block to `recorder`."""
    token = _active.set(recorder)
    try:
        yield
    finally:
        _active.reset(token)


def _show(module: Any, query: Any, key: Any, mask: Any, options: dict[str, Any]) -> None:
    recorder = _active.get()
    if recorder is not None:
        recorder.see(module, query, key, mask, options)


def _sdpa(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
    _show(module, query, key, attention_mask, options)
    window = options.get("sliding_window")
    if window is not None and needs_blocks(query, key, attention_mask, window):
        return in_blocks(module, query, key, value, window, options)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


def _eager(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
    _show(module, query, key, attention_mask, options)
    own = sys.modules[type(module).__module__].eager_attention_forward
    return own(module, query, key, value, attention_mask, **options)


def use_backend(model: Any, backend: str) -> None:
    """Switch the decoder layers of `model` to the recording form of `backend`; the vision tower is left alone.

    Raises
    ------
    UsageError
        If the back-end has no recording form.
    """
    if backend not in BACKENDS:
        raise UsageError(f"--attn-implementation {backend}: not supported, choose {' or '.join(BACKENDS)}")
    AttentionInterface.register("ecokv_sdpa", _sdpa)
    AttentionInterface.register("ecokv_eager", _eager)
    # Without a registered mask function transformers silently builds none at all.
    AttentionMaskInterface.register("ecokv_sdpa", mask_or_none)
    AttentionMaskInterface.register("ecokv_eager", eager_mask)
    switch_attention(model, BACKENDS[backend])


def switch_attention(model: Any, name: str) -> None:
    """Let the decoder layers of `model` use the attention function registered as `name`."""
    nested = "text_config" in getattr(model.config, "sub_configs", {})
    model.set_attn_implementation({"text_config": name} if nested else name)
