"""Uncertainty over samples, by bootstrap. Tokens, heads and layers of one sample are not independent; samples are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from ecokv_cli.studies.tables import Key, Value

RESAMPLES = 2000
LEVEL = 0.95
_BATCH = 100
_NUMBERS = 4_000_000
"""How many resampled numbers are held at a time, at least those of one row in one batch."""


def mean_intervals(values: npt.NDArray[np.float64], seed: int = 0) -> npt.NDArray[np.float64]:
    """Percentile bootstrap interval of the mean of each row.

    Parameters
    ----------
    values
        ``[rows, samples]`` without gaps.
    seed
        Seed of the resampling.

    Returns
    -------
    numpy.ndarray
        ``[rows, 2]`` lower and upper end of the 95 % interval; NaN for fewer than two samples. With fewer than
        about ten samples such intervals are too narrow.
    """
    if values.shape[1] < 2 or not len(values):
        return np.full((len(values), 2), np.nan)
    # All rows are resampled alike, so it makes no difference how many are done at a time.
    rows = max(1, _NUMBERS // (_BATCH * values.shape[1]))
    return np.concatenate([_intervals(values[i : i + rows], seed) for i in range(0, len(values), rows)])


def _intervals(values: npt.NDArray[np.float64], seed: int) -> npt.NDArray[np.float64]:
    found = stats.bootstrap(
        (values,), np.mean, axis=1, n_resamples=RESAMPLES, confidence_level=LEVEL, method="percentile", batch=_BATCH,
        rng=np.random.default_rng(seed),
    )  # fmt: skip
    interval = found.confidence_interval
    return np.stack([interval.low, interval.high], axis=1)


def over_samples(table: Table, by: Sequence[str], columns: Sequence[str], seed: int = 0) -> Table:
    """Mean of every column over samples, with its interval.

    Rows of one sample in one group are averaged first, so a sample counts once however many rows it has.

    Parameters
    ----------
    table
        Rows with a `sample` column.
    by
        Columns that make a group.
    columns
        Numbers to summarise.
    seed
        Seed of the resampling.

    Returns
    -------
    Table
        ``<name>_over_samples`` with the columns of `by`, then `measure`, `mean`, `low` and `high` (ends of the 95 %
        bootstrap interval, empty for a single sample) and `n`, the number of samples with a defined value.
    """
    result = Table(f"{table.name}_over_samples", (*by, "measure", "mean", "low", "high", "n"))
    for column in columns:
        for key, found in means_over_samples(table.by_sample(by, column), seed).items():
            result.add(**dict(zip(by, key, strict=True)), measure=column, **found)
    return result


def means_over_samples(groups: Mapping[Key, npt.NDArray[np.float64]], seed: int = 0) -> dict[Key, dict[str, Value]]:
    """Mean of the numbers of each group over samples, with its interval.

    Parameters
    ----------
    groups
        A number per sample, NaN where a sample has none, as `Table.by_sample` gives; at least one is defined.
    seed
        Seed of the resampling.

    Returns
    -------
    dict
        Per group `mean`, `low`, `high` and `n` as in `over_samples`.
    """
    defined = {key: numbers[np.isfinite(numbers)] for key, numbers in groups.items()}
    ends: dict[Key, npt.NDArray[np.float64]] = {}
    for size in sorted({len(numbers) for numbers in defined.values()}):
        same = [key for key, numbers in defined.items() if len(numbers) == size]
        intervals = mean_intervals(np.array([defined[key] for key in same]), seed)
        ends |= dict(zip(same, intervals, strict=True))
    return {
        key: {
            "mean": float(np.mean(numbers)),
            "low": float(ends[key][0]),
            "high": float(ends[key][1]),
            "n": len(numbers),
        }
        for key, numbers in defined.items()
    }


def paired_p_value(differences: npt.NDArray[np.float64], seed: int = 0) -> float | None:
    """Two-sided permutation test that the mean paired difference is zero, by flipping signs.

    Parameters
    ----------
    differences
        ``[samples]`` difference of each sample.
    seed
        Seed of the resampling, where there are too many sign patterns to try all.

    Returns
    -------
    float or None
        p in (0, 1]; None for fewer than two samples. All-equal samples give 1.
    """
    if len(differences) < 2:
        return None
    if not differences.any():
        return 1.0
    found = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=9999, vectorized=True, axis=0,
        rng=np.random.default_rng(seed),
    )  # fmt: skip
    return float(found.pvalue)
