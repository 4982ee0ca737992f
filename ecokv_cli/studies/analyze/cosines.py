"""``cosine_histogram.csv``: how the pairwise cosines of each layer, KV head and tensor are distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ecokv_cli.geometry.cosines import COARSE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ecokv_cli.studies.analyze.measured import Measured
    from ecokv_cli.studies.analyze.rows import Row

HISTOGRAM = (
    "model", "sample", "layer", "kv_head", "tensor", "bin_low", "bin_high", "share", "pairs", "exact", "seed",
)  # fmt: skip


def histogram_rows(measured: Measured) -> Iterator[Row]:
    """The `COARSE` bins of every head; none for a single position."""
    for name, histogram in measured.histograms.items():
        if histogram.pairs == 0:
            continue
        shares = histogram.shares().tolist()
        for head in measured.settings.heads:
            for i, share in enumerate(shares[head]):
                yield {
                    "kv_head": head,
                    "tensor": name,
                    "bin_low": -1 + 2 * i / COARSE,
                    "bin_high": -1 + 2 * (i + 1) / COARSE,
                    "share": share,
                    "pairs": histogram.pairs,
                    "exact": histogram.exact,
                    "seed": None if histogram.exact else measured.settings.seed,
                }
