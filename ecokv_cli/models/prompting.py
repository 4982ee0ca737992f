"""From images and a prompt to model inputs, through the model's own chat template."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ecokv_cli.errors import InputError, ModelError, UsageError
from ecokv_cli.sample.prompts import check_control_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL.Image import Image

    from ecokv_cli.models.loading import LoadedModel


@dataclass(frozen=True)
class Prepared:
    """Inputs of one prefill.

    Attributes
    ----------
    inputs
        What the processor returned: ``input_ids [1, N]`` and whatever the images need.
    rendered_sha256
        Digest of the rendered template.
    """

    inputs: dict[str, Any]
    rendered_sha256: str


def prepare(loaded: LoadedModel, images: Sequence[Image], prompt: str, *, template: bool = True) -> Prepared:
    """Render the chat template and process the images.

    Parameters
    ----------
    loaded
        The model.
    images
        RGB images, placed before the prompt in order.
    prompt
        What the user asks; control tokens of the model are refused.
    template
        False feeds the prompt as it is, after one placeholder per image.

    Raises
    ------
    UsageError
        If the prompt holds a control token, or there is neither image nor text.
    InputError
        If the model takes no images, or the images cannot be processed.
    ModelError
        If the model has no chat template.
    """
    if images and not loaded.multimodal:
        raise InputError(
            f"{loaded.info.id} ({loaded.info.architecture}) takes no images and {len(images)} were given; "
            f"leave them out, or choose a multimodal model"
        )
    check_control_tokens(prompt, control_tokens(loaded))
    rendered = _rendered(loaded, len(images), prompt) if template else _plain(loaded, len(images), prompt)
    _require_each_image_placed(loaded, len(images), rendered)
    bos = getattr(loaded.tokenizer, "bos_token", None)
    options: dict[str, Any] = {"return_tensors": "pt"}
    if bos and rendered.startswith(bos):
        options["add_special_tokens"] = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of transformers' own code, which nobody here can help
            if loaded.multimodal:
                inputs = loaded.processor(text=[rendered], images=list(images) or None, **options)
            else:
                inputs = loaded.tokenizer([rendered], **options)
    except (ValueError, IndexError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{loaded.info.id}: its processor refuses the input ({reason})") from error
    if inputs["input_ids"].shape[-1] == 0:
        raise UsageError("the prompt gives no tokens; write one with --prompt")
    # Some processors (PaliGemma's) always add training labels; with them the model would compute a loss.
    wanted = {name: value for name, value in inputs.items() if name != "labels"}
    return Prepared(wanted, hashlib.sha256(rendered.encode()).hexdigest())


def control_tokens(loaded: LoadedModel) -> list[str]:
    """Strings that the tokenizer turns into control tokens, wherever they stand in a text."""
    added = loaded.tokenizer.added_tokens_decoder.values()
    names = {str(token) for token in added if token.special} | set(loaded.tokenizer.all_special_tokens)
    placeholder = getattr(loaded.processor, "image_token", None)
    return sorted(names | ({placeholder} if placeholder else set()))


def _rendered(loaded: LoadedModel, images: int, prompt: str) -> str:
    holder = loaded.processor if getattr(loaded.processor, "chat_template", None) else loaded.tokenizer
    if not getattr(holder, "chat_template", None):
        raise ModelError(f"{loaded.info.id}: has no chat template; add --no-chat-template to feed the prompt as it is")
    content: Any = prompt
    if loaded.multimodal:
        content = [{"type": "image"}] * images + [{"type": "text", "text": prompt}]
    text = holder.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    return str(text)


def _plain(loaded: LoadedModel, images: int, prompt: str) -> str:
    # The Qwen family finds an image by the token before it.
    around = [getattr(loaded.model.config, f"vision_{end}_token_id", None) for end in ("start", "end")]
    before, after = ("" if i is None else loaded.tokenizer.convert_ids_to_tokens(i) for i in around)
    return f"{before}{_placeholder(loaded)}{after}" * images + prompt


def _placeholder(loaded: LoadedModel) -> str:
    """What stands for an image in a rendered prompt; empty where the processor does not say."""
    # Gemma's templates place images with a token that its processor turns into image tokens.
    return getattr(loaded.processor, "boi_token", None) or getattr(loaded.processor, "image_token", None) or ""


def _require_each_image_placed(loaded: LoadedModel, images: int, rendered: str) -> None:
    """Refuse a template that repeats an image or leaves one out; not every processor would."""
    placeholder = _placeholder(loaded)
    placed = rendered.count(placeholder) if placeholder else 0
    if placed and placed != images:
        raise InputError(
            f"{loaded.info.id}: {images} images are given and the chat template places {placed}; use another "
            f"--chat-template"
        )
