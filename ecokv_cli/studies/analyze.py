"""Geometry of a dump: one row of statistics per layer and KV head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.boosters import EcoKV, MixKV
from ecokv_cli.geometry.correlation import rank_correlation
from ecokv_cli.geometry.projection import principal_components
from ecokv_cli.geometry.similarity import cosine_moments, sample_cosines
from ecokv_cli.studies.tables import Table, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.eviction.layer import Layer
    from ecokv_cli.eviction.method import Method

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
COMPONENTS = 5
BINS = 100

GEOMETRY = (
    "model", "sample", "layer", "kv_head", "tokens", "zero_keys",
    "cos_mean", "cos_std", *(f"cos_q{round(100 * q):02d}" for q in QUANTILES),
    "norm_mean", "norm_std", "norm_min", "norm_max", "dist_mean", "dist_rms", "dist_max",
    *(f"pca_{i + 1}" for i in range(COMPONENTS)), "effective_rank", "participation_ratio",
    "r_cos", "r_euc", "lambda_ecokv", "lambda_mixkv", "lambda_std",
    "spearman", "spearman_n", "spearman_p", "spearman_note",
)  # fmt: skip


@dataclass(frozen=True)
class AnalyzeSettings:
    """What to analyse and how.

    Attributes
    ----------
    layers, heads
        Layer and KV head numbers.
    method
        The boosted method whose importance, diversity and lambda are analysed.
    pairs
        Pairs of keys sampled for quantiles and histogram; all pairs are used where there are fewer.
    seed
        Seed of that sample.
    pca
        (layer, KV head) pairs to project.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    method: Method
    pairs: int
    seed: int
    pca: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.method.booster, EcoKV):
            raise MethodError(f"--method {self.method.name}: analysis needs an ecokv method, such as snapkv+ecokv")


@dataclass(frozen=True)
class Analysis:
    """Result tables; see the columns in `GEOMETRY` and in `analyze`."""

    geometry: Table
    histogram: Table
    pca: Table

    @property
    def layers(self) -> Table:
        """One row per sample and layer: means over KV heads."""
        columns = (
            "cos_mean",
            "dist_mean",
            "effective_rank",
            "r_euc",
            "lambda_ecokv",
            "lambda_mixkv",
            "lambda_std",
            "spearman",
        )
        where = ("model", "sample", "layer", "tokens")
        means = {column: self.geometry.aggregate(where, column, fmean) for column in columns}
        table = Table("layers", (*where, *columns))
        for key in means["cos_mean"]:
            table.add(**dict(zip(where, key, strict=True)), **{column: means[column].get(key) for column in columns})
        return table

    @property
    def tables(self) -> list[Table]:
        """All of them."""
        return [self.layers, self.geometry, self.histogram, self.pca]


def analyze(
    samples: Sequence[Dump], settings: AnalyzeSettings, progress: Callable[[int, int], None] = lambda *_: None
) -> Analysis:
    """Statistics of the keys of every chosen layer and head, one layer in memory at a time.

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
        ``geometry``: a row per sample, layer and KV head. ``cosine_histogram``: share of sampled pairs per bin of
        width 0.02. ``pca``: the first two coordinates of every position of the chosen heads.
    """
    result = Analysis(
        Table("geometry", GEOMETRY),
        Table("cosine_histogram", ("model", "sample", "layer", "kv_head", "bin_low", "bin_high", "share")),
        Table("pca", ("model", "sample", "layer", "kv_head", "position", "role", "pc1", "pc2", "ev1", "ev2")),
    )
    done, total = 0, len(samples) * len(settings.layers)
    for dump in samples:
        for layer in dump.layers(settings.layers):
            _analyze_layer(result, dump, layer, settings)
            done += 1
            progress(done, total)
    return result


def _analyze_layer(result: Analysis, dump: Dump, layer: Layer, settings: AnalyzeSettings) -> None:
    where: dict[str, Value] = {"model": dump.manifest.model.id, "sample": dump.manifest.sample, "layer": layer.index}
    moments = cosine_moments(layer.unit_keys)
    sampled = sample_cosines(layer.unit_keys, settings.pairs, settings.seed)
    norms, distances = layer.keys.norm(dim=-1).double(), layer.key_distances.double()
    principal = principal_components(layer.keys)
    boosted = settings.method.boost(layer)
    booster = settings.method.booster
    assert isinstance(booster, EcoKV)
    candidates = boosted.importance.shape[1]
    r_euc = booster.r_euc(layer, candidates)
    lambda_mixkv = MixKV().weight(layer)
    lambda_std = replace(booster, std=True).weight(layer, candidates)
    correlations = rank_correlation(boosted.importance, boosted.diversity)
    quantiles = _quantiles(sampled)
    for head in settings.heads:
        ratios = principal.ratios[head].tolist()
        rho = correlations[head]
        result.geometry.add(
            **where,
            kv_head=head,
            tokens=layer.tokens,
            zero_keys=int(moments.zero_keys[head]),
            cos_mean=float(moments.mean[head]),
            cos_std=float(moments.std[head]),
            **{f"cos_q{round(100 * q):02d}": quantiles[head][i] for i, q in enumerate(QUANTILES)},
            norm_mean=float(norms[head].mean()),
            norm_std=float(norms[head].std(correction=0)),
            norm_min=float(norms[head].min()),
            norm_max=float(norms[head].max()),
            dist_mean=float(distances[head].mean()),
            dist_rms=float(distances[head].square().mean().sqrt()),
            dist_max=float(distances[head].max()),
            **{f"pca_{i + 1}": ratios[i] if i < len(ratios) else None for i in range(COMPONENTS)},
            effective_rank=float(principal.effective_rank[head]),
            participation_ratio=float(principal.participation_ratio[head]),
            r_cos=float(moments.mean[head]),
            r_euc=float(r_euc[head]),
            lambda_ecokv=float(boosted.weight[head]),
            lambda_mixkv=float(lambda_mixkv[head]),
            lambda_std=float(lambda_std[head]),
            spearman=rho.rho,
            spearman_n=rho.n,
            spearman_p=rho.p,
            spearman_note=rho.note,
        )
        _add_histogram(result.histogram, {**where, "kv_head": head}, sampled[head])
        if (layer.index, head) in settings.pca:
            plane = principal.project(layer.keys, 2)[head].tolist()
            for position, (point, role) in enumerate(zip(plane, dump.manifest.tokens.roles, strict=True)):
                result.pca.add(
                    **where,
                    kv_head=head,
                    position=position,
                    role=role,
                    pc1=point[0],
                    pc2=point[1] if len(point) > 1 else 0.0,
                    ev1=ratios[0],
                    ev2=ratios[1] if len(ratios) > 1 else 0.0,
                )


def _quantiles(sampled: torch.Tensor) -> list[list[float | None]]:
    if sampled.shape[1] == 0:
        return [[None] * len(QUANTILES)] * sampled.shape[0]
    wanted = torch.tensor(QUANTILES, dtype=torch.float64)
    found: list[list[float | None]] = sampled.double().cpu().quantile(wanted, dim=1).T.tolist()
    return found


def _add_histogram(table: Table, where: dict[str, Value], cosines: torch.Tensor) -> None:
    if len(cosines) == 0:
        return
    counts = torch.histc(cosines.float().cpu(), BINS, -1, 1)
    for i, share in enumerate((counts / counts.sum()).tolist()):
        table.add(**where, bin_low=-1 + 2 * i / BINS, bin_high=-1 + 2 * (i + 1) / BINS, share=share)
