"""One synthetic layer on disk, in the shape of Qwen2-VL-7B's, and the least that any analysis of it has to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file

from ecokv_cli.dump.reader import Dump
from ecokv_cli.dump.schema import Decoded, ImageGrid, LayerFile, Manifest, ModelInfo, Tokens
from ecokv_cli.dump.writer import LayerWriter

if TYPE_CHECKING:
    from pathlib import Path

KV_HEADS, QUERY_HEADS, DIM, WINDOW, STEPS = 4, 28, 128, 32, 32


def tensors(tokens: int) -> dict[str, torch.Tensor]:
    """Random numbers, with a common direction in the keys as real ones have."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "keys": draw(KV_HEADS, tokens, DIM) + draw(KV_HEADS, 1, DIM),
        "values": draw(KV_HEADS, tokens, DIM),
        "window_queries": draw(QUERY_HEADS, WINDOW, DIM),
        "decode_queries": draw(QUERY_HEADS, STEPS, DIM),
        "decode_keys": draw(KV_HEADS, STEPS, DIM),
        "decode_values": draw(KV_HEADS, STEPS, DIM),
    }


def write_dump(folder: Path, tokens: int, dtype: torch.dtype) -> Dump:
    """Write one layer."""
    writer = LayerWriter(folder)
    writer.add(0, {name: tensor.to(dtype) for name, tensor in tensors(tokens).items()}, DIM**-0.5)
    return Dump(folder, manifest(tokens, tuple(writer.records)))


def written(folder: Path, tokens: int) -> Dump:
    """The dump that another process left in `folder`."""
    file = next(folder.glob("*.safetensors"))
    return Dump(folder, manifest(tokens, (LayerFile(0, file.name, file.stat().st_size, "", DIM**-0.5, {}),)))


def manifest(tokens: int, layers: tuple[LayerFile, ...]) -> Manifest:
    """A prompt that is nine tenths image."""
    side = int((0.9 * tokens) ** 0.5)
    roles = ("special",) + ("image",) * side**2
    roles += ("text",) * (tokens - len(roles))
    nothing = (None,) * tokens
    return Manifest(
        schema_version="1.0", created="", sample="page", command="", seed=0, attention="sdpa",
        model=ModelInfo("synthetic", None, "", "", "", 1, QUERY_HEADS, KV_HEADS, DIM, remote_code=False),
        compute_dtype="bfloat16", stored_dtype="bfloat16", device="cpu", processor={}, images=(), prompt="",
        grids=(ImageGrid(0, 1, side, side, (0.0, 0.0, 1.0, 1.0), 0),), rendered_sha256="",
        tokens=Tokens((0,) * tokens, ("x",) * tokens, roles, nothing, nothing, nothing), position_ids=(),
        decoded=Decoded((0,) * STEPS, ("x",) * STEPS, "", ended=False),
        window=WINDOW, tensors=(), layers=layers, seconds={}, versions={},
    )  # fmt: skip


def read_and_multiply(dump: Dump, names: tuple[str, ...]) -> list[torch.Tensor]:
    """Read the layer by the safetensors library alone, in fp32, and make one D x D product per head of `names`."""
    path = dump.folder / dump.manifest.layers[0].file
    read = {name: tensor.float() for name, tensor in load_file(path).items()}
    return [head.T @ head for name in names for head in read[name]]
