"""Accuracy, costs and arms on answers made by hand; real decoding is proven in tests/models/test_evicted.py."""

import itertools
import re

import numpy as np
import pytest
import torch

from ecokv_cli.errors import MethodError, UsageError
from ecokv_cli.eviction.spec import parse_methods
from ecokv_cli.models.evicted import Decoding, Evicted
from ecokv_cli.studies.accuracy import accuracy_table, cost_table, marked, pivot
from ecokv_cli.studies.evaluate import ANSWERS, arms_of, graded, hosts_of, unfit
from ecokv_cli.studies.measuring import decoding_peak
from ecokv_cli.studies.metrics import find_metric
from ecokv_cli.studies.statistics import paired_p_value
from ecokv_cli.studies.tables import Table
from ecokv_cli.studies.tasks import docqa
from ecokv_cli.studies.typeset import latex, write_typeset


def answers(scores):
    """Rows from ``{(method, budget, window): [score per sample]}``; costs grow with the budget."""
    table = Table("answers", ANSWERS)
    for (method, budget, window), values in scores.items():
        for number, score in enumerate(values):
            table.add(
                model="m", sample=f"s{number}", method=method, budget=budget, window=window, tokens=100,
                kept=float(budget or 100), prediction="", answers="", score=score, ledger_bytes=8 * (budget or 100),
                cache_bytes=10 * (budget or 100), cache_ratio=(budget or 100) / 100,
                peak_bytes=10 * (budget or 100) + 30, peak_source="counted", prefill_seconds=2.0,
                scoring_seconds=0.5 if budget else 0.0, decode_seconds=3.0 if budget else 6.0, decoded=4,
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
    assert (small["ledger_bytes"], small["ledger_ratio"]) == (256, 0.256)
    assert (small["peak_bytes"], small["peak_ratio"], small["peak_source"]) == (
        350,
        pytest.approx(350 / 1030),
        "counted",
    )
    assert small["scoring_share"] == 0.25


def test_time_per_token_is_compared_on_the_same_samples():
    table = answers({("full", None, 0): [1] * 5, ("snapkv", 64, 32): [1] * 5})
    for number, row in enumerate(table.where(method="full")):
        row["decode_seconds"] = 1.0 + number
    for number, row in enumerate(table.where(method="snapkv")):
        row["decode_seconds"] = 0.4 * (1.0 + number)
    row = next(iter(cost_table(table).where(budget=64)))
    # Every sample takes 0.4 of the time, so no resample says anything else, though times differ fivefold.
    assert [row[c] for c in ("decode_ratio", "decode_ratio_low", "decode_ratio_high")] == pytest.approx([0.4] * 3)
    for each in table.rows[5:]:
        each["decode_seconds"] = 2.0
    row = next(iter(cost_table(table).where(budget=64)))
    assert row["decode_ratio"] == pytest.approx(10 / 15)
    assert row["decode_ratio_low"] < 0.6
    assert row["decode_ratio_high"] > 0.8


def test_answers_of_one_token_have_no_time_per_token():
    table = answers({("full", None, 0): [1, 1], ("snapkv", 64, 32): [1, 0]})
    for row in table:
        row["decoded"] = 1
    row = next(iter(cost_table(table).where(budget=64)))
    assert [row[c] for c in ("seconds_per_token", "decode_ratio", "decode_ratio_low")] == [None] * 3


def test_the_papers_table_has_a_column_per_budget_and_two_rows_per_method():
    arms = arms_of(parse_methods(["full", "snapkv", "snapkv[window=4]", "snapkv+ecokv"]), [64, 32])
    table, _ = pivot(accuracy_table(answers(SCORES), hosts_of(arms)))
    assert table.columns == ("method", "window", "n", "what", "64", "32")
    rows = {(row["method"], row["what"]): row for row in table}
    assert rows["full", "mean"]["64"] == rows["full", "mean"]["32"] == "1.000 [1.000, 1.000]"
    assert rows["snapkv+ecokv", "mean"]["64"] == "0.750 [0.250, 1.000]"
    assert rows["snapkv+ecokv", "mean"]["n"] == 4
    # 1 of 16 patterns of signs is as high, counted on both sides; the host has the same window, so it is not named.
    assert rows["snapkv+ecokv", "minus snapkv[window=4]"]["64"] == "+0.250 [+0.000, +0.750], p = 1.000"
    assert rows["snapkv+ecokv", "mean"]["32"] is None
    assert rows["snapkv", "minus full"]["32"] == "-1.000 [-1.000, -1.000], p = 0.125"
    assert ("full", "minus full") not in rows


def test_the_best_of_each_budget_are_marked_ties_included_and_set_in_bold(tmp_path):
    scores = SCORES | {("keydiff", 64, 0): [0, 1, 1, 1]}
    table, best = pivot(accuracy_table(answers(scores), {}))
    stars = {(row["method"], column) for row in marked(table, best) for column in ("64", "32") if row[column]
             and row[column].endswith(" *")}  # fmt: skip
    assert stars == {("snapkv+ecokv", "64"), ("keydiff", "64"), ("snapkv", "32")}
    write_typeset(tmp_path, table, table.columns, best)
    for path, bold in (("md", r"\*\*([^*]+)\*\*"), ("tex", r"\\textbf\{([^}]+)\}")):
        text = (tmp_path / f"accuracy_by_budget.{path}").read_text()
        assert re.findall(bold, text) == ["0.000 [0.000, 0.000]", "0.750 [0.250, 1.000]", "0.750 [0.250, 1.000]"], path
    assert "$-$0.250 [$-$0.750" in (tmp_path / "accuracy_by_budget.tex").read_text()
    many, best = pivot(accuracy_table(answers({("full", None, 0): [1] * 20, ("snapkv", 64, 32): [0] * 20}), {}))
    assert r"p \textless{} 0.001" in latex(
        many, many.columns, best
    )  # in text a bare < would be set as an exclamation mark


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_peak_memory_is_what_the_gpu_allocates_or_what_the_cache_holds(monkeypatch, device):
    layer = Evicted(torch.zeros(1, 2, 5, 3), torch.zeros(1, 2, 5, 7), None, None)
    held = Evicted(torch.zeros(1, 2, 4, 3), torch.zeros(1, 2, 4, 7), None, None, sliding=True)
    said = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: said.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: said.append("reset"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 1700 if said[-1] == "decode" else 0)

    def decode():
        said.append("decode")
        return Decoding([4, 5, 6], ended=False, logits=None, seconds=0.0, cache_bytes=layer.bytes + held.bytes)

    decoded, peak, source = decoding_peak(torch.device(device), [layer, held], decode)
    assert decoded.ids == [4, 5, 6]
    if device == "cuda":
        assert (peak, source, said) == (700, "allocated", ["synchronize", "reset", "decode"])
    else:
        # Two of three tokens are fed back, in the one layer that grows: 2 heads, 10 numbers of 4 bytes.
        assert (peak, source, said) == (9 * 80 + 2 * 80, "counted", ["decode"])


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


def test_budgets_below_a_window_are_left_out_while_others_fit():
    methods = parse_methods(["snapkv", "streaming[sinks=7]"])
    arms = arms_of(methods, [64, 16], [32, 4])
    assert [(arm.method.name, arm.budget) for arm in arms if arm.method.host_name == "snapkv"] == [
        ("snapkv", 64), ("snapkv[window=4]", 64), ("snapkv[window=4]", 16)
    ]  # fmt: skip
    refused = unfit(methods, [64, 16], [32, 4])
    assert list(refused) == [("snapkv", 16), ("streaming[window=32,sinks=7]", 16)]
    assert "smaller than its window of 32" in str(refused["snapkv", 16])


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
        value, key = question.boxes
        assert (value.text, key.text) == (answer, question.prompt.removeprefix("what is the ").removesuffix("?"))
        # Both stand on one line of 28 pixels, a character every 14, the key to the left.
        (image,) = question.images
        for box, text in ((value, answer), (key, key.text)):
            assert (box.box[2] - box.box[0]) * image.width == pytest.approx(14 * len(text))
            assert (box.box[3] - box.box[1]) * image.height == pytest.approx(28)
            assert min(box.box) >= 0
            assert max(box.box) <= 1
        assert key.box[0] < value.box[0]
    with pytest.raises(UsageError, match="held-out pages"):
        next(docqa(1 << 30))
