"""``pca.csv``: every position of the chosen heads in the plane of its first two principal components."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ecokv_cli.geometry.projection import principal_components

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ecokv_cli.studies.analyze.measured import Measured
    from ecokv_cli.studies.analyze.rows import Row

PCA = ("model", "sample", "layer", "kv_head", "tensor", "position", "role", "pc1", "pc2", "ev1", "ev2")


def plane_rows(measured: Measured) -> Iterator[Row]:
    """Rows of the heads in ``settings.pca``; fitted on the full cache, so methods can be shown on the same axes."""
    layer = measured.layer.index
    chosen = [head for at, head in measured.settings.pca if at == layer and head in measured.settings.heads]
    for head in chosen:
        for name, cloud in measured.clouds.items():
            one = slice(head, head + 1)
            vectors = measured.tensors[name][one]
            fit = principal_components(cloud.centroid[one], cloud.covariance[one], vectors)
            # One-dimensional heads have no second component.
            ev1, ev2 = [*fit.ratios[0].tolist(), 0.0][:2]
            plane = fit.project(vectors, 2)[0].tolist()
            for position, (point, role) in enumerate(zip(plane, measured.prompt.manifest.tokens.roles, strict=True)):
                pc1, pc2 = [*point, 0.0][:2]
                where: Row = {"kv_head": head, "tensor": name, "position": position, "role": role}
                yield {**where, "pc1": pc1, "pc2": pc2, "ev1": ev1, "ev2": ev2}
