"""All tables of all samples, one layer in memory at a time."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from ecokv_cli.studies.analyze.cosines import HISTOGRAM, histogram_rows
from ecokv_cli.studies.analyze.geometry import GEOMETRY, geometry_rows
from ecokv_cli.studies.analyze.measured import Measured
from ecokv_cli.studies.analyze.planes import PCA, plane_rows
from ecokv_cli.studies.analyze.prompt import Prompt
from ecokv_cli.studies.analyze.redundancy import REDUNDANCY, redundancy_rows
from ecokv_cli.studies.analyze.regions import REGIONS, region_rows
from ecokv_cli.studies.analyze.roles import ROLES, role_rows
from ecokv_cli.studies.analyze.sinks import SINKS, sink_rows
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.studies.analyze.settings import AnalyzeSettings

LAYERS = (
    "cos_mean", "dist_mean", "dist_per_norm", "effective_rank", "r_euc", "lambda_ecokv", "lambda_mixkv", "lambda_std",
    "spearman",
)  # fmt: skip


@dataclass(frozen=True)
class Analysis:
    """Result tables; docs/columns.md explains their columns."""

    geometry: Table
    redundancy: Table
    roles: Table
    regions: Table
    sinks: Table
    histogram: Table
    pca: Table

    @property
    def layers(self) -> Table:
        """One row per sample and layer: means over KV heads, of the keys as cached."""
        where = ("model", "sample", "layer", "tokens")
        keys = self.geometry.where(tensor="keys")
        means = {column: keys.aggregate(where, column, fmean) for column in LAYERS}
        table = Table("layers", (*where, *LAYERS))
        for key in means["cos_mean"]:
            table.add(**dict(zip(where, key, strict=True)), **{column: means[column].get(key) for column in LAYERS})
        return table

    @property
    def tables(self) -> list[Table]:
        """All of them."""
        return [
            self.layers,
            self.geometry,
            self.redundancy,
            self.roles,
            self.regions,
            self.sinks,
            self.histogram,
            self.pca,
        ]

    @torch.inference_mode()
    def add(self, measured: Measured) -> None:
        """Add the rows of one layer to every table."""
        manifest = measured.prompt.manifest
        makers = {
            geometry_rows: self.geometry,
            redundancy_rows: self.redundancy,
            role_rows: self.roles,
            region_rows: self.regions,
            sink_rows: self.sinks,
            histogram_rows: self.histogram,
            plane_rows: self.pca,
        }
        for rows, table in makers.items():
            for row in rows(measured):
                table.add(model=manifest.model.id, sample=manifest.sample, layer=measured.layer.index, **row)


def empty_analysis() -> Analysis:
    """Tables without rows."""
    return Analysis(
        Table("geometry", GEOMETRY),
        Table("redundancy", REDUNDANCY),
        Table("roles", ROLES),
        Table("regions", REGIONS),
        Table("sinks", SINKS),
        Table("cosine_histogram", HISTOGRAM),
        Table("pca", PCA),
    )


def analyze(
    samples: Sequence[Dump], settings: AnalyzeSettings, progress: Callable[[int, int], None] = lambda *_: None
) -> Analysis:
    """Geometry of the keys and values of every chosen layer and head, one layer in memory at a time.

    Parameters
    ----------
    samples
        Dumps to analyse.
    settings
        What to analyse.
    progress
        Called with layers done and layers in all.

    Returns
    -------
    Analysis
        Rows for keys and values, and for keys before RoPE where the dump holds them (column `tensor`).
    """
    result = empty_analysis()
    done, total = 0, len(samples) * len(settings.layers)
    for dump in samples:
        prompt = Prompt(dump.manifest)
        for index in settings.layers:
            # No name for the layer: it would keep its memory until the next one is read.
            result.add(Measured(dump.layer(index), prompt, settings))
            done += 1
            progress(done, total)
    return result
