"""From answers to tables: accuracy with intervals, paired differences with p-values, costs as ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ecokv_cli.studies.statistics import mean_intervals, paired_p_value
from ecokv_cli.studies.tables import Table, Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

Key = tuple[Value, Value, Value]
"""Method, budget, window."""

ACCURACY = (
    "model", "budget", "method", "window", "kept", "mean", "low", "high", "n", "against", "difference",
    "difference_low", "difference_high", "p",
)  # fmt: skip
COST = (
    "model", "budget", "method", "window", "n", "cache_bytes", "cache_ratio", "prefill_seconds", "scoring_share",
    "seconds_per_token", "decode_ratio",
)  # fmt: skip


def accuracy_table(answers: Table, hosts: Mapping[str, Sequence[str]], seed: int = 0) -> Table:
    """Mean score of every arm with its interval, and the paired difference to what it builds on.

    Parameters
    ----------
    answers
        All rows of all samples.
    hosts
        For each boosted method the names of its host, from `hosts_of`; the difference is to the first of them that
        was run at the same budget, and to the full cache otherwise.
    seed
        Seed of the resampling.

    Returns
    -------
    Table
        ``accuracy``: `mean`, ends of the 95 % bootstrap interval over samples, `n`; `against` what, `difference` of the
        means, its paired interval, and the two-sided p-value of a permutation test (not corrected for the number of
        rows).
    """
    table = Table("accuracy", ACCURACY)
    scores = _by_arm(answers, "score")
    kept = _by_arm(answers, "kept")
    full = next((key for key in scores if key[1] is None), None)
    model = answers.rows[0]["model"] if len(answers) else None
    for key in sorted(scores, key=_order):
        values = np.array(list(scores[key].values()))
        low, high = (float(end) for end in mean_intervals(values[None], seed)[0])
        other = _reference(key, scores, hosts, full)
        table.add(
            model=model, budget=key[1], method=key[0], window=key[2], kept=float(np.mean(list(kept[key].values()))),
            mean=float(values.mean()), low=low, high=high, n=len(values), **_difference(scores, key, other, seed),
        )  # fmt: skip
    return table


def cost_table(answers: Table) -> Table:
    """Cost of every arm beside the full cache of the same run.

    Returns
    -------
    Table
        ``cost``: measured `cache_bytes` of the prompt (mean over samples) and their ratio to the full cache's;
        `scoring_share` time to score and select as a share of the prefill; `seconds_per_token` of decoding and its
        ratio to the full cache's. Times include whatever else the machine did.
    """
    table = Table("cost", COST)
    columns = {c: _by_arm(answers, c) for c in (
        "cache_bytes", "cache_ratio", "prefill_seconds", "scoring_seconds", "decode_seconds", "decoded",
    )}  # fmt: skip
    sums = {c: {key: float(np.sum(list(v.values()))) for key, v in arms.items()} for c, arms in columns.items()}
    keys = sorted(columns["cache_bytes"], key=_order)
    passes = {key: max(sums["decoded"][key] - len(columns["decoded"][key]), 1.0) for key in keys}
    per_token = {key: sums["decode_seconds"][key] / passes[key] for key in keys}
    full = next((key for key in keys if key[1] is None), None)
    for key in keys:
        n = len(columns["cache_bytes"][key])
        table.add(
            model=answers.rows[0]["model"], budget=key[1], method=key[0], window=key[2], n=n,
            cache_bytes=sums["cache_bytes"][key] / n, cache_ratio=sums["cache_ratio"][key] / n,
            prefill_seconds=sums["prefill_seconds"][key] / n,
            scoring_share=sums["scoring_seconds"][key] / sums["prefill_seconds"][key],
            seconds_per_token=per_token[key], decode_ratio=per_token[key] / per_token[full] if full else None,
        )  # fmt: skip
    return table


def pivot(accuracy: Table, best: str = "*") -> Table:
    """Methods by budgets as papers print them: ``mean [interval] (difference)``, the best of each budget marked."""
    budgets = [b for b in accuracy.distinct("budget") if b is not None]
    table = Table("accuracy_by_budget", ("method", "window", *(str(b) for b in budgets)))
    top = {b: max(float(str(r["mean"])) for r in accuracy.where(budget=b)) for b in budgets}
    rows: dict[tuple[Value, Value], dict[str, Value]] = {}
    for row in accuracy:
        line = rows.setdefault((row["method"], row["window"]), {str(b): None for b in budgets})
        for budget in budgets if row["budget"] is None else [row["budget"]]:
            mark = best if row["budget"] is not None and row["mean"] == top[budget] else ""
            line[str(budget)] = f"{_cell(row)}{mark}"
    for (method, window), line in rows.items():
        table.add(method=method, window=window, **line)
    return table


def _cell(row: dict[str, Value]) -> str:
    mean, low, high = (row[c] for c in ("mean", "low", "high"))
    text = f"{float(str(mean)):.3f}"
    if low is not None and high is not None:
        text += f" [{float(str(low)):.3f}, {float(str(high)):.3f}]"
    if row["difference"] is not None:
        text += f" ({float(str(row['difference'])):+.3f})"
    return text


def _by_arm(answers: Table, column: str) -> dict[Key, dict[str, float]]:
    """Value of every sample by arm, in order of appearance."""
    arms: dict[Key, dict[str, float]] = {}
    for row in answers:
        key = (row["method"], row["budget"], row["window"])
        arms.setdefault(key, {})[str(row["sample"])] = float(str(row[column]))
    return arms


def _order(key: Key) -> tuple[int, int]:
    """The full cache first, then by falling budget; methods in the order they were given."""
    return (0, 0) if key[1] is None else (1, -int(str(key[1])))


def _reference(
    key: Key, arms: Mapping[Key, object], hosts: Mapping[str, Sequence[str]], full: Key | None
) -> Key | None:
    for host in hosts.get(str(key[0]), ()):
        for other in arms:
            if other[0] == host and other[1] == key[1]:
                return other
    return None if key == full else full


def _difference(scores: Mapping[Key, Mapping[str, float]], key: Key, other: Key | None, seed: int) -> dict[str, Value]:
    if other is None:
        return dict.fromkeys(("against", "difference", "difference_low", "difference_high", "p"))
    shared = [sample for sample in scores[key] if sample in scores[other]]
    differences: npt.NDArray[np.float64] = np.array([scores[key][s] - scores[other][s] for s in shared])
    low, high = (float(end) for end in mean_intervals(differences[None], seed)[0])
    return {
        "against": f"{other[0]}, window {other[2]}" if other[1] is not None else str(other[0]),
        "difference": float(differences.mean()), "difference_low": low, "difference_high": high,
        "p": paired_p_value(differences, seed),
    }  # fmt: skip
