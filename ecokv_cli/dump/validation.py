"""Everything about a dumped sample that can be checked without the model: one line per fault."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ecokv_cli.dump.reader import open_dump
from ecokv_cli.dump.tensors import KINDS, StoredTensor, nonfinite_by_head, read_header, shape_fault
from ecokv_cli.errors import DumpError, InputError
from ecokv_cli.sample.images import load_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ecokv_cli.dump.schema import LayerFile, Manifest


@dataclass(frozen=True)
class Fault:
    """Something wrong with one file of a sample.

    Attributes
    ----------
    sample, file
        Where; the file is a name in the folder of the sample.
    found
        What is wrong.
    layer, head
        Which layer and head, where it is about one; None elsewhere.
    """

    sample: str
    file: str
    found: str
    layer: int | None = None
    head: int | None = None


def faults(folder: Path, progress: Callable[[int, int], None] = lambda *_: None) -> Iterator[Fault]:
    """Check the sample in `folder` against its manifest.

    Looked at are the manifest itself; of each layer file presence, size, sha256, names, kinds and shapes of its
    tensors, and NaN or infinite numbers; of each image that it is there and of the size that was used; and files that
    the manifest does not know. A file that fails one check is not put to those that build on it.

    Parameters
    ----------
    folder
        Of one sample.
    progress
        Called with layers done and layers in all.
    """
    name = folder.name
    try:
        manifest = open_dump(folder).manifest
    except DumpError as error:
        yield Fault(name, "manifest.json", str(error))
        return
    if manifest.sample != name:
        yield Fault(name, "manifest.json", f"is of sample {manifest.sample!r}, the folder is called {name!r}")
    for done, record in enumerate(manifest.layers, start=1):
        yield from _layer_faults(folder, manifest, record)
        progress(done, len(manifest.layers))
    for image in manifest.images:
        try:
            found = load_image(folder / image.file).used_size
        except InputError as error:
            yield Fault(name, image.file, str(error))
            continue
        if found != image.used_size:
            yield Fault(name, image.file, f"is {found[0]} x {found[1]} pixels, expected {_by(image.used_size)}")
    known = {"manifest.json", *(r.file for r in manifest.layers), *(i.file for i in manifest.images)}
    for path in sorted(folder.iterdir()):
        if path.name not in known:
            yield Fault(name, path.name, "is not in the manifest")


def _layer_faults(folder: Path, manifest: Manifest, record: LayerFile) -> Iterator[Fault]:
    path = folder / record.file
    try:
        found = list(_file_faults(path, record)) or list(_tensor_faults(path, manifest, record))
    except FileNotFoundError:
        found = [("is missing", None)]
    except OSError as error:
        found = [(f"cannot be read ({error.strerror or error})", None)]
    except DumpError as error:
        found = [(str(error), None)]
    for text, head in found:
        yield Fault(folder.name, record.file, text, record.index, head)


def _file_faults(path: Path, record: LayerFile) -> Iterator[tuple[str, int | None]]:
    """Faults of the file as bytes, each with the head it is about (none)."""
    size = path.stat().st_size
    if size != record.bytes:
        yield f"has {size} bytes, expected {record.bytes}", None
        return
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != record.sha256:
        yield f"has sha256 {digest[:16]}..., expected {record.sha256[:16]}...", None


def _tensor_faults(path: Path, manifest: Manifest, record: LayerFile) -> Iterator[tuple[str, int | None]]:
    """Faults of what is in the file, each with the head it is about."""
    tensors = read_header(path)
    expected = KINDS.get(manifest.stored_dtype)
    for tensor in tensors:
        if tensor.kind != expected:
            yield f"{tensor.name} is of kind {tensor.kind}, expected {expected or manifest.stored_dtype}", None
    names = _names_fault(manifest, record, tensors)
    shapes = shape_fault(manifest, record, {tensor.name: tensor.shape for tensor in tensors})
    for text in (names, shapes):
        if text:
            yield text, None
    for tensor in tensors:
        for head, count in nonfinite_by_head(path, tensor):
            yield f"{tensor.name}, {_axis(tensor.name)} {head}: {count} NaN or infinite numbers", head


def _names_fault(manifest: Manifest, record: LayerFile, tensors: list[StoredTensor]) -> str:
    found = {tensor.name for tensor in tensors}
    expected = set(manifest.tensors) if record.kind == "full" else {"keys", "values"}
    missing, extra = ", ".join(sorted(expected - found)), ", ".join(map(ascii, sorted(found - expected)))
    return "; ".join(text for text in (missing and f"lacks {missing}", extra and f"holds {extra} besides") if text)


def _axis(tensor: str) -> str:
    """What the first axis of a tensor numbers."""
    if tensor == "window_mask":
        return "query"
    return "query head" if tensor.endswith(("queries", "attention")) else "KV head"


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
