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

    The claim is a lock on a file beside it, which ends with the process, however that ends. What a killed process left
    there is removed first, and if it was killed while it replaced `final`, the old one is put back. Where the file
    system knows no locks the folder has the process number in its name instead, and a leftover stays. If the block
    leaves the folder where it is, it is removed, together with the parents that were made for it.

    Raises
    ------
    OutputError
        If another process has it.
    """
    made = _first_missing(final.parent)
    lock = _beside(final, "lock")
    descriptor = _lock(lock, final)
    partial = _beside(final, "partial" if descriptor is not None else f"partial-{os.getpid()}")
    try:
        _put_back(final)
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir()
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        _put_back(final)
        if descriptor is not None:
            # Before the lock is let go: whoever waits for it then sees that the file is gone, and makes a new one.
            lock.unlink(missing_ok=True)
            os.close(descriptor)
        _remove_empty(final.parent, made)


def replace(partial: Path, final: Path) -> None:
    """Give a claimed folder its final name; what had the name before is removed after that."""
    if final.exists():
        final.rename(_beside(final, "old"))
    partial.rename(final)


def has_leftover(final: Path) -> bool:
    """Whether something of an unfinished `final` is there, be it held or left by a killed process."""
    return any(_beside(final, kind).exists() for kind in ("lock", "partial", "old"))


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


def _lock(path: Path, final: Path) -> int | None:
    """Make the file and lock it; None where that cannot be done here."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        if fcntl is None:
            return None
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # the parent was removed by another process a moment ago
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
            path.unlink(missing_ok=True)
            return None
        if _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


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
