"""How many positions a model was made for, and what happens beyond them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ecokv_cli.errors import InputError
from ecokv_cli.models.recording import rotary_embeddings

if TYPE_CHECKING:
    from ecokv_cli.models.capture import Captured
    from ecokv_cli.models.loading import LoadedModel

_WAY_OUT = "give a smaller image (--max-pixels) or a shorter prompt, or lower --decode"


def position_limit(config: Any) -> int | None:
    """Most positions by a model's configuration, scaled rotary embeddings included; None where it names none."""
    text = config.get_text_config(decoder=True)
    limit: int | None = getattr(text, "max_position_embeddings", None)
    rope = getattr(text, "rope_parameters", None) or {}
    scaled = rope.get("factor", 1) * rope.get("original_max_position_embeddings", 0)
    return None if limit is None else max(limit, int(scaled))


def require_room(loaded: LoadedModel, tokens: int, images: int, decode: int) -> None:
    """Refuse a prompt and answer that need more positions than there are, where positions are learned one by one.

    Parameters
    ----------
    loaded
        The model.
    tokens, images
        Prompt positions, and how many of them are image tokens.
    decode
        Most tokens to decode.

    Raises
    ------
    InputError
        Naming all of these and the limit.
    """
    limit = position_limit(loaded.model.config)
    if limit is not None and tokens + decode > limit and not rotary_embeddings(loaded.model):
        raise InputError(
            f"{loaded.info.id}: the prompt is {tokens} tokens ({images} of images) and up to {decode} are decoded, the "
            f"model has {limit} positions; {_WAY_OUT}"
        )


def beyond_limit(loaded: LoadedModel, captured: Captured) -> str:
    """One line where rotary positions go on beyond what the model was made for; empty elsewhere."""
    limit, needed = position_limit(loaded.model.config), int(captured.last.max()) + 1 + captured.steps
    if limit is None or needed <= limit:
        return ""
    return (
        f"{loaded.info.id}: positions go up to {needed} and the model was made for {limit}; numbers from beyond may "
        f"mean little: {_WAY_OUT}"
    )
