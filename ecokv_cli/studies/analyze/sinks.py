"""``sinks.csv``: positions that act as attention sinks, flagged and not removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ecokv_cli.studies.analyze.rows import unstack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ecokv_cli.studies.analyze.measured import Measured
    from ecokv_cli.studies.analyze.rows import Row

SINKS = (
    "model", "sample", "layer", "position", "token", "role", "reason",
    "attention", "attention_heads", "received", "norm_heads",
    "key_norm", "key_norm_relative", "value_norm", "value_norm_relative", "key_cos_to_mean",
)  # fmt: skip


def sink_rows(measured: Measured) -> Iterator[Row]:
    """A row per sink; numbers are means over all KV heads of the layer."""
    sinks, layer = measured.sinks, measured.layer
    at, n = sinks.positions, layer.tokens
    keys, values = measured.clouds["keys"], measured.clouds["values"]
    window_free = measured.attention.shape[1]
    attention = torch.full((n,), torch.nan, dtype=torch.float64)
    attention[:window_free] = measured.attention.mean(0).double() * n
    received = torch.full((n,), torch.nan, dtype=torch.float64)
    if layer.received_attention is not None:
        received = layer.received_attention.mean(0).double() / torch.arange(n, 0, -1)
    cosine = (keys.alignment / keys.direction.norm(dim=1, keepdim=True)).mean(0)
    columns = {
        "attention": attention[at],
        "attention_heads": sinks.attention_heads,
        "received": received[at],
        "norm_heads": sinks.norm_heads,
        "key_norm": keys.lengths.mean(0)[at],
        "key_norm_relative": _relative(keys.lengths)[at],
        "value_norm": values.lengths.mean(0)[at],
        "value_norm_relative": _relative(values.lengths)[at],
        "key_cos_to_mean": cosine[at],
    }
    tokens = measured.prompt.manifest.tokens
    for position, reason, row in zip(at.tolist(), sinks.reasons(), unstack(columns), strict=True):
        token, role = tokens.strings[position], tokens.roles[position]
        yield {"position": position, "token": token, "role": role, "reason": reason, **row}


def _relative(norms: torch.Tensor) -> torch.Tensor:
    """Norms over the median of their head, mean over heads, ``[N]``."""
    return (norms / norms.median(dim=1, keepdim=True).values).mean(0)
