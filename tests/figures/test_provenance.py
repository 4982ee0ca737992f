"""Where samples come from, told once for all that agree: runs, precision, commands, versions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from memory_dumps import memory_dump

from ecokv_cli.figures.provenance import all_versions, command_lines, model_words
from ecokv_cli.studies.sources import joined, sources


def dumps(run, count, **fields):
    made = [memory_dump(f"s{i}", layers=1, **fields) for i in range(count)]
    return [replace(dump, folder=Path(run) / "dump" / dump.manifest.sample) for dump in made]


def test_dumps_that_were_made_alike_are_one_source():
    found = sources([*dumps("a", 3, command="x"), *dumps("a", 2, command="y"), *dumps("b", 1)], Path("./a"))
    assert [(s["run"], s["here"], s["samples"], s["commands"]) for s in found] == [
        ("a", True, 5, ["x", "y"]),
        ("b", False, 1, [""]),
    ]
    other = sources(dumps("a", 1, compute_dtype="bfloat16"), Path("a"))
    assert [s["samples"] for s in joined([found, found[1:], other])] == [5, 1, 1]
    assert [s["samples"] for s in found] == [5, 1], "left as they were"


def test_one_run_of_one_precision_takes_one_sentence():
    (words,) = model_words(sources(dumps("a", 7), Path("a")))
    assert words.startswith("Tiny, 1 layer, 6 query heads on 2 KV heads of dimension 5; computed in float32, ")


def test_runs_and_what_differs_between_them_are_told():
    mixed = [*dumps("a", 2), *dumps("a", 1, compute_dtype="bfloat16"), *dumps("b", 3, attention="eager")]
    opening, rest = model_words(sources(mixed, Path("a")))
    assert "float" not in opening
    assert rest == (
        "6 samples of 2 runs. a: 2 samples computed in float32, stored in float32, sdpa attention and 1 sample "
        "computed in bfloat16, stored in float32, sdpa attention; b: 3 samples computed in float32, stored in "
        "float32, eager attention."
    )
    assert model_words(sources([*dumps("a", 2), *dumps("b", 3)], Path("a")))[1] == (
        "5 samples of 2 runs. a: 2 samples; b: 3 samples."
    )


def test_of_many_runs_and_commands_the_first_are_told():
    many = [dump for i in range(300) for dump in dumps(f"run-{i}", 1, command=f"ecokv dump -o run-{i}")]
    found = sources(many, Path("run-0"))
    rest = model_words(found)[1]
    assert rest.startswith("300 samples of 300 runs. run-0: 1 sample; ")
    assert rest.endswith("run-19: 1 sample; and 280 more runs.")
    lines = command_lines((command for s in found for command in s["commands"]), ["ecokv analyze", "ecokv analyze"])
    assert lines.splitlines()[19:] == ["ecokv dump -o run-19", "# and 280 more that made dumps", "ecokv analyze"]


def test_versions_are_told_once_where_all_agree_and_else_with_who_had_them():
    assert all_versions({
        "dump": [{"torch": "2.6", "numpy": "2.0"}, {"torch": "2.7", "numpy": "2.0"}],
        "analysis": [{"torch": "2.7", "numpy": "2.0", "scipy": "1.15"}],
    }) == {"torch": "2.6 (dump), 2.7 (dump, analysis)", "numpy": "2.0", "scipy": "1.15"}  # fmt: skip
