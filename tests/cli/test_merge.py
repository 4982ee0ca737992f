"""Shards put together are the study run in one piece."""

import filecmp
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_inputs" / "samples.jsonl"


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """Two samples dumped in one piece."""
    folder = tmp_path_factory.mktemp("pieces")
    lines = SAMPLES.read_text(encoding="utf-8").splitlines()[1:3]
    for name in ("one-column.png", "small.png"):
        shutil.copy(SAMPLES.parent / name, folder)
    (folder / "samples.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def done(result):
    status, _, err = result
    assert status == 0, err


def test_merged_dumps_and_analyses_are_those_made_in_one_piece(dumps, tmp_path, ecokv):
    manifest = dumps / "samples.jsonl"
    done(ecokv("dump", "--manifest", manifest, "-o", "whole", "--decode", "2"))
    for shard in ("0/2", "1/2"):
        done(ecokv("dump", "--manifest", manifest, "-o", f"part-{shard[0]}", "--decode", "2", "--shard", shard))
    done(ecokv("merge", "part-0", "part-1", "-o", "merged"))
    for sample in ("one-column", "small"):
        whole, merged = (tmp_path / run / "dump" / sample for run in ("whole", "merged"))
        names = sorted(path.name for path in whole.iterdir())
        assert names == sorted(path.name for path in merged.iterdir())
        layers = [name for name in names if name.endswith(".safetensors")]
        assert layers
        assert filecmp.cmpfiles(whole, merged, layers, shallow=False)[0] == layers

    done(ecokv("analyze", "whole", "--figures", "none"))
    for shard in ("0/2", "1/2"):
        done(ecokv("analyze", "merged", "--figures", "none", "--shard", shard))
    assert not (tmp_path / "merged" / "analysis").exists()
    done(ecokv("merge", "merged"))
    tables = sorted(path.name for path in (tmp_path / "whole" / "analysis").glob("*.csv"))
    assert "geometry.csv" in tables
    same, other, missing = filecmp.cmpfiles(
        tmp_path / "whole" / "analysis", tmp_path / "merged" / "analysis", tables, shallow=False
    )
    assert (same, other, missing) == (tables, [], [])


def test_merged_answers_give_the_accuracy_of_one_piece(tmp_path, ecokv):
    asked = ("evaluate", "--task", "docqa", "--samples", "3", "--method", "snapkv", "-b", "8,6", "--window", "4")
    done(ecokv(*asked, "--figures", "none", "-o", "whole"))
    for shard in ("0/2", "1/2"):
        done(ecokv(*asked, "--figures", "none", "-o", "parts", "--shard", shard))
    status, _, err = ecokv("merge", "parts")
    assert status == 0, err
    for name in ("accuracy.csv", "accuracy_by_budget.csv"):
        whole, merged = (tmp_path / run / "evaluation" / name for run in ("whole", "parts"))
        assert whole.read_bytes() == merged.read_bytes()


def test_a_missing_shard_is_named(dumps, tmp_path, ecokv):
    done(ecokv("dump", "--manifest", dumps / "samples.jsonl", "-o", "part", "--decode", "1", "--shard", "1/2"))
    status, _, err = ecokv("merge", "part", "-o", "merged")
    assert status == 1
    assert "0/2" in err
    assert not (tmp_path / "merged").exists()
