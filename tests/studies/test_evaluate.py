"""Accuracy, costs and arms on answers made by hand; real decoding is proven in tests/models/test_evicted.py."""

import itertools

import numpy as np
import pytest

from ecokv_cli.errors import MethodError, UsageError
from ecokv_cli.eviction.spec import parse_methods
from ecokv_cli.studies.accuracy import accuracy_table, cost_table, pivot
from ecokv_cli.studies.evaluate import ANSWERS, arms_of, graded, hosts_of
from ecokv_cli.studies.metrics import find_metric
from ecokv_cli.studies.statistics import paired_p_value
from ecokv_cli.studies.tables import Table
from ecokv_cli.studies.tasks import docqa


def answers(scores):
    """Rows from ``{(method, budget, window): [score per sample]}``; costs grow with the budget."""
    table = Table("answers", ANSWERS)
    for (method, budget, window), values in scores.items():
        for number, score in enumerate(values):
            table.add(
                model="m", sample=f"s{number}", method=method, budget=budget, window=window, tokens=100,
                kept=float(budget or 100), prediction="", answers="", score=score, cache_bytes=10 * (budget or 100),
                cache_ratio=(budget or 100) / 100, prefill_seconds=2.0, scoring_seconds=0.5 if budget else 0.0,
                decode_seconds=3.0 if budget else 6.0, decoded=4,
            )  # fmt: skip
    return table


SCORES = {
    ("full", None, 0): [1, 1, 1, 1],
    ("snapkv", 64, 32): [1, 0, 1, 0],
    ("snapkv[window=4]", 64, 4): [1, 1, 0, 0],
    ("snapkv+ecokv", 64, 4): [1, 1, 1, 0],
    ("snapkv", 32, 32): [0, 0, 0, 0],
}


def test_accuracy_rows_are_means_and_paired_differences():
    arms = arms_of(parse_methods(["full", "snapkv", "snapkv[window=4]", "snapkv+ecokv"]), [64, 32])
    rows = {(r["method"], r["budget"]): r for r in accuracy_table(answers(SCORES), hosts_of(arms))}
    assert [row["mean"] for row in rows.values()] == [1, 0.5, 0.5, 0.75, 0]
    full, ecokv = rows["full", None], rows["snapkv+ecokv", 64]
    assert (full["against"], full["difference"], full["p"], full["n"]) == (None, None, None, 4)
    # The host with the same window comes before the host with its own.
    assert ecokv["against"] == "snapkv[window=4], window 4"
    assert ecokv["difference"] == 0.25
    assert (ecokv["difference_low"], ecokv["difference_high"]) == (0, 0.75)
    assert rows["snapkv", 64]["against"] == "full"
    assert rows["snapkv", 32]["difference"] == -1


def test_the_host_with_its_own_window_serves_where_the_same_window_was_not_run():
    scores = {key: value for key, value in SCORES.items() if key[0] != "snapkv[window=4]"}
    arms = arms_of(parse_methods(["full", "snapkv", "snapkv+ecokv"]), [64])
    rows = {r["method"]: r for r in accuracy_table(answers(scores), hosts_of(arms)).where(budget=64)}
    assert rows["snapkv+ecokv"]["against"] == "snapkv, window 32"
    assert rows["snapkv+ecokv"]["difference"] == 0.25


@pytest.mark.parametrize(
    "differences", [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0, 1.0], [0.5, -0.25, 1.0, 0.0, 0.75, 0.125]]
)
def test_p_value_is_the_share_of_sign_patterns_at_least_as_far_from_zero(differences):
    patterns = [
        np.mean(np.multiply(signs, differences)) for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    observed = np.mean(differences)
    upper, lower = (
        np.mean([p >= observed - 1e-12 for p in patterns]),
        np.mean([p <= observed + 1e-12 for p in patterns]),
    )
    assert paired_p_value(np.array(differences)) == pytest.approx(min(1, 2 * min(upper, lower)))


def test_p_value_at_the_edges():
    assert paired_p_value(np.array([1.0])) is None
    assert paired_p_value(np.zeros(5)) == 1


def test_costs_are_ratios_to_the_full_cache():
    rows = {(r["method"], r["budget"]): r for r in cost_table(answers(SCORES))}
    full, small = rows["full", None], rows["snapkv", 32]
    assert (full["cache_bytes"], full["cache_ratio"], full["decode_ratio"], full["scoring_share"]) == (1000, 1, 1, 0)
    # Three of four tokens need a forward pass: the first comes from the prefill.
    assert full["seconds_per_token"] == 2
    assert (small["cache_bytes"], small["cache_ratio"], small["decode_ratio"]) == (320, 0.32, 0.5)
    assert small["scoring_share"] == 0.25


def test_the_papers_table_has_a_column_per_budget_and_marks_the_best():
    table = pivot(accuracy_table(answers(SCORES), {}))
    assert table.columns == ("method", "window", "64", "32")
    rows = {row["method"]: row for row in table}
    assert rows["full"]["64"] == rows["full"]["32"] == "1.000 [1.000, 1.000]"
    assert rows["snapkv+ecokv"]["64"].startswith("0.750 [")
    assert rows["snapkv+ecokv"]["64"].endswith("(-0.250)*")
    assert rows["snapkv+ecokv"]["32"] is None
    assert not rows["snapkv"]["64"].endswith("*")


def test_scores_come_from_the_metric_arm_by_arm():
    table = answers({("full", None, 0): [None, None], ("snapkv", 8, 4): [None, None]})
    for row, text in zip(table.rows, ("12", " 7 ", "3", "7"), strict=True):
        row["prediction"] = text
    scored = graded(table, {"s0": ("12",), "s1": ("7", "seven")}, find_metric("exact"))
    assert [row["score"] for row in scored] == [1, 1, 0, 1]
    assert [row["score"] for row in table] == [None] * 4


def test_arms_are_every_method_budget_and_window_once_with_the_full_cache_first():
    arms = arms_of(parse_methods(["snapkv", "full", "snapkv[window=4]"]), [64, 32], [32, 4])
    assert [(a.method.name, a.budget, a.window) for a in arms] == [
        ("full", None, 0), ("snapkv", 64, 32), ("snapkv", 32, 32), ("snapkv[window=4]", 64, 4),
        ("snapkv[window=4]", 32, 4),
    ]  # fmt: skip


def test_what_cannot_be_an_arm_is_refused():
    with pytest.raises(MethodError, match="sees the queries of the answer"):
        arms_of(parse_methods(["oracle"]), [64])
    with pytest.raises(MethodError, match="budget 16 is smaller than its window of 32"):
        arms_of(parse_methods(["snapkv"]), [16])


def test_docqa_pages_have_the_sizes_asked_for_and_other_names():
    asked = list(docqa(5, 200))
    assert [question.id for question in asked] == [f"page-{i:04d}" for i in range(5)]
    sizes = [int(question.identity.split()[-1]) for question in asked]
    assert min(sizes) >= 180
    assert sizes == sorted(sizes)
    for question in asked:
        (answer,) = question.answers
        assert answer.isdigit()
        assert 3 <= len(answer) <= 5
    with pytest.raises(UsageError, match="held-out pages"):
        next(docqa(1 << 30))
