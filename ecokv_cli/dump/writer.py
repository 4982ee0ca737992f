"""Writing a dump: into a temporary folder first, under its own name only when complete.

Other results use the same folders; torch is imported when a layer is written.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ecokv_cli.dump.claims import claimed, replace
from ecokv_cli.dump.schema import LayerFile, Manifest
from ecokv_cli.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

logger = logging.getLogger(__name__)


@contextmanager
def fresh_folder(final: Path, *, force: bool) -> Iterator[Path]:
    """A temporary folder beside `final` that takes its place when the block ends without an error.

    Whatever `final` was before stays untouched until then, and stays for good if the block fails. Of several processes
    that write to the same place at the same time one is let in, the others are refused.

    Raises
    ------
    OutputError
        If `final` exists and `force` is off, another process is writing it, or the disk refuses (full, read-only, a
        file in the way).
    """
    _require_free(final, force=force)
    try:
        with claimed(final) as partial:
            _require_free(final, force=force)  # another process may have finished just before the claim
            yield partial
            replace(partial, final)
    except OSError as error:
        raise OutputError(_explain(error, final)) from error


def require_writable(final: Path, *, force: bool) -> None:
    """Refuse before any work what `fresh_folder` would refuse after it.

    Raises
    ------
    OutputError
        As `fresh_folder` does.
    """
    _require_free(final, force=force)
    try:
        with claimed(final):
            pass
    except OSError as error:
        raise OutputError(_explain(error, final)) from error


def _require_free(final: Path, *, force: bool) -> None:
    if final.exists() and not force:
        raise OutputError(f"{final} exists; add --force to replace it, or choose another run folder with --output")


def require_space(folder: Path, needed: int) -> None:
    """Refuse to start when the disk under `folder` has less than `needed` bytes free."""
    parent = folder
    while not parent.exists():
        parent = parent.parent
    free = shutil.disk_usage(parent).free
    logger.info("%s: about %.1f MB will be written, %.1f GB are free", folder, needed / 1e6, free / 1e9)
    if free < needed:
        raise OutputError(
            f"{folder}: the dump needs about {needed / 1e9:.2f} GB and {free / 1e9:.2f} GB are free; "
            f"choose another disk with --output, or store less with --store-dtype bfloat16"
        )


@dataclass
class LayerWriter:
    """Writes one safetensors file per layer into `folder` and keeps the records for the manifest."""

    folder: Path
    records: list[LayerFile] = field(default_factory=list)

    def add(self, index: int, tensors: dict[str, torch.Tensor], scaling: float, window: int | None = None) -> None:
        """Write the tensors of layer `index`; they are moved to the CPU and no two share memory.

        `window` is that of a sliding-window layer.
        """
        stored = _apart({name: tensor.detach().cpu() for name, tensor in tensors.items()})
        bad = {name: int((~t.isfinite()).sum()) for name, t in stored.items()}
        path = self.folder / f"layer_{index:03d}.safetensors"
        _save(stored, path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        nonfinite = {name: count for name, count in bad.items() if count}
        kind = "full" if window is None else "sliding"
        size = path.stat().st_size
        self.records.append(LayerFile(index, path.name, size, digest, scaling, nonfinite, kind, window))

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest, last."""
        text = json.dumps(manifest.to_json(), ensure_ascii=True, indent=1)
        (self.folder / "manifest.json").write_text(text, encoding="utf-8")


def _apart(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors contiguous and each in memory of its own, which safetensors demands."""
    import torch

    apart: dict[str, torch.Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        whole = tensor.is_contiguous() and storage.nbytes() == tensor.nbytes and storage.data_ptr() not in taken
        apart[name] = tensor if whole else tensor.clone(memory_format=torch.contiguous_format)
        taken.add(storage.data_ptr())
    return apart


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Write a safetensors file; a disk that refuses is an OSError, as everywhere."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, path)
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        if not found:
            raise OutputError(f"{path}: cannot be written ({error})") from error
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(path)) from error


def _explain(error: OSError, final: Path) -> str:
    if error.errno == errno.ENOSPC:
        return f"{final}: the disk is full; nothing was replaced, choose another disk with --output"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{final}: a file is in the way of the folder; choose another --output"
    return f"{final}: cannot be written ({error.strerror or error}); choose another --output"
