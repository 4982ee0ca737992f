"""The parts of a small dump, with prime-number shapes."""

import json
import struct

import torch

from ecokv_cli.dump.schema import SCHEMA_VERSION, Decoded, Manifest, ModelInfo, Tokens

LAYERS, KV_HEADS, QUERY_HEADS, TOKENS, DIM, VALUE_DIM, WINDOW, STEPS = 3, 2, 6, 13, 5, 7, 4, 2


def tensors(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    return {
        "keys": draw(KV_HEADS, TOKENS, DIM),
        "values": draw(KV_HEADS, TOKENS, VALUE_DIM),
        "window_queries": draw(QUERY_HEADS, WINDOW, DIM),
        "decode_queries": draw(QUERY_HEADS, STEPS, DIM),
        "decode_keys": draw(KV_HEADS, STEPS, DIM),
        "decode_values": draw(KV_HEADS, STEPS, VALUE_DIM),
    }


def manifest(records, sample="page", **changes):
    model = ModelInfo("tiny", None, "Tiny", "tiny", "0" * 64, LAYERS, QUERY_HEADS, KV_HEADS, DIM, remote_code=False)
    nothing = (None,) * TOKENS
    roles = ("special",) + ("text",) * (TOKENS - 1)
    fields = {
        "schema_version": SCHEMA_VERSION, "created": "2026-01-01", "sample": sample, "command": "ecokv dump", "seed": 0,
        "model": model, "attention": "sdpa", "compute_dtype": "float32", "stored_dtype": "float32",
        "device": "cpu", "processor": {}, "images": (), "grids": (), "prompt": "what?", "rendered_sha256": "0" * 64,
        "tokens": Tokens(tuple(range(TOKENS)), tuple("abcdefghijklm"), roles, nothing, nothing, nothing),
        "position_ids": (tuple(range(TOKENS)),), "decoded": Decoded((1, 2), ("b", "c"), "bc", ended=False),
        "window": WINDOW, "tensors": tuple(tensors(0)), "layers": tuple(records), "seconds": {"prefill": 0.5},
        "versions": {"ecokv": "0"},
    }  # fmt: skip
    return Manifest(**(fields | changes))


def header(text, data=b"", length=None):
    """A safetensors file with any header, which may lie about its own length."""
    raw = text if isinstance(text, bytes) else json.dumps(text).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data
