"""``roles.csv``: how image, text and special tokens lie within the cloud of each head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ecokv_cli.geometry.groups import deviations, group_statistics, means
from ecokv_cli.studies.analyze.rows import unstack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ecokv_cli.studies.analyze.measured import Measured
    from ecokv_cli.studies.analyze.rows import Row

ROLES = (
    "model", "sample", "layer", "kv_head", "tensor", "role", "tokens",
    "norm_mean", "norm_std", "dist_mean", "cos_within", "cos_rest", "variance_share",
)  # fmt: skip


def role_rows(measured: Measured) -> Iterator[Row]:
    """A row per tensor, KV head and role that occurs in the prompt."""
    roles = measured.prompt.roles
    members = torch.stack(list(roles.values()))
    counts = members.sum(1).tolist()
    for name, cloud in measured.clouds.items():
        groups = group_statistics(cloud, measured.tensors[name], members)
        columns = {
            "norm_mean": means(cloud.lengths, members),
            "norm_std": deviations(cloud.lengths, members),
            "dist_mean": means(cloud.distances, members),
            "cos_within": groups.cosine_within,
            "cos_rest": groups.cosine_rest,
            "variance_share": groups.variance_share,
        }
        for head in measured.settings.heads:
            rows = unstack({column: values[head] for column, values in columns.items()})
            for role, count, row in zip(roles, counts, rows, strict=True):
                yield {"kv_head": head, "tensor": name, "role": role, "tokens": count, **row}
