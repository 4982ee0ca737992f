import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecokv_cli.dump.reader import open_dump
from ecokv_cli.dump.runs import clear_leftovers, find_run, first_damage, new_run, parse_range
from ecokv_cli.errors import DumpError, UsageError


@pytest.mark.parametrize(("text", "expected"), [
    ("all", [*range(28)]), ("0", [0]), ("-1", [27]), ("0-3,7,-1", [0, 1, 2, 3, 7, 27]), ("3,3,2-3", [2, 3]),
    ("-3--1", [25, 26, 27]), (" ALL ", [*range(28)]), ("1, 2", [1, 2]),
])  # fmt: skip
def test_ranges(text, expected):
    assert parse_range(text, 28, "layers") == expected


@pytest.mark.parametrize("text", ["28", "40-50", "5-2", "-29", "", "x", "1-", "0..3", "1,,2", "1.5"])
def test_wrong_ranges_name_the_option_and_the_range(text):
    with pytest.raises(UsageError, match="--layers"):
        parse_range(text, 28, "layers")


@given(st.lists(st.integers(-7, 6), min_size=1))
def test_every_list_of_valid_numbers_is_sorted_and_merged(numbers):
    assert parse_range(",".join(map(str, numbers)), 7, "layers") == sorted({n % 7 for n in numbers})


def test_the_latest_dump_is_found_and_empty_runs_are_passed_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DumpError, match="run `ecokv dump` first"):
        find_run(None)
    for age, name in enumerate(["newer", "older"]):
        folder = tmp_path / "ecokv-runs" / name / "dump"
        (folder / "page").mkdir(parents=True)
        (folder / "page" / "manifest.json").touch()
        os.utime(folder, (1000 - age, 1000 - age))
    (tmp_path / "ecokv-runs" / "unfinished" / "dump").mkdir(parents=True)
    assert find_run(None).folder.name == "newer"


def test_a_run_is_found_from_any_folder_in_it(write, tmp_path):
    folder = write()
    for path in (folder, folder.parent, folder.parent.parent):
        assert find_run(path).folder == tmp_path / "run"
    assert [d.manifest.sample for d in find_run(folder).samples()] == ["page"]
    with pytest.raises(DumpError, match="no such folder"):
        find_run(tmp_path / "x" / "y")


def test_new_runs_never_share_a_name(tmp_path):
    first = new_run("page", tmp_path)
    first.folder.mkdir()
    assert new_run("page", tmp_path).folder != first.folder


HOLD = """
import sys
from pathlib import Path
from ecokv_cli.dump.claims import claimed
with claimed(Path(sys.argv[1])) as partial:
    (partial / "layer_000.safetensors").touch()
    print("held", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed_and_what_a_running_one_holds_stays(write):
    folder = write().parent
    for name in (".page.partial", ".page.old", ".other.partial", ".page.notes", "page-2"):
        (folder / name).mkdir()
        (folder / name / "layer_000.safetensors").touch()
    command = [sys.executable, "-c", HOLD, str(folder / "held")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        clear_leftovers(folder, ["page", "held", "absent"])
        kept = sorted(["page", ".other.partial", ".page.notes", "page-2", ".held.partial", ".held.lock"])
        assert sorted(p.name for p in folder.iterdir()) == kept
        assert (folder / ".held.partial" / "layer_000.safetensors").exists()
        holder.kill()
        holder.wait()
    clear_leftovers(folder, ["held"])
    assert not list(folder.glob(".held*"))
    clear_leftovers(folder / "no-such-folder", ["page"])


def test_a_replacement_cut_off_between_its_two_steps_is_undone(write):
    folder = write()
    folder.rename(folder.parent / ".page.old")
    clear_leftovers(folder.parent, ["page"])
    assert open_dump(folder).manifest.sample == "page"


def test_missing_and_cut_off_files_of_a_dump_are_named(write):
    folder = write()
    assert first_damage(open_dump(folder)) == ""
    path = folder / "layer_001.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert first_damage(open_dump(folder)) == f"{path.name} has {len(whole) - 1} bytes instead of {len(whole)}"
    path.unlink()
    assert first_damage(open_dump(folder)) == f"{path.name} is missing"
