"""Another chat template than the model's own, and a system message before every prompt."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ecokv_cli.errors import InputError, ModelError, UsageError
from ecokv_cli.models.prompting import control_tokens
from ecokv_cli.sample.prompts import check_control_tokens

if TYPE_CHECKING:
    from ecokv_cli.models.loading import LoadedModel
    from ecokv_cli.sample.templates import ChatTemplate


def use_template(loaded: LoadedModel, template: ChatTemplate | None, system: str | None) -> LoadedModel:
    """Have every prompt of `loaded` rendered by another template, or with a system message first.

    The processor of `loaded` is changed; the result's `info` says what was set. The template is tried out at once.

    Parameters
    ----------
    loaded
        A model as it was loaded.
    template
        What to use in place of the model's own; None keeps that.
    system
        Text of the system message; None adds none.

    Raises
    ------
    UsageError
        If the model has no template of that name, or the system message holds a control token of the model.
    InputError
        If the template is no Jinja, or fails on a plain question.
    ModelError
        If the model's own template takes no system message, or there is none.
    """
    if template is None and system is None:
        return loaded
    own = getattr(loaded.processor, "chat_template", None) or getattr(loaded.tokenizer, "chat_template", None)
    chosen = _chosen(loaded, own, template)
    if system is not None:
        check_control_tokens(system, control_tokens(loaded))
        if not isinstance(chosen, str):
            raise ModelError(f"{loaded.info.id}: has no single chat template to put --system into; add --chat-template")
        chosen = _with_system(chosen, system, parts=loaded.multimodal)
    loaded.processor.chat_template = chosen
    _try_out(loaded, template, system)
    digest = hashlib.sha256(str(_chosen(loaded, own, template)).encode()).hexdigest() if template else ""
    return replace(loaded, info=replace(loaded.info, chat_template=digest, system=system))


def _chosen(loaded: LoadedModel, own: Any, template: ChatTemplate | None) -> Any:
    if template is None:
        return own
    if template.text is not None:
        return template.text
    named = own if isinstance(own, dict) else {"default": own} if own else {}
    if template.name not in named:
        there = ", ".join(sorted(named)) or "none"
        raise UsageError(
            f"--chat-template {template.name}: no such file, and no template of {loaded.info.id} (it has: {there})"
        )
    return named[template.name]


def _with_system(template: str, system: str, *, parts: bool) -> str:
    """The template with a statement before it that puts the system message first."""
    text = json.dumps(system, ensure_ascii=False)
    content = f'[{{"type": "text", "text": {text}}}]' if parts else text
    # The empty output keeps Jinja from taking a line end at the start of the template for that of the statement.
    return f'{{% set messages = [{{"role": "system", "content": {content}}}] + messages %}}{{{{ "" }}}}{template}'


def _try_out(loaded: LoadedModel, template: ChatTemplate | None, system: str | None) -> None:
    from jinja2 import TemplateError

    content: Any = [{"type": "text", "text": "?"}] if loaded.multimodal else "?"
    try:
        text = loaded.processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if template is not None:
            raise InputError(f"chat template {template.name!r}: fails on a plain question ({reason})") from None
        raise ModelError(
            f"{loaded.info.id}: its chat template takes no system message ({reason}); leave --system out, or write a "
            f"template of your own and give it with --chat-template"
        ) from None
    if system and system.strip() not in text:
        raise ModelError(f"{loaded.info.id}: its chat template leaves the system message out; put it into the prompt")
