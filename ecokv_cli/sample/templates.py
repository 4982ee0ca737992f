"""Chat templates the user hands in: a Jinja file, or the name of one that comes with the model."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from pathlib import Path

from ecokv_cli.errors import InputError
from ecokv_cli.sample.sources import STDIN, display, read_source


@dataclass(frozen=True)
class ChatTemplate:
    """A choice of template.

    Attributes
    ----------
    name
        As given.
    text
        Jinja source; None if `name` is that of one of the model's own templates.
    """

    name: str
    text: str | None


def read_template(source: str) -> ChatTemplate:
    """Read a template file; what is no file and does not look like one is taken for a name.

    Parameters
    ----------
    source
        A path, ``-`` for standard input, or a name such as ``tool_use``.

    Raises
    ------
    InputError
        If it looks like a file that is not there, cannot be read, or is not UTF-8.
    """
    if source != STDIN and not Path(source).exists() and not any(mark in source for mark in "/\\."):
        return ChatTemplate(source, None)
    data = read_source(source, "chat template").removeprefix(codecs.BOM_UTF8)
    try:
        return ChatTemplate(source, data.decode())
    except UnicodeDecodeError:
        raise InputError(f"{display(source, 'chat template')} is not UTF-8: save it as UTF-8") from None
