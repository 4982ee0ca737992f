"""``geometry.csv``: a row of statistics per layer, KV head and tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ecokv_cli.geometry.correlation import rank_correlation
from ecokv_cli.geometry.projection import spectrum
from ecokv_cli.geometry.sinks import without
from ecokv_cli.studies.analyze.rows import unstack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ecokv_cli.studies.analyze.measured import Measured
    from ecokv_cli.studies.analyze.rows import Row

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
COMPONENTS = 5

_QUANTILE_COLUMNS = tuple(f"cos_q{round(100 * q):02d}" for q in QUANTILES)
_PCA_COLUMNS = tuple(f"pca_{i + 1}" for i in range(COMPONENTS))
_METHOD_COLUMNS = (
    "r_cos", "r_euc", "lambda_ecokv", "lambda_mixkv", "lambda_std",
    "spearman", "spearman_n", "spearman_p", "spearman_note",
)  # fmt: skip

GEOMETRY = (
    "model", "sample", "layer", "kv_head", "tensor", "tokens", "zero_keys", "sinks",
    "cos_mean", "cos_mean_no_sinks", "cos_std", *_QUANTILE_COLUMNS, "cos_pairs", "cos_exact",
    "norm_mean", "norm_std", "norm_min", "norm_max",
    "dist_mean", "dist_mean_no_sinks", "dist_rms", "dist_max", "dist_per_norm",
    *_PCA_COLUMNS, "effective_rank", "participation_ratio", "participation_ratio_no_sinks",
    *_METHOD_COLUMNS,
)  # fmt: skip


def geometry_rows(measured: Measured) -> Iterator[Row]:
    """Rows of every tensor; what belongs to the eviction method is None on all but those of the keys as cached."""
    heads = list(measured.settings.heads)
    nothing: Row = dict.fromkeys(_METHOD_COLUMNS)
    for name in measured.tensors:
        rows = list(unstack(statistics(measured, name)))
        method = method_rows(measured) if name == "keys" else [nothing] * len(rows)
        histogram = measured.histograms[name]
        for head in heads:
            yield {
                "kv_head": head,
                "tensor": name,
                "tokens": measured.layer.tokens,
                "sinks": len(measured.sinks.positions),
                "cos_pairs": histogram.pairs,
                "cos_exact": histogram.exact,
                **rows[head],
                **method[head],
            }


def statistics(measured: Measured, name: str) -> dict[str, torch.Tensor]:
    """Columns that any tensor has, each ``[H]``."""
    cloud = measured.clouds[name]
    trimmed = without(cloud, measured.tensors[name], measured.sinks.positions)
    shares = spectrum(cloud.covariance)
    undefined = torch.full_like(cloud.cosine_mean, torch.nan)
    quantiles = measured.histograms[name].quantiles(QUANTILES)
    ratios = shares.ratios
    norm_mean = cloud.lengths.mean(1)
    dist_mean = cloud.distances.mean(1)
    return {
        "zero_keys": cloud.zero,
        "cos_mean": cloud.cosine_mean,
        "cos_mean_no_sinks": trimmed.cosine_mean,
        "cos_std": cloud.cosine_std,
        **{
            column: undefined if quantiles is None else quantiles[:, i]
            for i, column in enumerate(_QUANTILE_COLUMNS)
        },
        "norm_mean": norm_mean,
        "norm_std": cloud.lengths.std(1, correction=0),
        "norm_min": cloud.lengths.amin(1),
        "norm_max": cloud.lengths.amax(1),
        "dist_mean": dist_mean,
        "dist_mean_no_sinks": trimmed.distance_mean,
        "dist_rms": cloud.distances.square().mean(1).sqrt(),
        "dist_max": cloud.distances.amax(1),
        "dist_per_norm": dist_mean / norm_mean,
        **{
            column: ratios[:, i] if i < ratios.shape[1] else undefined for i, column in enumerate(_PCA_COLUMNS)
        },
        "effective_rank": shares.effective_rank,
        "participation_ratio": shares.participation_ratio,
        "participation_ratio_no_sinks": trimmed.participation_ratio,
    }  # fmt: skip


def method_rows(measured: Measured) -> list[Row]:
    """Redundancy, lambda and the correlation of importance and diversity, as the method has them."""
    booster, boosted = measured.settings.booster, measured.boosted
    candidates = boosted.importance.shape[1]
    r_cos = measured.clouds["keys"].cosine_mean
    numbers = {
        "r_cos": r_cos,
        "r_euc": booster.r_euc(measured.informed, candidates),
        "lambda_ecokv": boosted.weight,
        "lambda_mixkv": r_cos.clamp(0, 1),
        "lambda_std": replace(booster, std=True, redundancy_map="sigmoid").weight(measured.informed, candidates),
    }
    correlations = rank_correlation(boosted.importance, boosted.diversity)
    return [
        {**row, "spearman": rho.rho, "spearman_n": rho.n, "spearman_p": rho.p, "spearman_note": rho.note}
        for row, rho in zip(unstack(numbers), correlations, strict=True)
    ]
