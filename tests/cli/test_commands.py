"""The commands as a user runs them, on the shipped sample and model."""

import csv
import json
import re
import subprocess
import sys
from importlib.metadata import version

import pytest
from PIL import Image

from ecokv_cli.figures.registry import FIGURES

ANSI = re.compile(r"\x1b\[")


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_three_commands_work_in_order_without_arguments(ecokv, tmp_path):
    status, out, err = ecokv("dump")
    assert (status, "ecokv analyze" in err) == (0, True)
    assert "342" in out
    assert "61543" in out
    status, out, _ = ecokv("analyze", "--layers", "all")
    assert status == 0
    assert "λ ecokv" in out
    status, out, err = ecokv("evict", "--budget", "64")
    assert status == 0
    assert "snapkv+ecokv" in out
    assert "rows are not matched" in err
    (run,) = (tmp_path / "ecokv-runs").iterdir()
    names = {p.relative_to(run).as_posix() for p in run.rglob("*")}
    for expected in (
        "report.html", "dump/two-columns/manifest.json", "dump/two-columns/layer_005.safetensors",
        "analysis/geometry.csv", "analysis/summary.json", "eviction/ledger.csv", "eviction/kept.safetensors",
    ):  # fmt: skip
        assert expected in names
    # Keys before RoPE were not dumped, and the shipped page gives the figure that needs them nothing to draw.
    for kind, absent in (("analysis", {"rope_by_layer"}), ("eviction", set())):
        figures = run / kind / "figures"
        assert (
            len(list(figures.glob("*.pdf"))) == len(list(figures.glob("*.png"))) == len(list(figures.glob("*.csv"))) > 5
        )
        drawn = {p.stem for p in figures.glob("*.png")}
        for name in FIGURES[kind].keys() - absent:
            assert any(stem.startswith(name) for stem in drawn) or name == "sinks_by_layer", name
    assert not [name for name in names if ".partial" in name or ".old" in name]


def test_run_does_all_three_and_prints_where_the_report_is(ecokv, tmp_path):
    status, out, err = ecokv("run", "--json", "--budget", "64,128", "--budget", "64", "-o", "here")
    assert status == 0
    summary = json.loads(out)
    assert {row["budget"] for row in summary["eviction"]["results"]} == {64, 128}
    assert summary["report"] == "here/report.html"
    assert "report: here/report.html" in err
    assert (tmp_path / "here" / "report.html").stat().st_size > 100_000


def test_json_is_the_only_thing_on_stdout(ecokv, run_folder):
    for arguments in (("analyze", run_folder), ("evict", run_folder)):
        status, out, _ = ecokv(*arguments, "--json")
        assert status == 0
        assert json.loads(out)["results"]


def test_quiet_says_nothing_on_stderr(ecokv, run_folder):
    status, out, err = ecokv("evict", run_folder, "-q")
    assert (status, err) == (0, "")
    assert "oracle" in out


def test_results_are_the_same_every_time_and_need_force_to_be_replaced(ecokv, run_folder):
    def contents():
        return {
            p.name: p.read_bytes()
            for p in (run_folder / "analysis").rglob("*")
            if p.is_file() and p.name != "summary.json"
        }

    assert ecokv("analyze", run_folder)[0] == 0
    first = contents()
    status, _, err = ecokv("analyze", run_folder)
    assert status == 1
    assert "exists; add --force" in err
    assert ecokv("analyze", run_folder, "--force")[0] == 0
    assert contents() == first


def test_layers_heads_formats_and_width_are_taken(ecokv, run_folder):
    status, _, _ = ecokv(
        "analyze", run_folder, "--layers", "0-2,-1", "--pca", "-1:1", "--format", "svg", "--width", "single",
        "--booster", "snapkv+ecokv[redundancy_map=exp]", "--window", "8",
    )  # fmt: skip
    assert status == 0
    assert [int(r["layer"]) for r in rows(run_folder / "analysis" / "layers.csv")] == [0, 1, 2, 5]
    assert {(r["layer"], r["kv_head"]) for r in rows(run_folder / "analysis" / "pca.csv")} == {("5", "1")}
    figures = run_folder / "analysis" / "figures"
    assert len(list(figures.glob("*.svg"))) == len(list(figures.glob("*.png"))) > 5
    assert not list(figures.glob("*.pdf"))
    with Image.open(figures / "lambda_by_layer.png") as image:
        assert image.width == pytest.approx(3.3 * 300, abs=2)


def test_snake_case_flags_are_taken(ecokv, tmp_path):
    status, _, err = ecokv("dump", "--attn_implementation", "flash", "-p", "the total", "-o", tmp_path / "r")
    assert status == 2
    assert "--attn-implementation flash" in err


def test_the_window_matches_all_methods(ecokv, run_folder):
    status, _, err = ecokv("evict", run_folder, "-b", "64", "--window", "8")
    assert status == 0
    assert "not matched" not in err
    windows = {r["window"] for r in rows(run_folder / "eviction" / "methods.csv") if r["method"] != "full"}
    assert windows == {"8"}


def test_a_budget_beyond_the_prompt_keeps_all_and_says_so(ecokv, run_folder):
    status, _, err = ecokv("evict", run_folder, "-b", "4000", "--method", "snapkv")
    assert status == 0
    assert "nothing evicted" in err
    ledger = rows(run_folder / "eviction" / "ledger.csv")
    assert {r["kept"] for r in ledger} == {r["tokens"] for r in ledger}


@pytest.mark.parametrize(("arguments", "status", "message"), [
    (["analyze", "--layers", "40-50"], 2, r"--layers 40-50: outside 0 to 5"),
    (["analyze", "--layers", "5-2"], 2, r"outside 0 to 5 or backwards"),
    (["analyze", "--booster", "snapkv"], 2, r"needs an ecokv method"),
    (["analyze", "--pca", "0"], 2, r"write LAYER:HEAD"),
    (["analyze", "--pca", "0:7"], 2, r"--pca 0:7: head 7 is outside 0 to 1; this dump has 2 heads"),
    (["analyze", "--pca", "9:0"], 2, r"--pca 9:0: layer 9 is outside 0 to 5; this dump has 6 layers"),
    (["analyze", "--pca", "0:-3"], 2, r"--pca 0:-3: head -3 is outside 0 to 1"),
    (["analyze", "--pca", "0-1:0"], 2, r"--pca '0-1:0': write LAYER:HEAD"),
    (["analyze", "--layers", "1", "--pca", "0:0"], 2, r"not among --layers"),
    (["analyze", "--format", "gif"], 2, r"--format 'gif': unknown"),
    (["analyze", "--width", "wide"], 2, r"width"),
    (["evict", "--budget", "0"], 2, r"--budget '0'"),
    (["evict", "--budget", "-4"], 2, r"--budget '-4'"),
    (["evict", "--budget", "64.5"], 2, r"--budget '64.5'"),
    (["evict", "--budget", "16"], 2, r"budget 16 is smaller than its window of 32"),
    (["evict", "-b", "64,16", "--keep-going", "--method", "snapkv"], 2, r"error: snapkv: budget 16 is smaller than"),
    (["evict", "--method", "route[0-5=snapkv,6-=keydiff]", "--layers", "1"], 2, r"'6-=keydiff' covers no layer, the"),
    (["evict", "--method", "route[0-9=keydiff]", "--keep-going"], 2, r"goes past the last layer, .* write 0-=keydiff$"),
    (["evict", "--method", "snapkw"], 2, r"did you mean 'snapkv'"),
    (["evict", "--method", "snapkv[window=64]", "-b", "128"], 2, r"needs the last 64 queries and the dump holds 32"),
    (["evict", "--focus", "9:0"], 2, r"--focus 9:0: layer 9 is outside 0 to 5"),
    (["evict", "--focus", "0:0", "--heads", "1"], 2, r"--focus 0:0: not among --layers all and --heads 1"),
    (["analyze", "--heads", "2"], 2, r"--heads 2: outside 0 to 1"),
])  # fmt: skip
def test_wrong_settings_are_one_line_and_leave_nothing(ecokv, run_folder, arguments, status, message):
    found, out, err = ecokv(arguments[0], run_folder, *arguments[1:])
    assert (found, out) == (status, "")
    assert err.startswith("ecokv: error: ")
    assert err.count("\n") == 1
    assert re.search(message, err)
    assert sorted(p.name for p in run_folder.iterdir()) == ["dump"]


@pytest.mark.parametrize(("arguments", "status", "message"), [
    (["dump", "missing.png", "-p", "x"], 1, r"missing\.png"),
    (["dump", "text.png", "-p", "x"], 1, r"text\.png"),
    (["dump", "page.png"], 2, r"no prompt"),
    (["dump", "-p", "  "], 2, r"neither an image nor a prompt"),
    (["dump", "-", "-p", "-"], 2, r"standard input"),
    (["dump", "page.png", "-p", "what <|image_pad|> is"], 2, r"<\|image_pad\|>"),
    (["dump", "-p", "x", "-m", "nowhere/at-all/x"], 1, r"no such folder"),
    (["dump", "-p", "x", "-m", "missing.gguf"], 1, r"no such file"),
    (["dump", "-p", "x", "-m", "text.png"], 1, r"not a \.gguf"),
    (["dump", "-p", "x", "-m", "."], 1, r"no config\.json"),
    (["dump", "-p", "x", "--device", "warp"], 2, r"--device warp"),
    (["dump", "-p", "x", "--dtype", "int4"], 2, r"--dtype int4"),
    (["dump", "-p", "x", "--store-dtype", "int4"], 2, r"--store-dtype int4"),
    (["analyze"], 1, r"run `ecokv dump` first"),
    (["evict", "nowhere"], 1, r"nowhere: no such folder"),
])  # fmt: skip
def test_wrong_input_is_one_line_and_leaves_nothing(ecokv, tmp_path, arguments, status, message):
    (tmp_path / "text.png").write_text("no picture")
    Image.new("RGB", (84, 56), "white").save(tmp_path / "page.png")
    found, out, err = ecokv(*arguments)
    assert (found, out) == (status, "")
    assert err.startswith("ecokv: error: ")
    assert err.count("\n") == 1
    assert re.search(message, err)
    assert sorted(p.name for p in tmp_path.iterdir()) in (
        ["page.png", "text.png"],
        ["ecokv-runs", "page.png", "text.png"],
    )
    assert not list(tmp_path.rglob("*.partial*"))
    assert not list(tmp_path.rglob("manifest.json"))


def test_a_model_that_is_not_cached_offline_says_what_to_do(ecokv_process, tmp_path):
    done = ecokv_process("dump", "-p", "x", "-m", "nobody/no-model", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "hub"))
    assert done.returncode == 1
    assert b"nobody/no-model: not in the local cache" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_text_prompt_alone_works(ecokv, tmp_path):
    (tmp_path / "question.txt").write_text("what is the total?\n", encoding="utf-8")
    status, out, _ = ecokv("dump", "-p", "@question.txt", "--decode", "3", "--ignore-eos", "-o", "r", "--json")
    assert status == 0
    summary = json.loads(out)
    assert summary["held_out_queries"] == "3"
    assert "image" not in summary["prompt_tokens"]
    status, _, _ = ecokv("evict", "r", "--budget", "4", "--window", "2")
    assert status == 0


def test_a_dump_without_held_out_queries_says_how_to_get_some(ecokv, tmp_path):
    assert ecokv("dump", "-p", "the total", "--decode", "0", "-o", "r")[0] == 0
    status, _, err = ecokv("evict", "r", "-b", "4", "-w", "1")
    assert status == 1
    assert "--ignore-eos" in err
    assert ecokv("analyze", "r")[0] == 0


def test_non_finite_keys_are_refused_by_layer_and_head(ecokv, run_folder):
    from safetensors.torch import load_file, save_file

    (sample,) = (run_folder / "dump").iterdir()
    path = sample / "layer_003.safetensors"
    tensors = load_file(path)
    tensors["keys"][1, 5, 7] = float("nan")
    save_file(tensors, path)
    for command in ("analyze", "evict"):
        status, _, err = ecokv(command, run_folder)
        assert status == 1
        assert "layer 3, KV head 1: keys holds 1 NaN" in err
    assert ecokv("analyze", run_folder, "--layers", "0-2")[0] == 0


def test_help_is_fast_to_import_and_shows_examples(ecokv):
    heavy = ("torch", "transformers", "matplotlib", "numpy", "scipy", "PIL")
    script = f"import sys, ecokv_cli.cli.main; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    status, out, _ = ecokv("--help")
    assert status == 0
    assert "ecokv evict --budget 64" in out
    for command in ("dump", "analyze", "evict", "run"):
        status, out, _ = ecokv(command, "--help")
        assert status == 0
        assert "Examples" in out


def test_version(ecokv):
    from ecokv_cli import __version__

    status, out, err = ecokv("--version")
    assert (status, err) == (0, "")
    assert out.startswith(f"ecokv {__version__} (python 3.")
    assert f"torch {version('torch')}, transformers {version('transformers')}); ecokv info --env" in out


def test_unknown_options_are_usage_errors(ecokv):
    assert ecokv("dump", "--no-such-thing")[0] == 2
    assert ecokv("no-such-command")[0] == 2


def test_a_pipe_gets_no_ansi_and_no_color_is_respected(ecokv_process, run_folder):
    piped = ecokv_process("evict", run_folder, "--force")
    assert piped.returncode == 0
    assert not ANSI.search((piped.stdout + piped.stderr).decode())
    plain = ecokv_process("analyze", run_folder, "--force", NO_COLOR="1")
    assert not ANSI.search((plain.stdout + plain.stderr).decode())


def test_a_closed_pipe_is_no_crash(run_folder):
    command = f"{sys.executable} -m ecokv_cli analyze {run_folder} --force | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False, timeout=120)
    assert b"Traceback" not in done.stderr


def test_debug_shows_where_it_failed(ecokv_process):
    done = ecokv_process("analyze", "nowhere", "--debug")
    assert done.returncode == 1
    assert b"Traceback" in done.stderr
    assert b"DumpError" in done.stderr
