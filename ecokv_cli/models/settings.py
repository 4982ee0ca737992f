"""Settings of a dump; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from ecokv_cli.errors import UsageError


@dataclass(frozen=True)
class DumpSettings:
    """What to record.

    Attributes
    ----------
    window
        Queries of the last W prompt positions to store.
    decode
        Most tokens to decode; their queries are the held-out ones.
    ignore_eos
        Decode on past end of sequence.
    store_dtype
        ``auto`` stores what was computed; else float32, bfloat16 or float16.
    received_attention, prerope_keys
        Optional tensors.
    template
        Whether to use the model's chat template.
    seed
        Recorded; a greedy run draws no random numbers.
    max_pixels
        Larger images are scaled down to at most this many pixels; None leaves them as they are.

    Raises
    ------
    UsageError
        If `max_pixels` is below 1.
    """

    window: int = 32
    decode: int = 32
    ignore_eos: bool = False
    store_dtype: str = "auto"
    received_attention: bool = False
    prerope_keys: bool = False
    template: bool = True
    seed: int = 0
    max_pixels: int | None = None

    def __post_init__(self) -> None:
        if self.max_pixels is not None and self.max_pixels < 1:
            raise UsageError(f"--max-pixels {self.max_pixels}: give a number of pixels from 1 on")
