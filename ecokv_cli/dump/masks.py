"""Kept positions of simulated evictions, as a file other tools can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from pathlib import Path

MASKS = "kept.safetensors"
"""Name of the file."""


def write_masks(folder: Path, masks: dict[str, dict[str, torch.Tensor]]) -> None:
    """Write ``kept.safetensors``: one uint8 tensor ``[layers, H, N]`` named ``sample/method@budget`` each; 1 = kept."""
    named = {f"{sample}/{key}": mask for sample, found in masks.items() for key, mask in found.items()}
    save_file({name: mask.to(torch.uint8).contiguous() for name, mask in named.items()}, folder / MASKS)


def read_masks(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """What `write_masks` wrote, as bool tensors."""
    masks: dict[str, dict[str, torch.Tensor]] = {}
    for name, mask in load_file(folder / MASKS).items():
        sample, _, key = name.partition("/")
        masks.setdefault(sample, {})[key] = mask.bool()
    return masks
