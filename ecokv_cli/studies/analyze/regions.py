"""``regions.csv``: how the tokens of each part of an image lie within the cloud.

An image is split in 3 x 3 parts, as photographers do, and not in its grid cells: parts mean the same for images of
every size and shape and for all tiles of one image, hold enough tokens for a mean, and keep the table short. Single
cells can be had from ``pca.csv``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ecokv_cli.geometry.groups import means
from ecokv_cli.studies.analyze.rows import unstack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ecokv_cli.studies.analyze.measured import Measured
    from ecokv_cli.studies.analyze.rows import Row

REGIONS = (
    "model", "sample", "layer", "tensor", "image", "region_row", "region_col", "tokens",
    "norm_mean", "dist_mean", "dist_relative", "cos_to_mean",
)  # fmt: skip


def region_rows(measured: Measured) -> Iterator[Row]:
    """A row per tensor and part of an image that holds tokens, means over the chosen KV heads."""
    regions = measured.prompt.regions
    if not regions:
        return
    members = torch.stack(list(regions.values()))
    counts = members.sum(1).tolist()
    heads = list(measured.settings.heads)
    for name, cloud in measured.clouds.items():
        distance = means(cloud.distances, members)[heads]
        alignment = means(cloud.alignment, members)[heads]
        columns = {
            "norm_mean": means(cloud.lengths, members)[heads],
            "dist_mean": distance,
            "dist_relative": distance / cloud.distances[heads].mean(1, keepdim=True),
            "cos_to_mean": alignment / cloud.direction[heads].norm(dim=1, keepdim=True),
        }
        rows = unstack({column: values.mean(0) for column, values in columns.items()})
        for region, count, row in zip(regions, counts, rows, strict=True):
            where: Row = {"image": region.image, "region_row": region.row, "region_col": region.col}
            yield {"tensor": name, **where, "tokens": count, **row}
