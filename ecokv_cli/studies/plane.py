"""``plane.csv``: the positions of the focused head on its first two principal components."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ecokv_cli.geometry.cloud import survey
from ecokv_cli.geometry.projection import principal_components

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.eviction.layer import Layer
    from ecokv_cli.studies.tables import Value

PLANE = ("model", "sample", "layer", "kv_head", "position", "role", "pc1", "pc2", "ev1", "ev2")


def plane_rows(dump: Dump, layer: Layer, head: int) -> Iterator[dict[str, Value]]:
    """Coordinates of every key of one head, fitted once on the full cache.

    `ev1` and `ev2` are the shares of the variance along the two components. What methods keep is in the rows of the
    same head in ``positions.csv``.
    """
    keys = layer.keys[head : head + 1].cpu()
    cloud = survey(keys)
    fit = principal_components(cloud.centroid, cloud.covariance, keys)
    # One-dimensional heads have no second component.
    ev1, ev2 = [*fit.ratios[0].tolist(), 0.0][:2]
    who: dict[str, Value] = {"model": dump.manifest.model.id, "sample": dump.manifest.sample}
    where = {**who, "layer": layer.index, "kv_head": head, "ev1": ev1, "ev2": ev2}
    points = zip(fit.project(keys, 2)[0].tolist(), dump.manifest.tokens.roles, strict=True)
    for position, (point, role) in enumerate(points):
        pc1, pc2 = [*point, 0.0][:2]
        yield {**where, "position": position, "role": role, "pc1": pc1, "pc2": pc2}
