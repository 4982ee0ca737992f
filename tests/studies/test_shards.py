"""Shards: who has which sample, what they leave, and what does not belong together."""

from dataclasses import replace

import pytest

from ecokv_cli.errors import DumpError, OutputError, UsageError
from ecokv_cli.studies.shards import Marker, Shard, forget, read_markers, whole, write_marker

NAMES = "abcdefghijk"
SAMPLES = tuple({"name": name, "key": f"{name}-1"} for name in NAMES)


def marker(index, count=3, **changes):
    mine = {"budgets": [64], "seed": 0}
    return replace(Marker("evaluation", Shard(index, count), SAMPLES, mine, {}), **changes)


def put(tmp_path, *markers):
    """Each marker in a run of its own."""
    runs = [tmp_path / f"run{number}" for number in range(len(markers))]
    for run, each in zip(runs, markers, strict=True):
        write_marker(run, each)
    return runs


def together(tmp_path, *markers):
    return whole(read_markers(put(tmp_path, *markers))["evaluation"])


@pytest.mark.parametrize("count", [1, 2, 3, 7, 13])
def test_every_sample_is_in_one_shard_and_shards_are_even(count):
    shares = [Shard(index, count).of(NAMES) for index in range(count)]
    assert sorted(name for share in shares for name in share) == sorted(NAMES)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert shares[0] == [name for number, name in enumerate(NAMES) if number % count == 0]


def test_a_shard_is_written_as_a_slurm_array_numbers_its_tasks():
    assert Shard.parse("0/8") == Shard(0, 8)
    assert str(Shard.parse(" 7/8 ")) == "7/8"


@pytest.mark.parametrize(("text", "message"), [
    ("8/8", "count from 0, so the last is 7/8"), ("0/0", "write I/N"), ("1", "write I/N"), ("-1/4", "write I/N"),
    ("1/4/2", "write I/N"), ("a/b", "write I/N"), ("", "write I/N"), ("1.0/4", "write I/N"), ("²/4", "write I/N"),
])  # fmt: skip
def test_what_is_no_shard_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        Shard.parse(text)


def test_shards_in_any_order_make_up_the_study(tmp_path):
    failed = {"b": "no image"}
    found = together(tmp_path, marker(2), marker(0), marker(1, failed=failed))
    assert [sample["name"] for sample in found.samples] == list(NAMES)
    by_index = {0: "run1", 1: "run2", 2: "run0"}
    assert [run.name for run in found.runs] == [by_index[number % 3] for number in range(len(NAMES))]
    assert found.failed == failed
    assert found.settings == {"budgets": [64], "seed": 0}


def test_all_shards_may_be_in_one_run_and_are_forgotten_there(tmp_path):
    for index in (1, 0, 2):
        write_marker(tmp_path, marker(index))
    write_marker(tmp_path, marker(0, 1, kind="dump"))
    found = read_markers([tmp_path, tmp_path])
    assert sorted(found) == ["dump", "evaluation"]
    assert set(whole(found["evaluation"]).runs) == {tmp_path}
    forget(found["evaluation"])
    assert sorted(read_markers([tmp_path])) == ["dump"]
    forget(found["dump"])
    assert list(tmp_path.iterdir()) == []


def test_a_shard_that_is_run_again_takes_the_place_of_the_first(tmp_path):
    write_marker(tmp_path, marker(0, 1, failed={"a": "broken"}))
    write_marker(tmp_path, marker(0, 1))
    assert whole(read_markers([tmp_path])["evaluation"]).failed == {}


OTHER = (*SAMPLES[:4], {"name": "e", "key": "e-2"}, *SAMPLES[5:])


@pytest.mark.parametrize(("changes", "message"), [
    ({"settings": {"budgets": [32], "seed": 0}}, r"run1, .* 1/3: made with budgets \[32\], not \[64\] \(.*run0"),
    ({"settings": {"budgets": [64], "seed": 0, "windows": [4]}}, r"made with windows \[4\], not null"),
    ({"samples": SAMPLES[:5]}, "made of 5 samples, not of 11"),
    ({"samples": OTHER}, "made with other input for sample e"),
    ({"samples": SAMPLES[::-1]}, "made with sample k, not a"),
    ({"shard": Shard(1, 2)}, r"run1, evaluation 1/2: one of 2 shards, not of 3"),
])  # fmt: skip
def test_shards_of_another_study_are_refused_by_what_differs(tmp_path, changes, message):
    with pytest.raises(OutputError, match=message):
        together(tmp_path, marker(0), marker(1, **changes), marker(2))


def test_missing_shards_and_those_that_are_there_twice_are_named(tmp_path):
    with pytest.raises(OutputError, match="2 of 5 shards are missing: 1/5, 3/5;"):
        together(tmp_path / "missing", *(marker(index, 5) for index in (4, 0, 2)))
    with pytest.raises(OutputError, match=r"evaluation 1/3 is in .*run1 and in .*run2"):
        together(tmp_path / "twice", marker(0), marker(1), marker(1), marker(2))


def test_a_run_without_shards_or_with_a_damaged_one_is_named(tmp_path):
    with pytest.raises(DumpError, match=r"none: holds no shard; .*--shard I/N"):
        read_markers([tmp_path / "none"])
    (run,) = put(tmp_path, marker(0, 1))
    (path,) = (run / "shards").iterdir()
    for text in ("{", "[]", "{}", '{"shard": {"index": 0}}', '{"shard": 7, "samples": []}'):
        path.write_text(text)
        with pytest.raises(DumpError, match=r"evaluation-0-of-1\.json: cannot be read as a shard"):
            read_markers([run])
