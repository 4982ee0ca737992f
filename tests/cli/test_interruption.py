"""Whenever a command is ended, what was there before is there afterwards, and the same command finishes the job."""

import json
import shutil
import signal
import subprocess
import sys

import pytest
from ended import run_ended

from ecokv_cli.dump.reader import open_dump

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGKILL: -9}
WORD = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "terminated", signal.SIGKILL: ""}


def contents(folder):
    """Bytes of all files below a folder, by name."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def answer(run):
    return open_dump(run / "dump" / "sample").manifest.decoded.ids


DUMP = ("dump", "-p", "the total", "--ignore-eos", "-o", "r")


@pytest.fixture
def old(ecokv, tmp_path):
    """A run with a dump of two decoded tokens, which a dump of three is to replace."""
    assert ecokv(*DUMP, "--decode", "2")[0] == 0
    return contents(tmp_path / "r")


@pytest.mark.parametrize(("where", "turn", "number"), [
    ("ecokv_cli.models.loading:load_processor", 1, signal.SIGINT),
    ("ecokv_cli.models.dumping:prepare", 1, signal.SIGTERM),
    ("transformers.integrations.sdpa_attention:sdpa_attention_forward", 3, signal.SIGINT),
    ("ecokv_cli.dump.writer:LayerWriter.add", 1, signal.SIGHUP),
    ("ecokv_cli.dump.writer:_save", 4, signal.SIGKILL),
    ("ecokv_cli.dump.writer:LayerWriter.finish", 1, signal.SIGINT),
    ("pathlib:Path.rename", 2, signal.SIGTERM),
    ("pathlib:Path.rename", 2, signal.SIGKILL),
])  # fmt: skip
def test_a_dump_that_was_to_replace_another(ecokv, tmp_path, old, where, turn, number):
    done = run_ended(tmp_path, where, turn, number, *DUMP, "--decode", "3", "--force")
    assert done.returncode == STATUS[number]
    assert WORD[number] in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    if number == signal.SIGKILL:
        kept = {name.replace(".sample.old/", "sample/"): content for name, content in contents(tmp_path / "r").items()}
        assert old.items() <= kept.items()
    else:
        assert contents(tmp_path / "r") == old
    status, _, err = ecokv(*DUMP, "--decode", "3", "--force")
    assert (status, "next:" in err) == (0, True)
    assert sorted(p.name for p in (tmp_path / "r" / "dump").iterdir()) == ["sample"]
    assert len(answer(tmp_path / "r")) == 3
    assert ecokv("validate", "r")[0] == 0


@pytest.mark.parametrize(("where", "turn", "number"), [
    ("ecokv_cli.studies.results:write_results", 1, signal.SIGTERM),
    ("matplotlib.figure:Figure.savefig", 1, signal.SIGINT),
    ("ecokv_cli.figures.run_report:write_run_report", 1, signal.SIGTERM),
    ("ecokv_cli.figures.run_report:write_report", 1, signal.SIGKILL),
])  # fmt: skip
def test_an_analysis_that_was_to_replace_another(ecokv, tmp_path, run_folder, where, turn, number):
    common = (
        "analyze",
        run_folder,
        "--layers",
        "0,5",
        "--heads",
        "0",
        "--format",
        "png",
        "--figures",
        "lambda_by_layer",
    )
    assert ecokv(*common, "--pairs", "100")[0] == 0
    old = contents(run_folder)
    done = run_ended(tmp_path, where, turn, number, *common, "--pairs", "200", "--force")
    assert done.returncode == STATUS[number]
    assert "Traceback" not in done.stderr
    now = contents(run_folder)
    if "write_run_report" not in where and "write_report" not in where:
        assert old.items() <= now.items()
    assert now["report.html"] == old["report.html"]
    assert ecokv(*common, "--pairs", "200", "--force")[0] == 0
    summary = json.loads((run_folder / "analysis" / "summary.json").read_text())
    assert summary["settings"]["pairs"] == 200
    assert not [path for path in run_folder.iterdir() if path.name.startswith(".analysis.")]
    assert b"</html>" in (run_folder / "report.html").read_bytes()[-100:]


@pytest.mark.parametrize(("command", "folder", "number"), [
    ("analyze", "analysis", signal.SIGKILL),
    ("analyze", "analysis", signal.SIGINT),
    ("evict", "eviction", signal.SIGTERM),
])  # fmt: skip
def test_a_study_ended_in_its_second_sample_goes_on_there_and_equals_one_that_was_not(
    ecokv, tmp_path, command, folder, number
):
    for name, prompt in (("a", "the total"), ("b", "the date")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"id": name, "prompt": prompt}))
        ecokv("dump", "--manifest", f"{name}.jsonl", "-o", "r", "--decode", "2", "--ignore-eos")
    shutil.copytree(tmp_path / "r", tmp_path / "other")
    options = ("--figures", "none", *(("-b", "4", "-w", "2") if command == "evict" else ()))
    assert ecokv(command, "other", *options)[0] == 0
    # Six layers of the first sample, and two of the second.
    done = run_ended(tmp_path, "ecokv_cli.dump.reader:Dump.layer", 8, number, command, "r", *options)
    assert done.returncode == STATUS[number]
    if WORD[number]:
        kept = "1 of 2 samples are done and kept; run the same command again to go on"
        assert done.stderr.endswith(f"ecokv: error: {WORD[number]}; {kept}\n")
    assert not (tmp_path / "r" / folder).exists()
    status, _, err = ecokv(command, "r", *options)
    assert (status, "1 of 2 samples" in err) == (0, True)

    def results(run):
        return {name: text for name, text in contents(tmp_path / run / folder).items() if name != "summary.json"}

    assert results("r") == results("other")
    assert not [path for path in (tmp_path / "r").iterdir() if "parts" in path.name]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_from_outside_while_it_decodes(tmp_path, number):
    """The line that a verbose run writes as decoding begins is what is waited for."""
    with subprocess.Popen(
        [sys.executable, "-m", "ecokv_cli", *DUMP, "--decode", "1000000", "-v"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        seen = []
        for line in process.stderr:
            seen.append(line.strip())
            if line.startswith("decode"):
                break
        assert (tmp_path / "r" / "dump" / ".sample.partial").is_dir()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert seen[0] == "load model"
    assert seen[-2:] == ["prefill", "decode"]
    assert (process.returncode, out) == (STATUS[number], "")
    assert err == f"ecokv: error: {WORD[number]}; nothing unfinished was kept, run the same command again\n"
    assert not (tmp_path / "r").exists()


def test_what_nohup_ignores_does_not_end_a_command(tmp_path):
    script = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1], *sys.argv[2:]])"
    )
    from ended import SCRIPT

    done = subprocess.run(
        [sys.executable, "-c", script, SCRIPT, "ecokv_cli.dump.writer:LayerWriter.finish", "1",
         str(int(signal.SIGHUP)), *DUMP],
        capture_output=True, text=True, cwd=tmp_path, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, "reached" in done.stderr) == (0, True)
    assert (tmp_path / "r" / "dump" / "sample" / "manifest.json").exists()
