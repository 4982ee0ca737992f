"""From answers to tables: accuracy with intervals, paired differences with p-values, costs as ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from ecokv_cli.studies.statistics import LEVEL, RESAMPLES, mean_intervals, paired_p_value
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
    "model", "budget", "method", "window", "n", "ledger_bytes", "ledger_ratio", "cache_bytes", "cache_ratio",
    "peak_bytes", "peak_ratio", "peak_source", "prefill_seconds", "scoring_share", "seconds_per_token", "decode_ratio",
    "decode_ratio_low", "decode_ratio_high",
)  # fmt: skip
MEASURED = (
    "ledger_bytes", "cache_bytes", "peak_bytes", "prefill_seconds", "scoring_seconds", "decode_seconds", "decoded",
)  # fmt: skip
MARK = " *"
"""After the best cells of the table by budget, where nothing can be set in bold."""


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


def cost_table(answers: Table, seed: int = 0) -> Table:
    """Cost of every arm beside the full cache of the same run.

    Parameters
    ----------
    answers
        All rows of all samples.
    seed
        Seed of the resampling.

    Returns
    -------
    Table
        ``cost``, means over samples: bytes of the prompt's cache by the ledger and as measured, and peak memory of
        decoding (`peak_source` says what it is), each with its ratio to the measured mean of the full cache;
        `scoring_share`, time to score and select as a share of the prefill; `seconds_per_token` of decoding and its
        ratio to the full cache's with the 95 % bootstrap interval over samples. Times include whatever else the
        machine did.
    """
    table = Table("cost", COST)
    found = {column: _by_arm(answers, column) for column in MEASURED}
    sources = {_key(row): row["peak_source"] for row in answers}
    keys = sorted(sources, key=_order)
    full = next((key for key in keys if key[1] is None), None)
    means = {key: {c: float(np.mean(list(found[c][key].values()))) for c in MEASURED} for key in keys}
    for key in keys:
        mean = means[key]
        seconds, passes = _decoding(found, key)
        table.add(
            model=answers.rows[0]["model"], budget=key[1], method=key[0], window=key[2],
            n=len(found["cache_bytes"][key]), peak_source=sources[key],
            **{c: mean[c] for c in ("ledger_bytes", "cache_bytes", "peak_bytes", "prefill_seconds")},
            ledger_ratio=mean["ledger_bytes"] / means[full]["cache_bytes"] if full else None,
            cache_ratio=mean["cache_bytes"] / means[full]["cache_bytes"] if full else None,
            peak_ratio=mean["peak_bytes"] / means[full]["peak_bytes"] if full else None,
            scoring_share=mean["scoring_seconds"] / mean["prefill_seconds"],
            seconds_per_token=float(seconds.sum() / passes.sum()) if passes.any() else None,
            **_decode_ratio(found, key, full, seed),
        )  # fmt: skip
    return table


def pivot(accuracy: Table) -> tuple[Table, frozenset[tuple[int, str]]]:
    """Methods by budgets as papers print them.

    Parameters
    ----------
    accuracy
        From `accuracy_table`.

    Returns
    -------
    tuple
        ``accuracy_by_budget`` with two rows per method and window: `mean` with its interval, and the paired difference
        to the method named in `what` with its interval and p-value; and where the best of each budget stand, as row
        number and column: the highest mean of all that evict, ties included.
    """
    budgets = [budget for budget in accuracy.distinct("budget") if budget is not None]
    columns = tuple(str(budget) for budget in budgets)
    table = Table("accuracy_by_budget", ("method", "window", "n", "what", *columns))
    lines: dict[tuple[Value, Value, str], dict[str, Value]] = {}
    best: set[tuple[tuple[Value, Value, str], str]] = set()
    for row in accuracy:
        method = (row["method"], row["window"])
        cells = columns if row["budget"] is None else (str(row["budget"]),)
        words = {"mean": _mean_words(row)}
        if row["difference"] is not None:
            host = str(row["against"]).removesuffix(f", window {row['window']}")  # said only where it differs
            words[f"minus {host}"] = _difference_words(row)
        for what, text in words.items():
            line = lines.setdefault((*method, what), {"n": row["n"], **dict.fromkeys(columns)})
            line |= dict.fromkeys(cells, text)
        if row["budget"] is not None and _is_best(row, accuracy.where(budget=row["budget"])):
            best.add(((*method, "mean"), str(row["budget"])))
    methods = dict.fromkeys(key[:2] for key in lines)
    order = [key for method in methods for key in lines if key[:2] == method]
    for key in order:
        table.add(method=key[0], window=key[1], what=key[2], **lines[key])
    return table, frozenset((order.index(key), column) for key, column in best)


def marked(table: Table, best: frozenset[tuple[int, str]]) -> Table:
    """The table with `MARK` after its best cells."""
    rows = [
        {column: f"{value}{MARK}" if (number, column) in best else value for column, value in row.items()}
        for number, row in enumerate(table)
    ]
    return Table(table.name, table.columns, rows)


def _is_best(row: dict[str, Value], among: Table) -> bool:
    return bool(np.isclose(float(str(row["mean"])), max(among.numbers("mean")), rtol=0, atol=1e-9))


def _mean_words(row: dict[str, Value]) -> str:
    return f"{float(str(row['mean'])):.3f}{_interval(row['low'], row['high'])}"


def _difference_words(row: dict[str, Value]) -> str:
    text = f"{float(str(row['difference'])):+.3f}{_interval(row['difference_low'], row['difference_high'], '+')}"
    if row["p"] is None:
        return text
    p = float(str(row["p"]))
    return f"{text}, p {'< 0.001' if p < 0.001 else f'= {p:.3f}'}"


def _interval(low: Value, high: Value, sign: str = "") -> str:
    return "" if low is None or high is None else f" [{float(str(low)):{sign}.3f}, {float(str(high)):{sign}.3f}]"


def _decoding(
    found: Mapping[str, Mapping[Key, Mapping[str, float]]], key: Key
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Seconds and forward passes of every sample; the first token of an answer comes from the prefill."""
    return (
        np.array(list(found["decode_seconds"][key].values())),
        np.maximum(np.array(list(found["decoded"][key].values())) - 1, 0),
    )


def _decode_ratio(
    found: Mapping[str, Mapping[Key, Mapping[str, float]]], key: Key, full: Key | None, seed: int
) -> dict[str, Value]:
    """Time per token over that of the full cache, samples resampled in pairs."""
    names = ("decode_ratio", "decode_ratio_low", "decode_ratio_high")
    numbers = (*_decoding(found, key), *_decoding(found, full)) if full else ()
    if not numbers or not all(each.any() for each in numbers):
        return dict.fromkeys(names)

    def ratio(
        seconds: npt.NDArray[np.float64], passes: npt.NDArray[np.float64], full_seconds: npt.NDArray[np.float64],
        full_passes: npt.NDArray[np.float64], axis: int = -1,
    ) -> npt.NDArray[np.float64]:  # fmt: skip
        # A resample of answers of a single token has no time at all; it counts as one pass of no time.
        own = seconds.sum(axis) / np.maximum(passes.sum(axis), 1)
        other = full_seconds.sum(axis) / np.maximum(full_passes.sum(axis), 1)
        quotient: npt.NDArray[np.float64] = np.divide(own, other, out=np.ones_like(own), where=other > 0)
        return quotient

    value = float(ratio(*numbers, axis=0))
    if len(numbers[0]) < 2 or key == full:
        return dict(zip(names, (value, None, None), strict=True))
    drawn = stats.bootstrap(
        numbers, ratio, paired=True, vectorized=True, axis=0, n_resamples=RESAMPLES, confidence_level=LEVEL,
        method="percentile", rng=np.random.default_rng(seed),
    ).confidence_interval  # fmt: skip
    return dict(zip(names, (value, float(drawn.low), float(drawn.high)), strict=True))


def _key(row: dict[str, Value]) -> Key:
    return row["method"], row["budget"], row["window"]


def _by_arm(answers: Table, column: str) -> dict[Key, dict[str, float]]:
    """Value of every sample by arm, in order of appearance."""
    arms: dict[Key, dict[str, float]] = {}
    for row in answers:
        arms.setdefault(_key(row), {})[str(row["sample"])] = float(str(row[column]))
    return arms


def _order(key: Key) -> tuple[int, float]:
    """The full cache first, then tokens and then shares, each by falling budget; methods in the order of the arms."""
    return (0, 0) if key[1] is None else (1, -float(str(key[1])))


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
