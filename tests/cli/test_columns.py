"""What every command writes for two samples: columns that docs/columns.md explains, typeset tables, a summary."""

import csv
import json

import pytest
from column_docs import explained

from ecokv_cli.sample.shipped import shipped_folder

HOSTS = ("snapkv", "keydiff")
METHODS = (*(word for host in HOSTS for word in ("--method", host)), "-b", "24", "--window", "8")
DOCQA = ("evaluate", "--task", "docqa", "--samples", "1", "-o", "run", "--figures", "none", *METHODS)
COMMANDS = {
    "run/analysis": ("analyze", "run", "--figures", "none", "--pca", "0:0"),
    "run/eviction": ("evict", "run", "--figures", "none", *METHODS),
    "run/routing": ("route", "run", "--calibrate", "1", "--assignments", "3", "--format", "png", *METHODS),
    "run/evaluation": DOCQA,
    "run/evaluation/explain/page-0000": (*DOCQA, "--explain", "page-0000"),
    "comparison": ("compare", "run", "run", "--format", "png"),
}
ANALYSES = ("layers", "geometry", "redundancy", "roles", "regions", "sinks")
TYPESET = {
    "run/analysis": {f"{name}_over_samples" for name in ANALYSES}, "run/eviction": {"methods_over_samples"},
    "run/routing": {"routes"},
    "run/evaluation": {"accuracy", "accuracy_by_budget", "cost"},
    "run/evaluation/explain/page-0000": {"explain_methods"}, "comparison": {"layers_compared", "methods_compared"},
}  # fmt: skip


@pytest.fixture
def samples(tmp_path):
    """A manifest of two shipped samples, in a folder of its own."""
    entries = [json.loads(line) for line in (shipped_folder() / "samples.jsonl").read_text().splitlines()[:2]]
    for entry in entries:
        entry["image"] = str(shipped_folder() / entry["image"])
    (tmp_path / "two.jsonl").write_text("\n".join(map(json.dumps, entries)))
    return "two.jsonl"


def assert_wide(path, columns, rows):
    """Every row of a table over samples is one cell of its wide tables, in LaTeX as in Markdown."""
    measures = {row[columns.index("measure")] for row in rows}
    lines = [line.strip("| ").split(" | ") for line in path.with_suffix(".md").read_text("utf-8").splitlines()]
    tables = [line for line in lines if measures & set(line)]
    assert all(len(measures & set(table)) <= 5 for table in tables)
    cells = [cell for line in lines for cell in line if " [" in cell and ":" not in cell]
    assert len(cells) == sum(row[columns.index("n")] == "2" for row in rows), path
    text = path.with_suffix(".tex").read_text("utf-8")
    assert text.count(r"\toprule") == text.count(r"\end{tabular}") == len(tables), path
    assert all(cell.replace("-", "$-$").replace("e$-$", "e-") in text for cell in cells), path


def ruled(path):
    """The lines of a LaTeX table that are rules, and how many have cells."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.endswith("rule")], sum(line.endswith(r"\\") for line in lines)


def test_what_the_commands_write_is_explained_typeset_and_summed_up(ecokv, samples, tmp_path):
    # One test: the commands need each other's files.
    assert ecokv("dump", "--manifest", samples, "-o", "run", "--decode", "3", "--ignore-eos")[0] == 0
    for place, (command, *arguments) in COMMANDS.items():
        status, _, err = ecokv(command, *arguments)
        assert status == 0, err
        folder = tmp_path / place
        assert {path.stem for path in folder.glob("*.tex")} == TYPESET[place]
        files = sorted(folder.glob("*.csv"))
        assert files, place
        for path in files:
            with path.open(newline="", encoding="utf-8") as file:
                columns, *rows = csv.reader(file)
            # Columns of some tables are the budgets or the methods themselves.
            named = {column for column in columns if not column.isdigit() and column.partition("[")[0] not in HOSTS}
            assert named - explained(command, path.name) == set(), (place, path.name)
            if path.stem.endswith("_over_samples"):
                assert_wide(path, columns, rows)
            elif path.stem in TYPESET[place]:
                rules = [r"\toprule", r"\midrule", r"\bottomrule"]
                assert ruled(path.with_suffix(".tex")) == (rules, len(rows) + 1), path
                markdown = path.with_suffix(".md").read_text(encoding="utf-8").splitlines()
                assert sum(line.startswith("| ") for line in markdown) == len(rows) + 2, path
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        assert summary["command"].startswith(f"ecokv {command} ")
        assert summary["versions"]
        assert summary["settings"]
        assert summary["results"]
