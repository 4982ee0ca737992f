"""Which models can be analysed: those whose every layer is ordinary self-attention over cached keys."""

from __future__ import annotations

from typing import Any

from ecokv_cli.errors import ModelError


def require_supported(model: Any) -> None:
    """Refuse a model whose cache is not one key and value per position and KV head.

    Raises
    ------
    ModelError
        Naming the architecture and the reason.
    """
    config = model.config.get_text_config(decoder=True)
    reason = _obstacle(model, config)
    if reason:
        raise ModelError(f"{type(model).__name__}: {reason}, so its cache cannot be analysed; choose another model")


def _obstacle(model: Any, config: Any) -> str:
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    checks = {
        "it is an encoder-decoder": getattr(config, "is_encoder_decoder", False),
        "it caches a compressed latent (multi-head latent attention)": getattr(config, "kv_lora_rank", None),
        "it has cross-attention layers": getattr(config, "cross_attention_layers", None),
        f"it has layers of kind {', '.join(sorted(kinds))}": kinds,
        "it attends in chunks": getattr(config, "attention_chunk_size", None),
        "it shares keys between layers": getattr(config, "num_kv_shared_layers", None),
        "its attention cannot run as scaled dot products": not getattr(model, "_supports_sdpa", False),
        "its attention does not use transformers' attention interface": not model._can_set_attn_implementation(),  # noqa: SLF001
    }
    return next((reason for reason, holds in checks.items() if holds), "")
