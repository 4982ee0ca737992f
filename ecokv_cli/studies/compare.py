"""Two runs side by side: another model, prompt, precision or set of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from ecokv_cli.studies.statistics import LEVEL, RESAMPLES, mean_intervals
from ecokv_cli.studies.tables import Table, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Sampled = dict[str, float]


def compare_tables(
    first: Table, second: Table, by: Sequence[str], columns: Sequence[str], name: str, seed: int = 0
) -> Table:
    """Means of two runs over their samples, and their difference with its interval.

    Where both runs share two samples or more (by name) only these are compared, each with itself; otherwise the
    difference is that of the means of all.

    Parameters
    ----------
    first, second
        The same table of two runs, with a `sample` column.
    by
        Columns that make a group, such as layer; only groups that both runs have get a difference. An empty value
        in the result stands for the mean of all groups that both runs have.
    columns
        Numbers to compare.
    name
        Name of the result.
    seed
        Seed of the resampling.

    Returns
    -------
    Table
        `by`, `measure`, `first`, `second` (means), `difference` (second minus first), `low` and `high` (ends of its
        95 % bootstrap interval; empty where a run has a single sample), `n_first`, `n_second`, `paired`.
    """
    result = Table(
        name,
        (*by, "measure", "first", "second", "difference", "low", "high", "n_first", "n_second", "paired"),
    )
    for column in columns:
        groups = [_by_group(table, by, column) for table in (first, second)]
        if len(by) == 1:
            shared = groups[0].keys() & groups[1].keys()
            for found in groups:
                found[None,] = _overall([samples for key, samples in found.items() if key in shared])
        for key in dict.fromkeys([*groups[0], *groups[1]]):
            a, b = groups[0].get(key, {}), groups[1].get(key, {})
            where = dict(zip(by, key, strict=True))
            result.add(**where, measure=column, **_contrast(a, b, seed))
    return result


def _by_group(table: Table, by: Sequence[str], column: str) -> dict[tuple[Value, ...], Sampled]:
    """Value of each sample in each group."""
    groups: dict[tuple[Value, ...], Sampled] = {}
    for *key, sample in (means := table.aggregate((*by, "sample"), column, lambda v: float(np.mean(v)))):
        groups.setdefault(tuple(key), {})[str(sample)] = means[*key, sample]
    return groups


def _overall(groups: Sequence[Sampled]) -> Sampled:
    """Mean over groups of each sample."""
    names = dict.fromkeys(name for group in groups for name in group)
    return {name: float(np.mean([group[name] for group in groups if name in group])) for name in names}


def _contrast(a: Sampled, b: Sampled, seed: int) -> dict[str, Value]:
    shared = a.keys() & b.keys()
    paired = len(shared) > 1
    if paired:
        a, b = ({name: side[name] for name in shared} for side in (a, b))
    first, second = (np.array([side[s] for s in sorted(side)], dtype=np.float64) for side in (a, b))
    difference: float | None = None
    low = high = float("nan")
    if len(a) and len(b):
        difference = float(second.mean() - first.mean())
        if paired:
            low, high = (float(end) for end in mean_intervals((second - first)[None], seed)[0])
        elif min(len(a), len(b)) > 1:
            low, high = _unpaired(first, second, seed)
    return {
        "first": float(first.mean()) if len(a) else None,
        "second": float(second.mean()) if len(b) else None,
        "difference": difference,
        "low": low,
        "high": high,
        "n_first": len(a),
        "n_second": len(b),
        "paired": paired,
    }


def _unpaired(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64], seed: int) -> tuple[float, float]:
    found = stats.bootstrap(
        (first, second), lambda x, y, axis: np.mean(y, axis=axis) - np.mean(x, axis=axis), n_resamples=RESAMPLES,
        confidence_level=LEVEL, method="percentile", rng=np.random.default_rng(seed), vectorized=True,
    )  # fmt: skip
    return float(found.confidence_interval.low), float(found.confidence_interval.high)
