"""What figures need of the tables of many samples, gathered sample by sample, so that thousands fit in memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ecokv_cli.figures.cosines import QUANTILES, with_quantiles
from ecokv_cli.figures.gallery import SAMPLES
from ecokv_cli.figures.overview import GEOMETRY, REDUNDANCY, REGIONS, ROLES, SINKS, flat
from ecokv_cli.figures.recency import BINS, in_bins, recent
from ecokv_cli.figures.redundancy import correlated
from ecokv_cli.figures.regions import PART, averaged_images
from ecokv_cli.figures.roles import with_ratio
from ecokv_cli.studies.reduced import Reducer, Reduction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ecokv_cli.studies.analyze import Analysis
    from ecokv_cli.studies.evict import Eviction
    from ecokv_cli.studies.reduced import Reduced
    from ecokv_cli.studies.tables import Table

    Result = TypeVar("Result", Analysis, Eviction)

WITH_SINKS = 50
"""Sinks, one mark each, are drawn for this many samples, the first ones: more would be a blot."""

_MEANS = (
    "cos_mean", "cos_mean_no_sinks", "dist_mean", "dist_per_norm", "norm_mean", "norm_std", "norm_min", "norm_max",
    "pca_1", "effective_rank", "participation_ratio", "r_euc", "lambda_ecokv", "lambda_mixkv", "lambda_std", "spearman",
    "spearman_n", "zero_keys",
)  # fmt: skip
"""What figures of the geometry show of single heads."""

_FIDELITY = ("mass", "output_error", "output_cosine")
_FIRST = Reduction(first=SAMPLES)


def reduce_analysis(results: Sequence[Analysis], measures: Sequence[str]) -> tuple[Analysis, Table]:
    """The tables that figures of the geometry take, and the layers.

    Parameters
    ----------
    results
        One per sample. A single one is returned as it is; of several the tables are reduced, see `Reduced`.
    measures
        Columns of the layers.

    Returns
    -------
    tuple
        Tables, and that of the layers.
    """
    if len(results) == 1:
        return results[0], results[0].layers
    layers = Reduction(level=("model", "layer"), series=tuple(measures))
    geometry = _over_layers("tensor", numbers=(*flat(GEOMETRY), "sinks"))
    return _reduced(
        results,
        ("layers", layers),
        {
            "geometry": replace(geometry, means=_MEANS, prepare=correlated),
            "redundancy": _over_layers("tensor", "domain", "map", numbers=flat(REDUNDANCY)),
            "roles": replace(_over_layers("tensor", "role", numbers=flat(ROLES)), prepare=with_ratio),
            "regions": Reduction(
                cells=PART, level=("model", *PART), means=flat(REGIONS), series=(*flat(REGIONS), "images"),
                prepare=averaged_images,
            ),
            "sinks": Reduction(level=("model", "layer"), series=flat(SINKS), first=WITH_SINKS),
            "histogram": Reduction(
                cells=("tensor", "layer", "kv_head", "bin_low", "bin_high"), level=("tensor", "layer"),
                means=("share", "pairs", "exact", "seed"), series=tuple(QUANTILES), prepare=with_quantiles,
            ),
            "pca": _FIRST,
        },
    )  # fmt: skip


def reduce_eviction(results: Sequence[Eviction], measures: Sequence[str], longest: int) -> tuple[Eviction, Table]:
    """The tables that figures of the simulated eviction take, and the methods; as `reduce_analysis`.

    Parameters
    ----------
    results
        One per sample.
    measures
        Columns of the methods.
    longest
        Positions of the longest prompt.
    """
    from ecokv_cli.studies.evict import AGE_BINS

    if len(results) == 1:
        return results[0], results[0].methods
    role = ("method", "budget", "role")
    tables, methods = _reduced(
        results,
        ("methods", Reduction(level=("model", "budget", "method", "window"), series=tuple(measures))),
        {
            "fidelity": Reduction(
                cells=("method", "budget", "layer", "kv_head"), level=("method", "budget"),
                means=(*_FIDELITY, "kept", "window"), series=_FIDELITY,
            ),
            "ledger": Reduction(cells=("method", "budget", "note"), means=("kept", "exact")),
            "positions": Reduction(level=BINS, series=("kept",), first=SAMPLES, prepare=recent),
            "roles": Reduction(cells=role, level=role, series=("share_of_role", "kept_tokens", "tokens")),
            "recency": Reduction(
                cells=BINS, level=BINS, means=("split",), series=("kept",),
                prepare=partial(in_bins, widest=-(-longest // AGE_BINS), longest=longest),
            ),
            "overlap": Reduction(cells=("budget", "method_a", "method_b"), means=("jaccard",)),
            "plane": _FIRST,
        },
    )  # fmt: skip
    return replace(tables, masks={}), methods


def _over_layers(*groups: str, numbers: tuple[str, ...]) -> Reduction:
    """What `profiles.profile` needs: every head as a mean over samples, and every sample as a mean over heads."""
    return Reduction((*groups, "layer", "kv_head"), ("model", *groups, "layer"), numbers, numbers)


def _reduced(
    results: Sequence[Result], overview: tuple[str, Reduction], how: Mapping[str, Reduction]
) -> tuple[Result, Reduced]:
    reducers = {name: Reducer(each) for name, each in (overview, *how.items())}
    for result in results:
        for name, reducer in reducers.items():
            reducer.add(getattr(result, name))
    found: dict[str, Any] = {name: reducer.table() for name, reducer in reducers.items()}
    summed = found.pop(overview[0])
    return replace(results[0], **found), summed
