"""Time and memory of work that may run on a GPU, which goes on while Python is already elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ecokv_cli.models.evicted import Decoding, Evicted

ALLOCATED, COUNTED = "allocated", "counted"
"""Where a peak comes from: the allocator of the GPU, or the sizes of the tensors of the cache."""


def clock(device: torch.device) -> float:
    """Seconds by a monotonic clock, after all work that was given to the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()


def decoding_peak(
    device: torch.device, cache: Sequence[Evicted], decode: Callable[[], Decoding]
) -> tuple[Decoding, int, str]:
    """An answer and the peak of the memory that decoding it takes, in bytes.

    On CUDA it is what the allocator counts above what was there before: the working copy of the prompt's cache that
    decoding begins with, the tokens decoded since, and activations; weights and the full cache, which stays for the
    other arms, are not in it. Elsewhere nothing counts, so it is the size of the cache after the last step: the
    prompt's part, and keys and values of every token fed back in layers that grow.

    Returns
    -------
    tuple
        The answer, bytes, and ``allocated`` or ``counted``.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        decoded = decode()
        return decoded, torch.cuda.max_memory_allocated(device) - before, ALLOCATED
    decoded = decode()
    grown = sum(layer.keys[:, :, :1].nbytes + layer.values[:, :, :1].nbytes for layer in cache if not layer.sliding) * (
        len(decoded.ids) - 1
    )
    return decoded, decoded.cache_bytes + grown, COUNTED
