"""``ecokv dump --manifest`` as a user runs it."""

import json
import re
import signal
import subprocess
import sys

import pytest
from PIL import Image

from ecokv_cli.dump.reader import open_dump
from ecokv_cli.sample.shipped import shipped_folder

SHIPPED = shipped_folder() / "samples.jsonl"

KILLED = """
import os, signal, sys
from ecokv_cli.cli.main import main
from ecokv_cli.dump.writer import LayerWriter

add, count = LayerWriter.add, 0

def counting(*arguments):
    global count
    count += 1
    add(*arguments)
    if count == 6 + 3:
        os.kill(os.getpid(), {number})

LayerWriter.add = counting
sys.argv = ["ecokv", *sys.argv[1:]]
main()
"""
"""The command in a process that gets a signal after the third layer of the second sample."""


@pytest.fixture
def manifest(tmp_path):
    """Five short samples: a page, a damaged image, text, a control token, a page."""
    Image.linear_gradient("L").resize((84, 56)).convert("RGB").save(tmp_path / "page.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "page.png").read_bytes()[:-31])
    rows = [
        {"id": "one", "image": "page.png", "prompt": "what is the total?", "answers": ["7"]},
        {"id": "two", "image": "broken.png", "prompt": "what is the total?"},
        {"id": "three", "prompt": "the total"},
        {"id": "four", "prompt": "what is <|im_end|>"},
        {"id": "five", "image": "page.png", "prompt": ""},
    ]
    path = tmp_path / "many.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def folders(run):
    return sorted(path.name for path in (run / "dump").iterdir())


def test_the_shipped_samples_are_dumped_with_answers_and_boxes_and_analysed(ecokv, tmp_path):
    status, out, err = ecokv("dump", "--manifest", SHIPPED, "-o", "run", "--limit", "3", "--json")
    assert status == 0
    summary = json.loads(out)
    assert (summary["samples"], summary["done"], summary["skipped"], summary["failed"]) == (3, 3, 0, 0)
    assert summary["failures"] == []
    assert "next: ecokv analyze" in err
    assert folders(tmp_path / "run") == ["one-column", "small", "two-columns"]
    found = open_dump(tmp_path / "run" / "dump" / "small").manifest
    assert (found.answers, found.decoded.text) == (("58195",), "58195")
    assert [(box.text, box.image) for box in found.boxes] == [("key", 0), ("58195", 0)]
    assert found.boxes[1].box == (167 / 280, 166 / 224, 237 / 280, 194 / 224)
    assert ecokv("analyze", "run", "-q")[0] == 0
    status, out, err = ecokv("dump", "--manifest", SHIPPED, "-o", "run")
    assert status == 0
    assert "3 of 4 already there" in err
    assert re.search(r"done +1 *\n", out)
    assert re.search(r"skipped +3 *\n", out)


def test_the_shipped_sample_dumped_alone_is_the_same_as_from_its_manifest(ecokv, run_folder):
    assert open_dump(run_folder / "dump" / "two-columns").manifest.boxes[1].text == "61543"
    status, _, err = ecokv("dump", "--manifest", SHIPPED, "-o", run_folder, "--limit", "1")
    assert status == 0
    assert "1 of 1 already there" in err


def test_other_single_samples_know_no_answer(ecokv, tmp_path):
    assert ecokv("dump", "-p", "the total", "--decode", "1", "-o", "r")[0] == 0
    found = open_dump(tmp_path / "r" / "dump" / "sample").manifest
    assert (found.answers, found.boxes) == ((), ())


def test_a_failing_sample_stops_the_run_and_keeps_what_was_done(ecokv, manifest, tmp_path):
    status, out, err = ecokv("dump", "--manifest", manifest, "-o", "r")
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert re.search(r"error: sample two \(number 2 of 5\): image .*broken.png' cannot be decoded", err)
    assert folders(tmp_path / "r") == ["one"]


def test_keep_going_reports_failures_and_ends_with_status_1(ecokv, manifest, tmp_path):
    status, out, err = ecokv("dump", "--manifest", manifest, "-o", "r", "--keep-going")
    assert status == 1
    assert re.search(r"failed +2 *\n", out)
    assert re.search(r"\ntwo +image .*broken.png' cannot be decoded", out)
    assert "sample four failed: the prompt holds '<|im_end|>'" in err
    assert err.rstrip().splitlines()[-1].startswith("ecokv: error: 2 of 5 samples failed; ")
    assert folders(tmp_path / "r") == ["five", "one", "three"]
    status, out, err = ecokv("dump", "--manifest", manifest, "-o", "r", "--keep-going", "--json", "-q")
    assert status == 1
    summary = json.loads(out)
    assert (summary["done"], summary["skipped"], summary["failed"]) == (0, 3, 2)
    assert [failure["sample"] for failure in summary["failures"]] == ["two", "four"]
    assert err.count("\n") == 1


def test_other_settings_are_refused_unless_forced(ecokv, manifest, tmp_path):
    common = ("dump", "--manifest", manifest, "-o", "r", "--limit", "1")
    assert ecokv(*common)[0] == 0
    status, _, err = ecokv(*common, "--window", "7")
    assert status == 1
    assert "made with settings.window 32, now 7; add --force" in err
    assert ecokv(*common, "--window", "7", "--force")[0] == 0
    assert open_dump(tmp_path / "r" / "dump" / "one").manifest.settings["window"] == 7


def test_without_an_output_the_run_is_new_and_says_how_to_go_on(ecokv, manifest, tmp_path):
    status, _, err = ecokv("dump", "--manifest", manifest, "--limit", "1")
    (run,) = (tmp_path / "ecokv-runs").iterdir()
    assert status == 0
    assert run.name.endswith("-many")
    assert f"go on with --output ecokv-runs/{run.name}" in err


@pytest.mark.parametrize(("arguments", "message"), [
    (["--manifest", "many.jsonl", "page.png"], "--manifest brings images and prompts"),
    (["--manifest", "many.jsonl", "-p", "x"], "--manifest brings images and prompts"),
    (["--limit", "3"], "--limit is for many samples"),
    (["--keep-going", "-p", "x"], "--keep-going is for many samples"),
    (["--manifest", "many.jsonl", "--max-pixels", "0"], "--max-pixels 0"),
])  # fmt: skip
def test_options_that_do_not_go_together_are_usage_errors(ecokv, manifest, tmp_path, arguments, message):
    status, out, err = ecokv("dump", *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert not (tmp_path / "ecokv-runs").exists()


def test_a_faulty_line_is_refused_before_the_model_is_looked_for(ecokv, manifest):
    with manifest.open("a") as file:
        file.write('\n{"prompt": 5}\n')
    status, out, err = ecokv("dump", "--manifest", manifest, "--limit", "1", "-m", "no/such/model")
    assert (status, out) == (1, "")
    assert err.startswith(f"ecokv: error: manifest {str(manifest)!r}, line 6, field 'prompt': found the number 5")


def test_a_manifest_from_standard_input_and_output_into_a_pipe(ecokv_process, tmp_path):
    done = ecokv_process("dump", "--manifest", "-", "-o", "r", "-v", stdin=b'{"prompt": "the total"}\n')
    assert done.returncode == 0
    assert folders(tmp_path / "r") == ["line-0001"]
    assert b"line-0001: " in done.stderr
    assert b"\x1b[" not in done.stdout + done.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_killed_run_goes_on_at_the_first_unfinished_sample(ecokv, tmp_path, number, status):

    arguments = ("dump", "--manifest", str(SHIPPED), "-o", "r", "--limit", "3")
    done = subprocess.run(
        [sys.executable, "-c", KILLED.format(number=int(number)), *arguments],
        capture_output=True, cwd=tmp_path, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == status
    assert b"Traceback" not in done.stderr
    left = [name for name in folders(tmp_path / "r") if name != "two-columns"]
    assert left == ([".one-column.lock", ".one-column.partial"] if number == signal.SIGKILL else [])
    code, out, _ = ecokv(*arguments)
    assert code == 0
    assert re.search(r"done +2 *\n", out)
    assert folders(tmp_path / "r") == ["one-column", "small", "two-columns"]
