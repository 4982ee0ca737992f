"""Temporary folders beside their final name, each held by one process at a time."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ecokv_cli.errors import OutputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def claimed(final: Path) -> Iterator[Path]:
    """An empty temporary folder beside `final` that no other process has at the same time.

    The claim is a lock on the folder itself: it goes along when the folder is renamed, and ends with the process,
    however that ends. What a killed process left there is removed first, and if it was killed while it replaced
    `final`, the old one is put back. Where the file system knows no locks the folder has the process number in its
    name instead, and a leftover stays. If the block leaves the folder where it is, it is removed, together with the
    parents that were made for it.

    Raises
    ------
    OutputError
        If another process has it.
    """
    made = _first_missing(final.parent)
    partial = _beside(final, "partial")
    descriptor = _lock(partial, final)
    if descriptor is None:
        partial = _beside(final, f"partial-{os.getpid()}")
        partial.mkdir(parents=True, exist_ok=True)
    try:
        _put_back(final)
        _empty(partial)
        yield partial
    finally:
        if descriptor is None or _is_at(descriptor, partial):
            shutil.rmtree(partial, ignore_errors=True)
            _remove_empty(final.parent, made)
        _put_back(final)
        if descriptor is not None:
            os.close(descriptor)


def replace(partial: Path, final: Path) -> None:
    """Give a claimed folder its final name; what had the name before is removed after that."""
    if final.exists():
        final.rename(_beside(final, "old"))
    partial.rename(final)


def has_leftover(final: Path) -> bool:
    """Whether a temporary folder of `final` is there, be it held or left by a killed process."""
    return _beside(final, "partial").is_dir() or _beside(final, "old").is_dir()


def _beside(final: Path, kind: str) -> Path:
    return final.parent / f".{final.name}.{kind}"


def _put_back(final: Path) -> None:
    """Undo or finish a replacement that was cut off between its two steps."""
    old = _beside(final, "old")
    if not old.is_dir():
        return
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.rename(final)


def _lock(partial: Path, final: Path) -> int | None:
    """Make `partial` and lock it; None where that cannot be done here."""
    while fcntl is not None:
        partial.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(partial, os.O_RDONLY)
        except FileNotFoundError:  # finished by another process a moment ago
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise OutputError(
                f"{final}: another ecokv is writing it; wait until that is done, or choose another --output"
            ) from None
        except OSError:  # a network file system without locks
            os.close(descriptor)
            return None
        if _is_at(descriptor, partial):
            return descriptor
        os.close(descriptor)
    return None


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open folder still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _first_missing(folder: Path) -> Path | None:
    """The topmost folder that has to be made for `folder` to exist."""
    missing = None
    for path in (folder, *folder.parents):
        if path.exists():
            break
        missing = path
    return missing


def _remove_empty(folder: Path, top: Path | None) -> None:
    """Remove `folder` and its parents up to `top`, as far as they are empty."""
    if top is None:
        return
    for path in (folder, *folder.parents):
        try:
            path.rmdir()
        except OSError:
            return
        if path == top:
            return
