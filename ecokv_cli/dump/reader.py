"""Reading a dump: one layer at a time, never all of them. Without asking for a layer, torch is not imported."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ecokv_cli.dump.schema import LayerFile, Manifest
from ecokv_cli.dump.tensors import read_header, shape_fault
from ecokv_cli.errors import DumpError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import torch

    from ecokv_cli.eviction.layer import Layer

NEEDED = ("keys", "values", "window_queries", "decode_queries", "decode_keys", "decode_values")
OPTIONAL = ("window_mask", "received_attention", "prerope_keys")


@dataclass(frozen=True)
class Dump:
    """One dumped sample: its folder and its manifest."""

    folder: Path
    manifest: Manifest

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Numbers of the layers that can be analysed: those whose cache keeps the whole prompt."""
        return tuple(record.index for record in self.manifest.layers if record.kind == "full")

    @property
    def windows(self) -> dict[int, int]:
        """Numbers of the sliding-window layers, which are left out, and their windows."""
        return {record.index: record.window for record in self.manifest.layers if record.window is not None}

    def layer(self, index: int) -> Layer:
        """Layer `index` in working precision (half precision becomes fp32), checked to be finite.

        Raises
        ------
        DumpError
            If it is a sliding-window layer, the file is missing, of another size than the manifest says, or not
            readable, or a tensor has another shape.
        NonFiniteError
            If a tensor holds NaN or infinity.
        """
        from ecokv_cli.eviction.layer import Layer
        from ecokv_cli.geometry.similarity import working

        record = self._record(index)
        if record.kind != "full":
            raise DumpError(
                f"{self.folder}: layer {index} is a sliding window of {record.window} and does not keep the prompt; "
                f"full-attention layers are {', '.join(map(str, self.full_layers))}"
            )
        optional = [name for name in OPTIONAL if name in self.manifest.tensors]
        tensors = read_tensors(self.folder, record, (*NEEDED, *optional))
        fault = shape_fault(self.manifest, record, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
        if fault:
            raise DumpError(f"{self.folder / record.file}: layer {index}: {fault}; dump the sample again")
        return Layer(
            index=index,
            layers=self.manifest.model.layers,
            scaling=record.scaling,
            full=self.full_layers if self.windows else None,
            **{name: working(tensor) for name, tensor in tensors.items()},
        ).require_finite()

    def layers(self, indices: Iterable[int]) -> Iterator[Layer]:
        """The given layers, one in memory at a time."""
        return (self.layer(index) for index in indices)

    def opened(self) -> Dump:
        """The dump with its manifest in memory: itself, unless it is a `DumpHandle`."""
        return self

    def _record(self, index: int) -> LayerFile:
        for record in self.manifest.layers:
            if record.index == index:
                return record
        last = len(self.manifest.layers) - 1
        raise DumpError(f"{self.folder}: has no layer {index}; layers are 0 to {last}")


class DumpHandle(Dump):
    """A dump whose manifest is read each time it is asked for and not kept, so that thousands take no memory.

    Parameters
    ----------
    folder
        Of the sample.
    name
        What it is called instead of its own name.
    """

    def __init__(self, folder: Path, name: str | None = None) -> None:
        object.__setattr__(self, "folder", folder)
        object.__setattr__(self, "name", name)

    @property
    def manifest(self) -> Manifest:
        """What is read now."""
        found = open_dump(self.folder).manifest
        name: str | None = vars(self)["name"]
        return replace(found, sample=name) if name else found

    def opened(self) -> Dump:
        """The dump with its manifest in memory."""
        return Dump(self.folder, self.manifest)


def open_dump(folder: Path) -> Dump:
    """Open the sample in `folder`.

    Raises
    ------
    DumpError
        If there is no readable manifest of this format.
    """
    path = folder / "manifest.json"
    try:
        return Dump(folder, _parsed(path.read_text(encoding="utf-8"), str(path)))
    except FileNotFoundError:
        raise DumpError(f"{folder}: no manifest.json, so this is no complete dump; run `ecokv dump` first") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DumpError(f"{path}: cannot be read ({error}); dump the sample again") from None


@lru_cache(maxsize=2)
def _parsed(text: str, path: str) -> Manifest:
    """The manifest in a text; a study asks for that of the sample at hand again and again."""
    return Manifest.from_json(json.loads(text), path)


def read_tensors(folder: Path, record: LayerFile, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Tensors of one layer file by name, as stored."""
    from safetensors import SafetensorError, safe_open

    path = folder / record.file
    if not path.is_file():
        raise DumpError(f"{path}: layer {record.index} is missing; dump the sample again")
    size = path.stat().st_size
    if size != record.bytes:
        kind = "truncated" if size < record.bytes else "too long"
        raise DumpError(
            f"{path}: layer {record.index} is {kind}, {size} bytes instead of {record.bytes}; dump the sample again"
        )
    try:
        with safe_open(path, framework="pt") as file:
            present = set(file.keys())
            missing = [name for name in names if name not in present]
            if missing:
                raise DumpError(f"{path}: layer {record.index} holds no {', '.join(missing)}; dump the sample again")
            return {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        reason = _reason(path) or error
        raise DumpError(f"{path}: layer {record.index} is damaged ({reason}); dump the sample again") from None


def _reason(path: Path) -> str:
    """What is wrong with the start of a layer file, in plainer words than safetensors has; empty if nothing is."""
    try:
        read_header(path)
    except (DumpError, OSError) as error:
        return str(error)
    return ""
