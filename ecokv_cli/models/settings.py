"""Settings of a dump; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    window: int = 32
    decode: int = 32
    ignore_eos: bool = False
    store_dtype: str = "auto"
    received_attention: bool = False
    prerope_keys: bool = False
    template: bool = True
    seed: int = 0
