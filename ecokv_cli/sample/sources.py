"""Where the bytes of an input come from: a file, or ``-`` for standard input."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ecokv_cli.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

STDIN = "-"
"""The text that stands for standard input; ``Path("-")`` is a file of that name."""

MAX_BYTES = 1 << 30
"""Larger files are not read: weights or a disk image given by mistake would fill the memory."""


def display(source: str | os.PathLike[str], kind: str) -> str:
    """Name an input in a message, on one line and printable whatever the file is called."""
    return f"{kind} on standard input" if source == STDIN else f"{kind} {os.fspath(source)!r}"


def read_source(source: str | os.PathLike[str], kind: str) -> bytes:
    """Read all bytes of a file, or of standard input for ``-``.

    Parameters
    ----------
    source
        A path, or the string ``-``.
    kind
        What the bytes are to the user (``image``, ``prompt``); messages start with it.

    Raises
    ------
    InputError
        If the file is missing, a folder, unreadable or larger than `MAX_BYTES`.
    """
    if source == STDIN:
        return sys.stdin.buffer.read()
    name = display(source, kind)
    path = Path(source)
    try:
        if path.is_dir():
            raise InputError(f"{name} is a folder: give one file")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InputError(f"{name} has {size} bytes, at most {MAX_BYTES} are read: is it the right file?")
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{name} does not exist: check the path") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name} cannot be read ({reason}): check the path and its permissions") from None


def source_sha256(source: str | os.PathLike[str], kind: str) -> str:
    """SHA-256 of the bytes of a file, 64 hexadecimal digits; raises as `read_source` does."""
    return hashlib.sha256(read_source(source, kind)).hexdigest()


def check_stdin_read_once(sources: Iterable[str | os.PathLike[str]]) -> None:
    """Refuse a command that asks for standard input twice, where the second reader would find it empty.

    Raises
    ------
    UsageError
        If more than one of the image and prompt arguments is ``-``.
    """
    count = sum(source == STDIN for source in sources)
    if count > 1:
        raise UsageError(f"{count} inputs are '-', but standard input can be read once: give the others as files")
