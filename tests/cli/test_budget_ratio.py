"""--budget-ratio of evict, evaluate, run and route, on the shipped model."""

import csv
import json

import pytest


def rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_evict_takes_tokens_and_shares_and_says_which_it_was_asked_for(ecokv, run_folder):
    status, out, err = ecokv(
        "evict", run_folder, "--budget", "64", "--budget-ratio", "0.5,0.25", "-r", ".250", "--window", "8",
        "--method", "snapkv", "--method", "pyramidkv[compat=reference]", "--figures", "fidelity_by_budget",
        "--layers", "0,3", "--format", "png",
    )  # fmt: skip
    assert status == 0, err
    shown = [line.split()[0] for line in out.splitlines() if "snapkv" in line]
    assert shown == ["64", "0.5", "0.25"]
    assert "at 25 %: its rounding keeps" in err
    ledger = [row for row in rows(run_folder / "eviction" / "ledger.csv") if row["method"].startswith("snapkv")]
    tokens = {row["tokens"] for row in ledger}
    assert tokens == {"354"}
    # 88.5 of 354: halves go up.
    assert {(row["budget"], row["nominal"], row["kept"]) for row in ledger} == {
        ("64", "64", "64"), ("0.5", "177", "177"), ("0.25", "89", "89"),
    }  # fmt: skip
    (figure,) = json.loads((run_folder / "eviction" / "figures" / "figures.json").read_text(encoding="utf-8"))
    assert "a percentage is a share of each prompt" in figure["caption"]
    page = (run_folder / "report.html").read_text(encoding="utf-8")
    assert ">0.25<" in page
    assert "0.2500" not in page
    budgets = {row["budget"] for row in json.loads((run_folder / "eviction/summary.json").read_text())["results"]}
    assert budgets == {64, 0.25, 0.5}


def test_a_share_alone_replaces_the_default(ecokv, run_folder):
    status, _, err = ecokv(
        "evict", run_folder, "-r", "0.2", "--method", "keydiff", "--figures", "none", "--layers", "0"
    )  # fmt: skip
    assert status == 0, err
    assert {row["budget"] for row in rows(run_folder / "eviction" / "methods.csv")} == {"0.2"}


@pytest.mark.parametrize("command", ["evict", "evaluate", "run", "route"])
@pytest.mark.parametrize("ratio", ["64", "0", "1", "-0.5", "nan", "inf", "x", "", "0.5,", "0.5;0.25", "25%"])
def test_what_is_no_share_is_refused_with_what_is_expected(ecokv, run_folder, command, ratio):
    new = run_folder.parent / "new"
    more = {"evaluate": ["--task", "docqa"], "run": ["-o", new]}.get(command, [run_folder])
    status, out, err = ecokv(command, *more, "--budget-ratio", ratio)
    assert (status, out) == (2, "")
    wrong = "" if ratio == "0.5," else ratio
    assert err == (
        f"ecokv: error: --budget-ratio '{wrong}': a share of the prompt is a number between 0 and 1, such as 0.25; "
        f"a number of tokens is --budget 64\n"
    )
    assert not new.exists()


def test_a_share_given_as_tokens_is_told_where_it_belongs(ecokv, run_folder):
    status, _, err = ecokv("evict", run_folder, "--budget", "0.25")
    assert status == 2
    assert "--budget '0.25': a budget is a whole number of tokens per KV head, 1 or more; " in err
    assert "a share of the prompt is --budget-ratio 0.25" in err
    # Commands without shares do not speak of them.
    status, _, err = ecokv("ablate", "--task", "docqa", "--budget", "0.25")
    assert status == 2
    assert err.endswith("a whole number of tokens per KV head, 1 or more\n")


def test_a_share_that_cannot_hold_the_window_is_refused_before_any_work(ecokv, run_folder, monkeypatch):
    monkeypatch.setattr("ecokv_cli.studies.many.evict_many", lambda *_: pytest.fail("work was begun"))
    status, _, err = ecokv("evict", run_folder, "-r", "0.05", "--method", "snapkv")
    assert status == 2
    assert err == (
        "ecokv: error: sample two-columns: snapkv: budget 0.05, which is 18 of the prompt's 354 tokens, is smaller "
        "than its window of 32 protected tokens; raise --budget-ratio to 0.089 or more, or set --window 18 or less\n"
    )


EVALUATE = (
    "evaluate", "--task", "docqa", "--samples", "3", "--method", "snapkv", "--window", "4", "--figures", "none",
)  # fmt: skip


def test_shards_of_a_share_become_one_evaluation_that_resumes(ecokv, tmp_path, monkeypatch):
    from ecokv_cli.studies import evaluate

    budgets = ("-b", "24", "-r", "0.0625,0.25")
    assert ecokv(*EVALUATE, *budgets, "-o", "whole")[0] == 0
    answers = rows(tmp_path / "whole" / "evaluation" / "answers.csv")
    kept = {(row["sample"], row["budget"]): (int(row["tokens"]), float(row["kept"])) for row in answers}
    for (_, budget), (tokens, found) in kept.items():
        wanted = {"": tokens, "24": 24, "0.25": (tokens + 2) // 4, "0.0625": (tokens + 8) // 16}[budget]
        assert found == wanted
    assert len({tokens for tokens, _ in kept.values()}) == 3

    for shard in ("0/2", "1/2"):
        assert ecokv(*EVALUATE, *budgets, "-o", "parts", "--shard", shard)[0] == 0

    def answered(*_, **__):
        pytest.fail("all answers are there")

    monkeypatch.setattr(evaluate, "answer", answered)
    status, _, err = ecokv(*EVALUATE, *budgets, "-o", "parts", "--shard", "1/2")
    assert status == 0, err
    assert "1 of 1 samples were there already" in err
    status, _, err = ecokv("merge", "parts")
    assert status == 0, err
    for name in ("accuracy.csv", "accuracy_by_budget.csv"):
        whole, merged = (tmp_path / run / "evaluation" / name for run in ("whole", "parts"))
        assert whole.read_bytes() == merged.read_bytes()
    accuracy = rows(tmp_path / "parts" / "evaluation" / "accuracy.csv")
    assert [row["budget"] for row in accuracy] == ["", "24", "0.25", "0.0625"]


def test_a_sample_too_short_for_a_share_fails_by_name_and_the_others_go_on(ecokv, tmp_path):
    asked = (*EVALUATE, "-r", "0.03", "-o", "r")
    status, _, err = ecokv(*asked)
    assert status == 2
    assert "sample page-0000: snapkv[window=4]: budget 0.03, which is 2 of the prompt's 82 tokens, " in err
    status, _, err = ecokv(*asked, "--keep-going")
    assert status == 1
    assert "1 samples failed and are left out: page-0000" in err
    summary = json.loads((tmp_path / "r" / "evaluation" / "summary.json").read_text(encoding="utf-8"))
    assert list(summary["failed"]) == ["page-0000"]
    assert summary["settings"]["budgets"] == [0.03]
    assert {row["sample"] for row in rows(tmp_path / "r" / "evaluation" / "answers.csv")} == {"page-0001", "page-0002"}
