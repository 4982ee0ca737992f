"""``redundancy.csv``: every reading of how redundant the vectors of a head are, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ecokv_cli.geometry.redundancy import (
    REDUNDANCY_MAPS,
    euclidean_redundancy,
    map_redundancy,
    mix_redundancy,
    root_mean_square,
)
from ecokv_cli.geometry.sinks import mean_cosine_without
from ecokv_cli.studies.analyze.rows import unstack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ecokv_cli.eviction.boosters import EcoKV
    from ecokv_cli.geometry.redundancy import RedundancyMap
    from ecokv_cli.studies.analyze.measured import Measured
    from ecokv_cli.studies.analyze.rows import Row

REDUNDANCY = (
    "model", "sample", "layer", "kv_head", "tensor", "domain", "map",
    "r_cos", "r_euc", "lambda_ecokv", "lambda_mixkv", "lambda_std",
)  # fmt: skip


def redundancy_rows(measured: Measured) -> Iterator[Row]:
    """Rows per tensor, domain of the average and redundancy map.

    Domain ``all`` averages over all N positions, ``candidates`` over those outside the method's window; the
    centroid is that of all positions either way.
    """
    n, candidates = measured.layer.tokens, measured.boosted.importance.shape[1]
    window = torch.arange(candidates, n)
    for name, cloud in measured.clouds.items():
        without_window = mean_cosine_without(cloud, measured.tensors[name], window)
        dim = measured.tensors[name].shape[-1]
        domains = {"all": (n, cloud.cosine_mean), "candidates": (candidates, without_window)}
        for domain, (count, r_cos) in domains.items():
            for kind in REDUNDANCY_MAPS:
                numbers = _readings(measured.settings.booster, cloud.distances[:, :count], r_cos, dim, kind)
                rows = list(unstack(numbers))
                for head in measured.settings.heads:
                    yield {"kv_head": head, "tensor": name, "domain": domain, "map": kind, **rows[head]}


def _readings(
    booster: EcoKV, distances: torch.Tensor, r_cos: torch.Tensor, dim: int, kind: RedundancyMap
) -> dict[str, torch.Tensor]:
    temperature = booster.temperature or None
    r_euc = euclidean_redundancy(distances, dim, kind, temperature)
    return {
        "r_cos": r_cos,
        "r_euc": r_euc,
        "lambda_ecokv": mix_redundancy(r_euc, r_cos, booster.beta, booster.clamp),
        "lambda_mixkv": r_cos.clamp(0, 1),
        "lambda_std": map_redundancy(root_mean_square(distances, booster.ddof), dim, temperature=temperature),
    }
