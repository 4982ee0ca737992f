"""Two commands that write to the same place: one wins, the other says so, and nothing is mixed."""

import subprocess
import sys

import pytest

from ecokv_cli.dump.reader import open_dump


def start(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "ecokv_cli", *map(str, arguments)],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for(process, word):
    """Read what the process says until a line begins with `word`."""
    assert any(line.startswith(word) for line in process.stderr)


DUMP = ("dump", "-p", "the total", "--ignore-eos", "-o", "r")


def test_who_comes_second_is_told_at_once_and_the_first_is_not_disturbed(ecokv, tmp_path):
    with start(tmp_path, *DUMP, "--decode", "1000000", "-v") as first:
        wait_for(first, "decode")
        status, out, err = ecokv(*DUMP, "-m", "no/such/model")  # told before the model is looked for
        assert (status, out) == (1, "")
        assert err == (
            "ecokv: error: r/dump/sample: another ecokv is writing it; wait until that is done, or choose another "
            "--output\n"
        )
        status, _, err = ecokv("info", "r")
        assert status == 1
        assert "holds no dump" in err
        assert first.poll() is None
        # Another sample of the same run is nobody's business.
        (tmp_path / "other.jsonl").write_text('{"id": "other", "prompt": "the total"}')
        assert ecokv("dump", "--manifest", "other.jsonl", "-o", "r", "--decode", "1")[0] == 0
        (tmp_path / "same.jsonl").write_text('{"id": "sample", "prompt": "the total"}')
        status, _, err = ecokv("dump", "--manifest", "same.jsonl", "-o", "r", "--decode", "1")
        assert status == 1
        assert "sample sample (number 1 of 1): r/dump/sample: another ecokv is writing it" in err
        first.kill()
    assert ecokv(*DUMP, "--decode", "1")[0] == 0
    assert sorted(p.name for p in (tmp_path / "r" / "dump").iterdir()) == ["other", "sample"]


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_two_that_start_together(tmp_path, ecokv, force):
    steps = (3, 5)
    processes = [start(tmp_path, *DUMP, "--decode", n, "--json", *force) for n in steps]
    results = [process.communicate(timeout=180) for process in processes]
    status = [process.returncode for process in processes]
    for code, (out, err) in zip(status, results, strict=True):
        assert "Traceback" not in err
        if code:
            assert (code, out) == (1, "")
            assert "another ecokv is writing it" in err or "exists; add --force" in err
    assert status.count(0) >= 1
    if not force:
        assert status.count(0) == 1
    (folder,) = (tmp_path / "r" / "dump").iterdir()
    assert len(open_dump(folder).manifest.decoded.ids) in [n for n, code in zip(steps, status, strict=True) if not code]
    assert ecokv("validate", "r")[0] == 0
