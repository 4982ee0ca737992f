"""What the analyses of many samples come to: means over samples with their intervals, for every analysis."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from ecokv_cli.figures.regions import averaged_images
from ecokv_cli.figures.roles import with_ratio
from ecokv_cli.studies.statistics import over_samples
from ecokv_cli.studies.tables import Table
from ecokv_cli.studies.wide import INTERVALS, Summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ecokv_cli.studies.analyze import Analysis

    Sets = tuple[tuple[str, ...], ...]

GEOMETRY: Sets = (
    ("cos_mean", "cos_mean_no_sinks", "cos_std", "dist_per_norm"),
    ("cos_q05", "cos_q25", "cos_q50", "cos_q75", "cos_q95"),
    ("dist_mean", "dist_mean_no_sinks", "dist_rms", "dist_max"),
    ("norm_mean", "norm_std", "norm_min", "norm_max"),
    ("pca_1", "pca_2", "pca_3", "pca_4", "pca_5"),
    ("effective_rank", "participation_ratio", "participation_ratio_no_sinks"),
    ("r_euc", "lambda_ecokv", "lambda_mixkv", "lambda_std", "spearman"),
)
REDUNDANCY: Sets = (("r_cos", "r_euc", "lambda_ecokv", "lambda_mixkv", "lambda_std"),)
ROLES: Sets = (
    ("token_share", "variance_share", "variance_ratio", "cos_within", "cos_rest"),
    ("norm_mean", "norm_std", "dist_mean"),
)
REGIONS: Sets = (("dist_relative", "cos_to_mean", "dist_mean", "norm_mean"),)
SINKS: Sets = (
    ("attention", "attention_heads", "received", "norm_heads"),
    ("key_norm", "key_norm_relative", "value_norm", "value_norm_relative", "key_cos_to_mean"),
)
_WITHOUT_SINKS = ("sinks", "cos_mean", "cos_mean_no_sinks")


def flat(sets: Sets) -> tuple[str, ...]:
    """The measures of all sets."""
    return tuple(chain(*sets))


def summaries(result: Analysis, per_layer: Table, measures: Sequence[str], seed: int) -> list[Summary]:
    """Means over samples with their 95 % bootstrap intervals, see `statistics.over_samples`.

    Parameters
    ----------
    result, per_layer
        The tables and that of the layers, from `reduction.reduce_analysis`.
    measures
        Columns of the layers.
    seed
        Seed of the resampling.

    Returns
    -------
    list of Summary
        ``<name>_over_samples`` of layers, geometry, redundancy, roles, regions and sinks; KV heads, images and sinks
        of a sample are averaged first. A table without rows, such as that of regions without images, stays empty.
    """

    def summed(table: Table, sets: Sets, *apart: str) -> Summary:
        apart = ("model", *apart)
        return Summary(over_samples(table, (*apart, "layer"), flat(sets), seed), sets, apart)

    layers = (tuple(measures[:INTERVALS]), tuple(measures[INTERVALS:]))
    return [
        summed(per_layer, layers),
        summed(result.geometry, GEOMETRY, "tensor"),
        summed(result.redundancy, REDUNDANCY, "tensor", "domain", "map"),
        summed(with_ratio(result.roles), ROLES, "tensor", "role"),
        summed(averaged_images(result.regions), REGIONS, "tensor", "region_row", "region_col"),
        _sinks(result, seed),
    ]


def _sinks(result: Analysis, seed: int) -> Summary:
    """How many sinks there are, the mean cosine of keys with and without them, and what the sinks are like."""
    by = ("model", "layer")
    effect = over_samples(result.geometry.where(tensor="keys"), by, _WITHOUT_SINKS, seed)
    alike = over_samples(result.sinks, by, flat(SINKS), seed)
    return Summary(Table(alike.name, alike.columns, [*effect.rows, *alike.rows]), (_WITHOUT_SINKS, *SINKS))
