"""Which models can be analysed: those whose every layer is ordinary self-attention over cached keys."""

from __future__ import annotations

from typing import Any

from ecokv_cli.errors import ModelError

KINDS = {"full_attention", "sliding_attention", "attention"}
"""Kinds of layers, in transformers' words, that cache one key and value per position and KV head."""


def require_supported_config(config: Any) -> None:
    """Refuse by its configuration, before any weights are read, a model that keeps another kind of cache.

    Raises
    ------
    ModelError
        Naming the architecture and the reason.
    """
    text = config.get_text_config(decoder=True)
    name = next(iter(getattr(config, "architectures", None) or ()), config.model_type)
    kinds = list(getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ())
    crossed = getattr(text, "cross_attention_layers", None)
    queries, kv_heads, head_dim = (_one(text, n) for n in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    by_layer = any(isinstance(count, list | tuple) for count in (queries, kv_heads, head_dim))
    odd = [i for i, kind in enumerate(kinds) if kind not in KINDS]
    checks = {
        "it is an encoder-decoder, whose cache is split between two kinds of attention": getattr(
            config, "is_encoder_decoder", False
        ),
        "it caches a compressed latent instead of keys (multi-head latent attention)": getattr(
            text, "kv_lora_rank", None
        ),
        f"layers {_listed(crossed)} attend to the image by cross-attention, so image tokens are in no cache of the "
        f"prompt": crossed,
        f"layers {_listed(odd)} are {', '.join(sorted({kinds[i] for i in odd}))}, which cache no keys per position": odd
        and "chunked_attention" not in kinds,
        "it attends within chunks of the prompt": getattr(text, "attention_chunk_size", None),
        "some of its layers use the keys of others": getattr(text, "num_kv_shared_layers", None),
        "it caps its attention logits, which scaled dot products cannot": getattr(text, "attn_logit_softcapping", None),
        "its layers have different numbers or sizes of heads": by_layer,
        f"its {queries} query heads cannot be shared out evenly among {kv_heads} KV heads": not by_layer
        and queries
        and kv_heads
        and queries % kv_heads,
    }
    _refuse(name, checks)


def _one(text: Any, name: str) -> Any:
    """A setting of all layers; an empty list where it differs between them, which some configurations refuse to say."""
    try:
        return getattr(text, name, None)
    except RuntimeError:
        return []


def require_supported(model: Any) -> None:
    """Refuse a model whose attention cannot be watched.

    Raises
    ------
    ModelError
        Naming the architecture and the reason.
    """
    capped = any(not getattr(part, "_supports_sdpa", True) for part in model.modules())
    checks = {
        "it keeps a state instead of keys": getattr(model, "_is_stateful", False),
        "its attention does not use transformers' attention interface": not model._can_set_attn_implementation(),  # noqa: SLF001
        "its attention is more than scaled dot products, such as sinks": capped,
    }
    _refuse(type(model).__name__, checks)


def _refuse(name: str, checks: dict[str, Any]) -> None:
    reason = next((reason for reason, holds in checks.items() if holds), "")
    if reason:
        raise ModelError(f"{name}: {reason}; its cache cannot be analysed, choose another model")


def _listed(layers: list[int] | None) -> str:
    """Layer numbers, no more than four of them."""
    shown = list(map(str, layers or ()))
    return ", ".join(shown if len(shown) <= 4 else [*shown[:3], f"... {shown[-1]}"])
