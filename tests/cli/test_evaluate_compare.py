"""evaluate, analysis over several runs, and compare, on the shipped model."""

import csv
import html
import json
import re

import pytest


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


EVALUATE = ("evaluate", "--task", "docqa", "--samples", "3", "-b", "24,16", "--window", "8", "--method", "snapkv",
            "--method", "snapkv+ecokv", "-o", "r")  # fmt: skip


def test_evaluate_writes_answers_accuracy_and_costs(ecokv, tmp_path):
    status, out, _ = ecokv(*EVALUATE, "--json")
    assert status == 0
    assert json.loads(out)["metric"] == "exact"
    folder = tmp_path / "r" / "evaluation"
    answers = rows(folder / "answers.csv")
    assert len(answers) == 3 * 5
    full = [row for row in answers if row["method"] == "full"]
    assert [row["score"] for row in full] == ["1.0"] * 3
    assert {float(row["kept"]) for row in answers if row["budget"] == "16"} == {16}
    table = rows(folder / "accuracy.csv")
    against = {(row["method"], row["budget"]): row["against"] for row in table}
    assert against["snapkv+ecokv[window=8]", "16"] == "snapkv[window=8], window 8"
    for name in ("accuracy.tex", "accuracy.md", "accuracy_by_budget.tex", "cost.csv", "summary.json"):
        assert (folder / name).stat().st_size
    assert not (tmp_path / "r" / ".evaluation-parts").exists()
    status, _, err = ecokv(*EVALUATE)
    assert status == 2
    assert "add --force" in err


def test_evaluate_goes_on_where_it_was(ecokv, tmp_path, monkeypatch):
    from ecokv_cli.errors import ModelError
    from ecokv_cli.studies import evaluate

    real, asked = evaluate.answer, []

    def failing(loaded, question, settings):
        asked.append(question.id)
        if asked == ["page-0000", "page-0001"]:
            raise ModelError("stopped")
        return real(loaded, question, settings)

    monkeypatch.setattr(evaluate, "answer", failing)
    assert ecokv(*EVALUATE)[0] == 1
    status, _, err = ecokv(*EVALUATE, "--method", "keydiff")
    assert status == 1
    assert "holds 1 samples of another study that did not end" in err
    # What fewer samples would leave out is told before a model is loaded.
    other = tmp_path / "r" / ".evaluation-parts" / f"page-0007-{16 * '0'}"
    other.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("ecokv_cli.models.loading.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
        status, _, err = ecokv(*EVALUATE)
    assert status == 1
    assert re.search(
        r"holds 1 samples that are not asked for now, such as page-0007, of a study that did not end; end that one "
        r"with the command that began it, name another folder with --output, or drop them with --force\n$", err,
    )  # fmt: skip
    other.rmdir()
    status, _, err = ecokv(*EVALUATE)
    assert status == 0
    assert "1 of 3 samples were there already" in err
    assert asked == ["page-0000", "page-0001", "page-0001", "page-0002"]


@pytest.mark.parametrize(("arguments", "message"), [
    ((), "give --task docqa or --manifest FILE"),
    (("--task", "docvqa"), "--task docvqa: unknown"),
    (("--task", "docqa", "--metric", "anlz"), "did you mean 'anls'"),
    (("--task", "docqa", "--window", "4,x"), "--window 'x'"),
    (("--task", "docqa", "-b", "2", "--window", "4"), "smaller than its window"),
    (("--task", "docqa", "--method", "oracle"), "sees the queries of the answer"),
])  # fmt: skip
def test_evaluate_refuses_before_the_model_is_loaded(ecokv, arguments, message):
    status, _, err = ecokv("evaluate", *arguments)
    assert status == 2
    assert message in err


@pytest.fixture
def two_runs(ecokv, tmp_path):
    """Two runs of the same two samples, one stored in half precision."""
    from ecokv_cli.sample.shipped import shipped_folder

    lines = (shipped_folder() / "samples.jsonl").read_text().splitlines()[:2]
    manifest = [json.loads(line) for line in lines]
    for entry in manifest:
        entry["image"] = str(shipped_folder() / entry["image"])
    (tmp_path / "two.jsonl").write_text("\n".join(map(json.dumps, manifest)))
    for name, dtype in (("a", "float32"), ("b", "float16")):
        assert ecokv("dump", "--manifest", "two.jsonl", "-o", name, "--store-dtype", dtype)[0] == 0
        assert ecokv("analyze", name, "--figures", "none")[0] == 0
        assert ecokv("evict", name, "--figures", "none", "--method", "snapkv", "--method", "keydiff")[0] == 0
    return tmp_path / "a", tmp_path / "b"


def test_runs_are_analysed_together_and_compared(ecokv, tmp_path, two_runs):
    first, _ = two_runs
    summed = rows(first / "analysis" / "layers_over_samples.csv")
    one = [row for row in summed if row["layer"] == "3" and row["measure"] == "cos_mean"]
    single = [float(r["cos_mean"]) for r in rows(first / "analysis" / "layers.csv") if r["layer"] == "3"]
    assert float(one[0]["mean"]) == pytest.approx(sum(single) / 2)
    assert one[0]["n"] == "2"
    assert float(one[0]["low"]) == pytest.approx(min(single))

    status, out, _ = ecokv("compare", "a", "b")
    assert status == 0
    assert "layers_compared" in out
    layers = rows(tmp_path / "comparison" / "layers_compared.csv")
    assert {row["paired"] for row in layers} == {"True"}
    assert {row["layer"] for row in layers} == {"", *map(str, range(6))}
    assert all(abs(float(r["difference"])) < 1e-3 for r in layers if r["measure"] == "cos_mean")
    assert any(float(r["difference"]) != 0 for r in layers if r["measure"] == "cos_mean")
    assert rows(tmp_path / "comparison" / "methods_compared.csv")
    summary = json.loads((tmp_path / "comparison" / "summary.json").read_text())
    assert summary["runs"]["different"] == {"stored in": ["float32", "float16"]}
    same = summary["runs"]["same"]
    assert (same["layers of the model"], same["analysis: layers"], same["analysis: window"]) == (6, "all", 4)
    pairs = {"first": 2, "second": 2, "shared": 2, "changed": 0}
    assert summary["samples"] == {"layers_compared": pairs, "methods_compared": pairs}
    assert "Paired over 2 shared samples" in (tmp_path / "comparison" / "report.html").read_text(encoding="utf-8")
    assert {p.stem for p in (tmp_path / "comparison" / "figures").glob("*.png")} == {
        "compare_layers",
        "compare_methods",
    }
    assert ecokv("compare", "a", "b")[0] == 1
    assert ecokv("compare", "a", "b", "--force")[0] == 0
    (tmp_path / "comparison" / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "paper" / "figures").mkdir(parents=True)
    (tmp_path / "paper" / "summary.json").write_text("mine")
    for place, told in (
        ("comparison", "holds thesis.txt"),
        ("a", "holds analysis"),
        (".", "holds a"),
        ("file", "a file"),
        ("paper", "holds figures"),
    ):
        status, _, err = ecokv("compare", "a", "b", "-o", place, "--force")
        assert status == 1
        assert told in err
    assert (first / "analysis" / "layers.csv").exists()


def test_a_sample_of_two_runs_counts_once_and_the_report_tells_of_both_runs(ecokv, tmp_path, two_runs):
    first, _ = two_runs

    def analysed():
        status, _, err = ecokv("analyze", "a", "b", "--figures", "none", "--force")
        assert status == 0, err
        return {row["sample"] for row in rows(first / "analysis" / "layers.csv")}, " ".join(err.split())

    # The same pages with the same prompts are the same samples, whatever they were stored as.
    names, err = analysed()
    assert names == {"a--two-columns", "a--one-column"}
    assert "and 1 more left out: the same images and prompt as a--" in err
    assert "a sample counts once; to set two runs side by side use ecokv compare" in err
    for path in (tmp_path / "b" / "dump").glob("*/manifest.json"):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        manifest["prompt"], manifest["tokens"]["ids"][-1] = "another", manifest["tokens"]["ids"][-1] + 1
        path.write_text(json.dumps(manifest), encoding="utf-8")
    names, err = analysed()
    assert "left out" not in err
    assert names == {f"{run}--{sample}" for run in "ab" for sample in ("two-columns", "one-column")}
    page = html.unescape((first / "report.html").read_text(encoding="utf-8"))
    assert "4 samples of 2 runs. a: 2 samples computed in" in page
    assert page.count("<p>Of b: b--") == 2
    dumps = [json.loads((tmp_path / run / "dump/one-column/manifest.json").read_text())["command"] for run in "ab"]
    assert [page.count(command) for command in (*dumps, "ecokv analyze a b")] == [1, 1, 1]


def test_a_failing_sample_is_left_out_and_counted(ecokv, two_runs):
    first, _ = two_runs
    layer = next((first / "dump" / "one-column").glob("layer_002*"))
    layer.write_bytes(layer.read_bytes()[:-7])
    status, _, err = ecokv("analyze", "a", "--figures", "none", "--force")
    assert status == 1
    assert "truncated" in err
    status, _, err = ecokv("analyze", "a", "--figures", "none", "--force", "--keep-going")
    assert status == 1
    assert "one-column: left out" in err
    assert "1 of 2 samples failed" in err
    summary = json.loads((first / "analysis" / "summary.json").read_text())
    assert list(summary["failed"]) == ["one-column"]
    assert {row["sample"] for row in rows(first / "analysis" / "layers.csv")} == {"two-columns"}
    assert not (first / ".analysis-parts").exists()


def test_runs_without_results_cannot_be_compared(ecokv):
    for name in ("a", "b"):
        assert ecokv("dump", "-o", name)[0] == 0
    status, _, err = ecokv("compare", "a", "b")
    assert status == 1
    assert "share no results" in err
