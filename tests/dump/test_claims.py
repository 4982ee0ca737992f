"""Folders that appear whole or not at all, one writer at a time, whatever ends the process."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from folders import content, fill, names, put

from ecokv_cli.dump import claims
from ecokv_cli.dump.claims import claimed, replace
from ecokv_cli.dump.writer import fresh_folder, require_writable
from ecokv_cli.errors import OutputError

HOLD = """
import sys
from pathlib import Path
from ecokv_cli.dump.claims import claimed, replace
with claimed(Path(sys.argv[1])) as partial:
    (partial / "content").write_text("theirs")
    print("held", flush=True)
    sys.stdin.readline()
    replace(partial, Path(sys.argv[1]))
print("done", flush=True)
"""


@pytest.fixture
def other(tmp_path):
    """Another process that holds ``tmp_path / 'x'`` until it is told to go on."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "x")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def go_on(process):
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


# --- one at a time


def test_a_second_writer_is_refused_and_the_first_one_finishes(tmp_path, other):
    for attempt in (lambda: put(tmp_path / "x", "mine"), lambda: require_writable(tmp_path / "x", force=True)):
        with pytest.raises(OutputError, match=r"x: another ecokv is writing it; wait"):
            attempt()
    go_on(other)
    assert content(tmp_path / "x") == "theirs"
    assert names(tmp_path) == ["x"]
    put(tmp_path / "x", "mine", force=True)
    assert content(tmp_path / "x") == "mine"


def test_a_killed_writer_holds_nothing(tmp_path, other):
    put(tmp_path / "y", "mine")
    other.kill()
    other.wait()
    assert names(tmp_path) == [".x.lock", ".x.partial", "y"]
    put(tmp_path / "x", "mine")
    assert names(tmp_path) == ["x", "y"]
    assert content(tmp_path / "x") == "mine"


def test_a_claim_inside_one_process_is_one_at_a_time_too(tmp_path):
    with claimed(tmp_path / "x"):
        with pytest.raises(OutputError, match="another ecokv"), claimed(tmp_path / "x"):
            pass
        put(tmp_path / "y", "other")
    assert names(tmp_path) == ["y"]


def test_what_was_finished_by_another_just_before_the_claim_is_not_replaced(tmp_path, monkeypatch):
    final, seen = tmp_path / "x", []

    def exists(path):
        seen.append(path)
        if len(seen) == 1:  # between the first look and the claim
            final.mkdir()
            fill(final, "theirs")
            return False
        return real(path)

    real = Path.exists
    monkeypatch.setattr(Path, "exists", exists)
    with pytest.raises(OutputError, match="exists; add --force"):
        put(final, "mine")
    assert content(final) == "theirs"
    assert names(tmp_path) == ["x"]


RACE = """
import sys
from pathlib import Path
from ecokv_cli.dump.writer import fresh_folder
from ecokv_cli.errors import OutputError
final, name, force = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "force"
print("ready", flush=True)
sys.stdin.readline()
won = told = 0
for turn in range(40):
    try:
        with fresh_folder(final, force=force) as partial:
            for part in range(5):
                (partial / f"part-{part}").write_text(f"{name} {turn}")
        won += 1
    except OutputError as error:
        assert "another ecokv" in str(error) or "exists" in str(error), error
        told += 1
print(won, told, flush=True)
"""


@pytest.mark.parametrize("force", ["force", "no"])
def test_many_writers_at_once_never_mix_and_each_is_told(tmp_path, force):
    final = tmp_path / "x"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(final), name, force],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name in "abc"
    ]  # fmt: skip
    assert [process.stdout.readline() for process in writers] == ["ready\n"] * 3
    for process in writers:
        process.stdin.write("\n")
        process.stdin.flush()
    results = [process.communicate(timeout=120) for process in writers]
    assert [process.returncode for process in writers] == [0, 0, 0], results
    counts = [list(map(int, out.split())) for out, _ in results]
    assert [sum(each) for each in counts] == [40] * 3
    won = sum(each[0] for each in counts)
    assert won == 1 if force == "no" else won >= 1
    assert len({path.read_text() for path in final.iterdir()}) == 1
    assert len(names(final)) == 5
    assert names(tmp_path) == ["x"]


# --- ended at any point


KILL = """
import os, sys
from pathlib import Path
from ecokv_cli.dump import claims
from ecokv_cli.dump.claims import claimed, replace
final, point, number = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
calls = 0

def counting(function):
    def call(*arguments, **options):
        global calls
        calls += 1
        if calls == point:
            os.kill(os.getpid(), number)
        result = function(*arguments, **options)
        calls += 1
        if calls == point:
            os.kill(os.getpid(), number)
        return result
    return call

Path.mkdir, Path.rename = counting(Path.mkdir), counting(Path.rename)
claims.shutil.rmtree = counting(claims.shutil.rmtree)
Path.write_text = counting(Path.write_text)
with claimed(final) as partial:
    (partial / "content").write_text("new")
    replace(partial, final)
print("finished", calls)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_at_any_step_of_a_replacement_the_old_or_the_new_one_is_there_after_the_next(tmp_path, number):
    final, finished, point = tmp_path / "x", False, 0
    while not finished:
        point += 1
        put(final, "old", force=True)
        done = subprocess.run(
            [sys.executable, "-c", KILL, str(final), str(point), str(int(number))],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        finished = "finished" in done.stdout
        if finished:
            assert done.returncode == 0
            assert names(tmp_path) == ["x"]
            assert content(final) == "new"
        else:
            assert done.returncode == -int(number), done.stderr
        with claimed(final):
            pass
        assert names(tmp_path) == ["x"], point
        assert content(final) in ("old", "new")
    assert point > 8


# --- folders around it


def test_folders_made_for_a_claim_go_with_it_and_others_stay(tmp_path):
    (tmp_path / "there").mkdir()
    for final in (tmp_path / "there" / "a" / "b" / "x", tmp_path / "new" / "x"):
        require_writable(final, force=False)
        with pytest.raises(RuntimeError), fresh_folder(final, force=False):
            raise RuntimeError
    assert names(tmp_path) == ["there"]
    assert names(tmp_path / "there") == []
    with claimed(tmp_path / "new" / "x"):
        (tmp_path / "new" / "mine").touch()
    assert names(tmp_path / "new") == ["mine"]


def test_a_leftover_with_folders_and_links_in_it_is_emptied_and_what_a_link_points_to_stays(tmp_path):
    leftover, precious = tmp_path / ".x.partial", tmp_path / "precious"
    (leftover / "figures").mkdir(parents=True)
    (leftover / "figures" / "one").touch()
    precious.mkdir()
    fill(precious, "kept")
    (leftover / "link").symlink_to(precious)
    with claimed(tmp_path / "x") as partial:
        assert names(partial) == []
    assert content(precious) == "kept"


@pytest.mark.parametrize("missing", ["module", "support"])
def test_without_locks_each_process_has_a_folder_of_its_own(tmp_path, monkeypatch, missing):
    if missing == "module":
        monkeypatch.setattr(claims, "fcntl", None)
    else:

        def refuse(*_):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(claims.fcntl, "flock", refuse)
    with claimed(tmp_path / "x") as partial:
        assert partial.name == f".x.partial-{os.getpid()}"
        fill(partial, "mine")
        replace(partial, tmp_path / "x")
    assert content(tmp_path / "x") == "mine"
    assert names(tmp_path) == ["x"]
