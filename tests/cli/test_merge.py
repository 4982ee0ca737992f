"""Shards put together are the study run in one piece."""

import csv
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


def timeless(folder):
    """The tables of a folder by name, their times left out."""
    found = {}
    for path in folder.glob("*.csv"):
        with path.open(newline="") as file:
            rows = [{key: value for key, value in row.items() if not key.endswith("seconds")}
                    for row in csv.DictReader(file)]  # fmt: skip
        found[path.name] = rows if path.stem == "answers" else path.read_bytes()
    return found


ABLATE = ("ablate", "--task", "docqa", "--samples", "3", "-b", "40", "--format", "png", "--width", "single", "--only")


def test_merged_answers_give_the_ablation_of_one_piece(tmp_path, ecokv):
    done(ecokv(*ABLATE, "factorial,averaging", "-o", "whole"))
    whole = timeless(tmp_path / "whole" / "ablation")
    assert {"answers.csv", "factorial.csv", "factorial_effects.csv", "averaging.csv", "full_cache.csv"} <= set(whole)
    assert len(whole["answers.csv"]) == 3 * 6

    done(ecokv(*ABLATE, "factorial", "-o", "part-0", "--shard", "0/2"))
    assert not (tmp_path / "part-0" / "ablation").exists()
    status, _, err = ecokv("merge", "part-0", "-o", "merged")
    assert status == 1
    assert "ablation: 1 of 2 shards are missing: 1/2" in err
    done(ecokv(*ABLATE, "factorial", "-o", "part-1", "--shard", "1/2"))
    left = tmp_path / "part-1" / ".ablation" / "1-of-2"
    left.rename(tmp_path / "away")
    status, _, err = ecokv("merge", "part-0", "part-1", "-o", "merged")
    assert status == 1
    assert "1-of-2: lacks answers of page-0001; run the shard again" in err
    assert not (tmp_path / "merged").exists()
    (tmp_path / "away").rename(left)
    done(ecokv("merge", "part-0", "part-1", "-o", "merged"))
    merged = timeless(tmp_path / "merged" / "ablation")
    new = "snapkv+ecokv[avg_domain=candidates]"
    assert merged == {
        "answers.csv": [row for row in whole["answers.csv"] if row["method"] != new],
        **{name: whole[name] for name in ("factorial.csv", "factorial_effects.csv", "full_cache.csv")},
    }

    # Shards of more experiments decode nothing but the arms that are new.
    more = (*ABLATE, "factorial,averaging", "--force", "-o", "merged", "--shard")
    for shard, there in (("0/2", "10 of 12"), ("1/2", "5 of 6")):
        status, _, err = ecokv(*more, shard)
        assert (status, f"{there} answers were there already" in err) == (0, True), err
    done(ecokv("merge", "merged", "--force"))
    assert timeless(tmp_path / "merged" / "ablation") == whole
    assert {path.name for path in (tmp_path / "merged").iterdir()} == {"ablation"}


def test_a_sample_that_fails_in_its_shard_is_left_out_of_the_whole(tmp_path, ecokv, monkeypatch):
    from ecokv_cli.errors import ModelError
    from ecokv_cli.studies import evaluate

    real = evaluate.answer

    def answer(loaded, question, settings):
        if question.id == "page-0001":
            raise ModelError("stopped")
        return real(loaded, question, settings)

    monkeypatch.setattr(evaluate, "answer", answer)
    asked = (*ABLATE, "averaging", "--keep-going", "-o")
    assert ecokv(*asked, "whole")[0] == 1
    assert ecokv(*asked, "parts", "--shard", "0/2")[0] == 0
    status, _, err = ecokv(*asked, "parts", "--shard", "1/2")
    assert (status, "page-0001" in err) == (1, True)
    status, _, err = ecokv("merge", "parts")
    assert status == 1
    assert "1 samples failed and are left out: page-0001" in err
    whole = timeless(tmp_path / "whole" / "ablation")
    assert len(whole["answers.csv"]) == 2 * 3
    assert timeless(tmp_path / "parts" / "ablation") == whole


def test_a_missing_shard_is_named(dumps, tmp_path, ecokv):
    done(ecokv("dump", "--manifest", dumps / "samples.jsonl", "-o", "part", "--decode", "1", "--shard", "1/2"))
    status, _, err = ecokv("merge", "part", "-o", "merged")
    assert status == 1
    assert "0/2" in err
    assert not (tmp_path / "merged").exists()
