"""``ecokv methods``, ``headscores`` and ``route`` as a user runs them, and the methods they serve."""

import csv
import json
import re
import shutil
import subprocess
import sys

import pytest

from ecokv_cli.cli.main import app
from ecokv_cli.dump.reader import open_dump
from ecokv_cli.eviction.boosters import BOOSTERS
from ecokv_cli.eviction.hosts import HOSTS
from ecokv_cli.sample.shipped import shipped_folder

BOOSTED = [f"snapkv+{booster}" for booster in BOOSTERS]


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def one_line(words):
    """Text as a pattern that does not mind where a table breaks its lines."""
    return re.compile(r"\s+".join(map(re.escape, words.split())))


def _written(value):
    if isinstance(value, tuple):
        return ":".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A run with the four shipped samples, received attention included."""
    run = tmp_path_factory.mktemp("pages") / "run"
    with pytest.MonkeyPatch.context() as patch:
        manifest = shipped_folder() / "samples.jsonl"
        arguments = ["dump", "--manifest", manifest, "-o", run, "--ignore-eos", "--decode", "5", "-q"]
        patch.setattr(sys, "argv", ["ecokv", *map(str, arguments), "--received-attention"])
        with pytest.raises(SystemExit) as left:
            app()
    assert left.value.code == 0
    return run


@pytest.fixture
def many(pages, tmp_path):
    """A private copy of that run."""
    return shutil.copytree(pages, tmp_path / "many")


def test_all_hosts_and_boosters_are_listed(ecokv):
    status, out, _ = ecokv("methods")
    assert status == 0
    listed = [line.split()[:2] for line in out.splitlines()[1:]]
    assert listed[: len(HOSTS)] == [["host", name] for name in HOSTS]
    assert listed[len(HOSTS) : len(HOSTS) + len(BOOSTERS)] == [["booster", name] for name in BOOSTERS]
    for kind in (*HOSTS.values(), *BOOSTERS.values()):
        assert kind.__doc__.splitlines()[0] in out
    status, out, _ = ecokv("methods", "--json")
    assert [each["name"] for each in json.loads(out)["methods"]] == [*HOSTS, *BOOSTERS]


@pytest.mark.parametrize("spec", [*HOSTS, *BOOSTED, "adakv+ecokv"])
def test_a_method_is_explained(ecokv, spec):
    status, out, _ = ecokv("methods", spec)
    assert status == 0
    host, _, booster = spec.partition("+")
    parts = [HOSTS[host]] + ([BOOSTERS[booster]] if booster else [])
    for kind in parts:
        for text in (kind.formula, kind.source, kind.deviations):
            assert one_line(text).search(out)
        for need in kind().needs:
            assert re.search(rf"needs +{need} \(.+\)", out)
        for name, default in vars(kind()).items():
            ending = rf"\([^()]*,\s+default\s+{re.escape(_written(default))}\) *$"
            found = re.search(rf"^  {name} +(\S.+?) {ending}", out, re.MULTILINE | re.DOTALL)
            assert found, name
            assert "`" not in found[1]
    status, out, _ = ecokv("methods", spec, "--json")
    found = json.loads(out)
    assert found["method"] == spec
    for name, kind in zip([host, booster], parts, strict=False):
        assert (found[name]["formula"], found[name]["source"]) == (kind.formula, kind.source)
        assert found[name]["options"].keys() == vars(kind()).keys()


def test_what_optional_tensors_come_from_is_said(ecokv):
    assert "received_attention (ecokv dump --received-attention)" in ecokv("methods", "h2o")[1]
    out = ecokv("methods", "sparsemm")[1]
    assert "head_scores (ecokv headscores RUN, then ecokv evict --head-scores FILE)" in out
    assert re.search(r"decode_queries \(dumped, or with ecokv dump --ignore-eos .*\)", ecokv("methods", "oracle")[1])


def test_other_windows_and_options_than_the_defaults_are_shown(ecokv):
    out = ecokv("methods", "snapkv[window=8,kernel=7]+ecokv[std=true]")[1]
    assert re.search(r"protected window +8 *\n", out)
    assert "default 5; here 7" in out
    assert "default false; here true" in out
    out = ecokv("methods", "mmr[profile=quadratic,l1=1:2:3,l2=0:0:1]")[1]
    assert "default 0.5; here 1.0:2.0:3.0" in out


def test_what_has_no_part_in_a_method_is_not_listed(ecokv):
    out = ecokv("methods", "adakv[base=keydiff]", "--json")[1]
    found = json.loads(out)
    assert found["observation window"] is None
    assert found["adakv"]["needs"] == {"keys": "always dumped"}
    assert found["adakv"]["options"].keys() == {"floor", "base", "compat"}
    assert list(json.loads(ecokv("methods", "adakv[base=vnorm]", "--json")[1])["adakv"]["needs"]) == ["values"]
    found = json.loads(ecokv("methods", "adakv[base=snapkv]", "--json")[1])
    assert list(found["adakv"]["needs"]) == ["keys", "window_queries"]
    assert found["adakv"]["options"].keys() == vars(HOSTS["adakv"]()).keys()


def test_a_route_is_explained_leg_by_leg(ecokv):
    status, out, _ = ecokv("methods", "route[0-5=snapkv,6-=keydiff]")
    assert status == 0
    assert re.search(r"layers +0-5 *\nmethod +snapkv", out)
    assert re.search(r"layers +6- *\nmethod +keydiff", out)
    _, out, _ = ecokv("methods", "route[0=snapkv,1-=keydiff]", "--json")
    assert [(leg["layers"], leg["method"]) for leg in json.loads(out)["legs"]] == [("0", "snapkv"), ("1-", "keydiff")]


@pytest.mark.parametrize(("spec", "message"), [
    ("snapkw", "unknown method 'snapkw' (did you mean 'snapkv'?)"),
    ("keydiff+ecokv", "keydiff has no attention scores to boost"),
    ("route[0-5=snapkv,7-=keydiff]", "layers must run on from 0 without gap or overlap, the next is 6"),
    ("route[0-=pyramidkv]", "pyramidkv moves budget between layers"),
])  # fmt: skip
def test_a_method_that_cannot_be_is_a_usage_error(ecokv, spec, message):
    status, out, err = ecokv("methods", spec)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize("arguments", [["methods"], ["methods", "snapkv+ecokv"], ["methods", "route[0-=sparsemm]"]])
def test_methods_loads_nothing_heavy(arguments):
    script = (
        "import sys; from ecokv_cli.cli.main import app\n"
        f"sys.argv = ['ecokv', *{arguments}]\n"
        "try: app()\n"
        "except SystemExit: print([m for m in ('torch', 'transformers', 'matplotlib', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_head_scores_are_made_from_dumps_and_serve_sparsemm(ecokv, many, tmp_path):
    status, out, err = ecokv("headscores", many, "-o", "scores/table.json", "--json")
    assert status == 0
    summary = json.loads(out)
    assert (summary["table"], summary["samples"]) == ("scores/table.json", 3)
    assert summary["tokens"] >= 3
    assert summary["skipped"] == {"china": "its manifest has no boxes"}
    assert "china: not counted" in err
    table = json.loads((tmp_path / "scores" / "table.json").read_text())
    model = open_dump(many / "dump" / "small").manifest.model
    assert (table["model"], table["shape"]) == (model.id, [model.layers, model.query_heads])
    zeros = sum(score == 0 for row in table["scores"] for score in row)
    assert summary["heads_at_zero"] == zeros < model.layers * model.query_heads
    status, out, err = ecokv(
        "evict", many, "-b", "64", "--method", "sparsemm", "--method", "sparsemm[compat=reference]", "--limit", "1",
        "--head-scores", "scores/table.json",
    )  # fmt: skip
    assert status == 0
    ledger = rows(many / "eviction" / "ledger.csv")
    exact = [row for row in ledger if row["method"] == "sparsemm"]
    assert sum(int(row["kept"]) for row in exact) == 64 * len(exact) == 64 * model.layers * model.kv_heads
    assert len({row["kept"] for row in exact}) > 1
    published = [row for row in ledger if row["method"] != "sparsemm"]
    assert [row["exact"] for row in published] == [row["kept"] for row in exact]
    spent = sum(int(row["kept"]) for row in published)
    assert spent != 64 * len(exact)
    assert f"its rounding keeps {spent:,} tokens instead of {64 * len(exact):,}" in err


def test_the_best_heads_are_shown_and_a_table_needs_force_to_be_replaced(ecokv, many, tmp_path):
    # A run named twice, once by one of its samples, counts once; the first of the four has no boxes.
    status, out, err = ecokv("headscores", many / "dump" / "small", many, "--limit", "3")
    assert status == 0
    assert re.search(r"highest of \d+ heads", out)
    shown = [float(line.split()[2]) for line in out.splitlines() if re.fullmatch(r" *\d+ +\d+ +[\d.]+ *", line)]
    assert shown == sorted(shown, reverse=True)
    assert 1 <= len(shown) <= 10
    assert re.search(r"head-scores.json: \d+ tokens of 2 samples; \d+ of \d+ heads scored 0", err)
    assert err.count("china: not counted") == 1
    status, _, err = ecokv("headscores", many)
    assert (status, err.count("\n")) == (1, 1)
    assert "head-scores.json exists; add --force" in err
    assert ecokv("headscores", many, "--force", "-q")[0] == 0
    assert json.loads((tmp_path / "head-scores.json").read_text())["samples"] == 3


def test_dumps_without_boxes_make_no_table(ecokv, many, tmp_path):
    for name in ("small", "one-column", "two-columns"):
        shutil.rmtree(many / "dump" / name)
    status, out, err = ecokv("headscores", many)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "none of 1 samples can be used, china: its manifest has no boxes" in err
    assert not (tmp_path / "head-scores.json").exists()


def test_sparsemm_asks_for_the_table_and_checks_it(ecokv, many, tmp_path):
    model = open_dump(many / "dump" / "small").manifest.model
    status, out, err = ecokv("evict", many, "--method", "sparsemm")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert re.search(r"sparsemm needs head scores, .*`ecokv headscores RUN` and give them with --head-scores FILE", err)
    assert (
        f"[layers, query heads] [{model.layers}, {model.query_heads}] of this very model, and no table was given" in err
    )
    assert not (many / "eviction").exists()
    table = {
        "kind": "ecokv head scores 1", "model": "other/model", "config_sha256": "x", "samples": 1, "tokens": 1,
        "scores": [[1.0] * 28] * 28,
    }  # fmt: skip
    (tmp_path / "other.json").write_text(json.dumps(table))
    status, out, err = ecokv("evict", many, "--method", "sparsemm", "--head-scores", "other.json")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "other.json: head scores of 28 layers x 28 query heads (other/model), " in err
    assert f"the model here has {model.layers} x {model.query_heads} ({model.id})" in err
    assert "make a table for this model with `ecokv headscores RUN`" in err
    # Of the same shape and name, but not of this configuration: another checkpoint of the architecture.
    table |= {"model": model.id, "scores": [[1.0] * model.query_heads] * model.layers}
    (tmp_path / "other.json").write_text(json.dumps(table))
    status, out, err = ecokv("evict", many, "--method", "sparsemm", "--head-scores", "other.json")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert f"head scores of {model.id} with configuration x, the model here is {model.id} with configuration " in err
    assert not (many / "eviction").exists()


def test_h2o_works_where_received_attention_was_dumped_and_says_how_to_dump_it_elsewhere(ecokv, many, run_folder):
    assert ecokv("evict", many, "--method", "h2o", "--method", "observed+ecokv", "--limit", "1", "-q")[0] == 0
    for method in ("h2o", "observed", "h2o+mixkv", "route[0=snapkv,1-=observed]"):
        status, out, err = ecokv("evict", run_folder, "--method", method)
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert re.search(r"needs received attention, which this dump does not hold; .*--received-attention", err)
    assert sorted(path.name for path in run_folder.iterdir()) == ["dump"]


def test_a_route_is_chosen_on_some_samples_and_judged_on_the_others(ecokv, many):
    status, out, err = ecokv(
        "route", many, "--calibrate", "2", "-b", "64", "-b", "96", "--assignments", "20", "--json",
        "--method", "snapkv", "--method", "keydiff", "--method", "snapkv+ecokv", "--window", "32",
    )  # fmt: skip
    assert status == 0
    summary = json.loads(out)
    assert (summary["settings"]["calibration"], summary["settings"]["evaluation"]) == (2, 2)
    assert "not matched" not in err
    names = {path.relative_to(many / "routing").as_posix() for path in (many / "routing").rglob("*")}
    assert {"routes.csv", "profile.csv", "random.csv", "summary.json"} <= names
    assert len([name for name in names if name.endswith(".pdf")]) == 2
    routes = rows(many / "routing" / "routes.csv")
    assert [row["kind"] for row in routes] == ["profiled", *["homogeneous"] * 3] * 2
    for row in routes:
        assert row["samples"] == "2"
        if row["kind"] == "profiled":
            assert f"budget {row['budget']}: {row['route']}" in err
            assert row["rank"] == "" or 1 <= int(row["rank"]) <= 21
    # The route is a method like any other.
    route = routes[0]["route"]
    assert ecokv("evict", many, "--method", route, "-b", "64", "--limit", "1", "-q")[0] == 0
    assert {row["method"] for row in rows(many / "eviction" / "methods.csv")} == {route}
    assert {row["kept"] for row in rows(many / "eviction" / "ledger.csv")} == {"64"}


def test_a_route_is_made_for_a_share_of_the_prompt_too(ecokv, many):
    methods = ("--method", "snapkv", "--method", "keydiff", "--assignments", "3", "-w", "8", "--format", "png")
    status, out, err = ecokv("route", many, "-r", "0.25", "-b", "64", *methods, "--json")
    assert status == 0, err
    assert json.loads(out)["settings"]["budgets"] == "64, 0.25"
    routes = rows(many / "routing" / "routes.csv")
    assert [(row["budget"], row["kind"]) for row in routes][::3] == [("64", "profiled"), ("0.25", "profiled")]
    (route,) = [row["route"] for row in routes if (row["budget"], row["kind"]) == ("0.25", "profiled")]
    assert f"budget 0.25: {route}" in err
    figures = json.loads((many / "routing" / "figures" / "figures.json").read_text(encoding="utf-8"))
    assert [each["stem"] for each in figures] == ["route_profile_budget_64", "route_profile_budget_0_25"]
    assert "at a budget of 25 % of the prompt, mean over 2 calibration samples" in figures[1]["caption"]
    # A share alone replaces the default, and one that cannot hold the window is refused before any work.
    status, out, err = ecokv("route", many, "-r", "0.01", *methods, "--force")
    assert (status, out) == (2, "")
    assert "snapkv[window=8]: budget 0.01, which is 4 of the prompt's" in err
    assert rows(many / "routing" / "routes.csv") == routes


def test_another_run_may_judge_but_never_with_the_same_sample(ecokv, many, run_folder, tmp_path):
    # The run with one sample holds two-columns, which is among the four.
    status, out, err = ecokv("route", many, "--evaluate", run_folder)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert re.search(
        r"run/dump/two-columns is the same sample as .*many/dump/two-columns.*judged on other samples", err
    )
    assert not (many / "routing").exists()
    renamed = many / "dump" / "zzz"
    shutil.copytree(many / "dump" / "china", renamed)
    status, _, err = ecokv("route", many, "--calibrate", "4")
    assert status == 1
    assert re.search(r"zzz is the same sample as .*china", err)
    shutil.rmtree(renamed)
    shutil.rmtree(many / "dump" / "two-columns")
    arguments = ("--method", "snapkv", "--method", "keydiff", "-b", "64", "-q", "--json")
    status, out, _ = ecokv("route", many, "--evaluate", run_folder, *arguments)
    assert status == 0
    assert (many / "routing").exists()
    assert not (run_folder / "routing").exists()


@pytest.mark.parametrize(("arguments", "status", "message"), [
    (["--calibrate", "4"], 1, "4 calibration and 0 evaluation samples"),
    (["--calibrate", "0"], 2, "--calibrate"),
    (["--calibrate", "2", "--evaluate", "."], 2, "give one of them"),
    (["--method", "snapkv"], 2, "name at least two"),
    (["--method", "snapkv", "--method", "oracle"], 2, "sees the queries that judge it"),
    (["--method", "snapkv", "--method", "sparsemm"], 2, "moves budget between layers"),
    (["--method", "snapkv", "--method", "keydiff", "-b", "16"], 2, "smaller than its window of 32"),
    (["--evaluate", "nowhere"], 1, "nowhere: no such folder"),
])  # fmt: skip
def test_a_route_that_cannot_be_made_is_an_error_and_leaves_nothing(ecokv, many, arguments, status, message):
    found, out, err = ecokv("route", many, *arguments)
    assert (found, out) == (status, "")
    assert message in err
    assert "Traceback" not in err
    assert sorted(path.name for path in many.iterdir()) == ["dump"]
