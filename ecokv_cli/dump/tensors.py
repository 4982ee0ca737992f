"""The tensors of a layer file as they lie on the disk, seen without torch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ecokv_cli.errors import DumpError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ecokv_cli.dump.schema import LayerFile, Manifest

WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes per number of the kinds that a dump uses, by safetensors' names for them."""

KINDS = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""safetensors' names of the dtypes in a manifest."""

LONGEST_HEADER = 100_000_000
"""Bytes; safetensors' own limit."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file: its kind, its shape, and the byte of the file where it begins."""

    name: str
    kind: str
    shape: tuple[int, ...]
    begin: int

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * WIDTHS[self.kind]


def shape_fault(manifest: Manifest, record: LayerFile, found: Mapping[str, tuple[int, ...]]) -> str:
    """The first tensor of a layer whose shape is not the one that the manifest implies; empty if all are.

    The value dimension is free where the model has one of its own, but the same for prompt and decoded tokens.
    """
    values = next((found[name][-1] for name in ("values", "decode_values") if found.get(name)), 0)
    for name, shape in found.items():
        expected = _shape(manifest, record, name, values)
        if expected and shape != expected:
            return f"{name} is of shape {list(shape)}, expected {list(expected)}"
    return ""


def _shape(manifest: Manifest, record: LayerFile, name: str, values: int) -> tuple[int, ...]:
    model, decoded, n = manifest.model, manifest.decoded.fed_back, len(record.held(len(manifest.tokens.ids)))
    return {
        "keys": (model.kv_heads, n, model.head_dim),
        "values": (model.kv_heads, n, values),
        "window_queries": (model.query_heads, manifest.window, model.head_dim),
        "window_mask": (manifest.window, manifest.window),
        "decode_queries": (model.query_heads, decoded, model.head_dim),
        "decode_keys": (model.kv_heads, decoded, model.head_dim),
        "decode_values": (model.kv_heads, decoded, values),
        "received_attention": (model.query_heads, n),
        "prerope_keys": (model.kv_heads, n, model.head_dim),
    }.get(name, ())


def read_header(path: Path) -> list[StoredTensor]:
    """What a safetensors file says it holds.

    Raises
    ------
    DumpError
        If that does not make sense: too short, no JSON, an unknown kind, or tensors that do not cover the file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= min(size - 8, LONGEST_HEADER):
            raise DumpError(f"its header cannot be {length} bytes long in a file of {size}")
        raw = file.read(length)
    try:
        data = json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise DumpError(f"its header is no JSON ({error})") from None
    if not isinstance(data, dict):
        raise DumpError(f"its header is a {type(data).__name__}, expected an object")
    data.pop("__metadata__", None)
    tensors, place = [], 0
    for name, entry in sorted(data.items(), key=lambda item: _offsets(*item)):
        tensor, end = _entry(name, entry, 8 + length)
        if tensor.begin != 8 + length + place or end - place != tensor.bytes:
            raise DumpError(f"{name!a} does not begin and end where its neighbours and its shape say")
        tensors.append(tensor)
        place = end
    if 8 + length + place != size:
        raise DumpError(f"its tensors end at byte {8 + length + place} and the file at {size}")
    return tensors


def _offsets(name: str, entry: Any) -> tuple[int, int]:
    try:
        begin, end = entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        begin = end = None
    if type(begin) is int and type(end) is int:
        return begin, end
    raise DumpError(f"{name!a} has no two data_offsets")


def _entry(name: str, entry: dict[str, Any], start: int) -> tuple[StoredTensor, int]:
    kind, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(kind, str) or kind not in WIDTHS:
        raise DumpError(f"{name!a} is of kind {kind!a}, expected {', '.join(WIDTHS)}")
    if not isinstance(shape, list) or not all(type(axis) is int and axis >= 0 for axis in shape):
        raise DumpError(f"{name!a} has no shape")
    begin, end = entry["data_offsets"]
    return StoredTensor(name, kind, tuple(shape), start + begin), end


def nonfinite_by_head(path: Path, tensor: StoredTensor) -> Iterator[tuple[int, int]]:
    """Heads (first axis) with NaN or infinite numbers, and how many each has; one head is read at a time."""
    import numpy as np

    if not tensor.bytes:
        return
    kind = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}[tensor.kind]
    heads, *rest = tensor.shape or (1,)
    numbers = np.memmap(path, kind, "r", tensor.begin, (heads, math.prod(rest)))
    for head, row in enumerate(numbers):
        # numpy has no bfloat16; its exponent is all ones in NaN and infinity.
        bad = (row & 0x7F80) == 0x7F80 if tensor.kind == "BF16" else ~np.isfinite(row)
        if count := int(bad.sum()):
            yield head, count
