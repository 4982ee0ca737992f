"""Prompts the user hands in: literal text, ``-`` for standard input or ``@file``."""

from __future__ import annotations

import codecs
import unicodedata
from typing import TYPE_CHECKING

from ecokv_cli.errors import InputError, UsageError
from ecokv_cli.sample.sources import STDIN, display, read_source

if TYPE_CHECKING:
    from collections.abc import Iterable

_FILE = "@"
_ALLOWED_CONTROLS = "\n\t"


def read_prompt(text: str) -> str:
    """Turn the prompt argument into the prompt.

    Parameters
    ----------
    text
        The prompt itself; ``-`` for standard input; ``@file`` for a file; ``@@text`` for a prompt that
        starts with ``@``. Files and standard input are UTF-8; a byte-order mark is dropped, CR LF line
        ends become LF, and one newline at the end is dropped.

    Returns
    -------
    str
        The prompt, possibly blank (see `is_blank`).

    Raises
    ------
    InputError
        If the file cannot be read, is not UTF-8, or the prompt holds control characters other than
        newline and tab or bytes that are no text.
    UsageError
        If no file follows the ``@``.
    """
    if text == _FILE:
        raise UsageError("prompt '@' names no file: write @FILE, or @@ for the sign itself")
    if text == STDIN:
        prompt = _decode(STDIN)
    elif text.startswith(_FILE * 2):
        prompt = text[1:]
    elif text.startswith(_FILE):
        prompt = _decode(text[1:])
    else:
        prompt = text
    check_characters(prompt)
    return prompt


def is_blank(prompt: str) -> bool:
    """Say whether a prompt is empty or white space only."""
    return not prompt.strip()


def check_control_tokens(prompt: str, control_tokens: Iterable[str]) -> None:
    """Refuse a prompt that spells one of the model's control or placeholder tokens.

    The tokenizer would not read it as text: an image placeholder would be bound to an image, an
    end-of-turn token would close the prompt.

    Parameters
    ----------
    prompt
        The user's text, before the chat template.
    control_tokens
        The tokens of the model at hand, such as ``<|image_pad|>``.

    Raises
    ------
    UsageError
        Naming the first such token in the prompt.
    """
    found = [token for token in control_tokens if token and token in prompt]
    if found:
        token = min(found, key=lambda t: (prompt.index(t), -len(t)))
        raise UsageError(
            f"the prompt holds {token!r}, a control token of this model: leave it out or break it up with a space; "
            "images and turns are placed by the chat template"
        )


def check_characters(prompt: str) -> None:
    """Refuse characters that no tokenizer takes for text.

    Raises
    ------
    InputError
        Naming the first lone surrogate, or control character other than newline and tab.
    """
    for place, character in enumerate(prompt, start=1):
        category = unicodedata.category(character)
        code = f"U+{ord(character):04X}"
        if category == "Cs":
            raise InputError(
                f"character {place} of the prompt is the lone surrogate {code}, left by a byte that is not UTF-8: "
                "put the prompt into a UTF-8 file and write @FILE"
            )
        if category == "Cc" and character not in _ALLOWED_CONTROLS:
            raise InputError(
                f"character {place} of the prompt is the control character {code}: "
                "remove it; of these only newline and tab are allowed"
            )


def _decode(source: str) -> str:
    """Read a UTF-8 text without byte-order mark and last newline."""
    data = read_source(source, "prompt").removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{display(source, 'prompt')} is not UTF-8 (byte 0x{data[error.start]:02x}, number {error.start + 1}): "
            "save it as UTF-8"
        ) from None
    return text.replace("\r\n", "\n").removesuffix("\n")
