"""Digests that tell checkpoints apart: of what a model is, and of what it has learned."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

_PLACE = (
    "_name_or_path",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "attn_implementation",
    "_attn_implementation",
)
"""Where a configuration says how and from where it was loaded, which makes no other model."""

_NUMBERS = 16
"""How many numbers of each parameter are looked at. Training moves nearly all of them."""


def config_digest(config: dict[str, Any]) -> str:
    """Digest of a configuration, whatever folder, dtype and version of transformers it was loaded with."""
    return hashlib.sha256(json.dumps(_lasting(config), sort_keys=True, default=str).encode()).hexdigest()


def _lasting(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _lasting(value) for key, value in part.items() if key not in _PLACE}
    return part


@torch.inference_mode()
def weights_digest(model: Any) -> str:
    """Digest of some numbers of every parameter, each rounded to bfloat16.

    The same checkpoint has the same digest from any folder, and loaded as float32 or bfloat16; only float16 may round
    otherwise. Parameters that are not in memory (offloaded to disk) are left out.

    Parameters
    ----------
    model
        Loaded model.

    Returns
    -------
    str
        Hexadecimal; empty where no parameter is in memory.
    """
    found = sorted(_sampled(p.detach()) for p in model.parameters() if not p.is_meta and p.numel())
    return hashlib.sha256(b"".join(found)).hexdigest() if found else ""


def _sampled(parameter: torch.Tensor) -> bytes:
    places = torch.linspace(0, parameter.numel() - 1, _NUMBERS, dtype=torch.float64).long()
    numbers = parameter.reshape(-1)[places.to(parameter.device)].cpu()
    if numbers.is_floating_point():
        numbers = numbers.to(torch.bfloat16).view(torch.int16)
    return f"{list(parameter.shape)}".encode() + numbers.numpy().tobytes()
