"""Writing a dump: into a temporary folder first, under its own name only when complete."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import save_file

from ecokv_cli.dump.schema import LayerFile, Manifest
from ecokv_cli.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


@contextmanager
def fresh_folder(final: Path, *, force: bool) -> Iterator[Path]:
    """A temporary folder beside `final` that takes its place when the block ends without an error.

    Whatever `final` was before stays untouched until then, and stays for good if the block fails.

    Raises
    ------
    OutputError
        If `final` exists and `force` is off, or the disk refuses (full, read-only, a file in the way).
    """
    if final.exists() and not force:
        raise OutputError(f"{final} exists; add --force to replace it, or choose another folder with --output")
    partial = final.parent / f".{final.name}.partial-{os.getpid()}"
    try:
        partial.mkdir(parents=True)
        yield partial
        old = final.parent / f".{final.name}.old-{os.getpid()}"
        if final.exists():
            final.rename(old)
        partial.rename(final)
        if old.exists():
            shutil.rmtree(old)
    except OSError as error:
        raise OutputError(_explain(error, final)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def require_space(folder: Path, needed: int) -> None:
    """Refuse to start when the disk under `folder` has less than `needed` bytes free."""
    parent = folder
    while not parent.exists():
        parent = parent.parent
    free = shutil.disk_usage(parent).free
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

    def add(self, index: int, tensors: dict[str, torch.Tensor], scaling: float) -> None:
        """Write the tensors of layer `index`; they are moved to the CPU and made contiguous."""
        stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        bad = {name: int((~t.isfinite()).sum()) for name, t in stored.items()}
        path = self.folder / f"layer_{index:03d}.safetensors"
        save_file(stored, path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        nonfinite = {name: count for name, count in bad.items() if count}
        self.records.append(LayerFile(index, path.name, path.stat().st_size, digest, scaling, nonfinite))

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest, last."""
        text = json.dumps(manifest.to_json(), ensure_ascii=True, indent=1)
        (self.folder / "manifest.json").write_text(text, encoding="utf-8")


def _explain(error: OSError, final: Path) -> str:
    if error.errno == errno.ENOSPC:
        return f"{final}: the disk is full; nothing was replaced, choose another disk with --output"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{final}: a file is in the way of the folder; choose another --output"
    return f"{final}: cannot be written ({error.strerror or error}); choose another --output"
