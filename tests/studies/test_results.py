"""Tables written sample by sample are those written at once, and no more than one sample is held."""

import gc
import weakref
from collections.abc import Sequence

import pytest

from ecokv_cli.studies import parquet
from ecokv_cli.studies.results import Plain, write_tables
from ecokv_cli.studies.tables import Table

COLUMNS = ("sample", "late", "whole", "mixed", "flag", "never")


class Counted(Sequence):
    """Results that are made when they are asked for; knows how many tables were alive at most."""

    def __init__(self, count, columns=COLUMNS):
        self.count, self.columns, self.alive, self.most, self.asked = count, columns, [], 0, 0

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index >= self.count:
            raise IndexError
        self.asked += 1
        made = Table("t", self.columns)
        for row in range(3):
            made.add(
                sample=f"s{index}", late=None if index < 2 else f"x,{row}", whole=row if index < 3 else row / 3,
                mixed=row if index % 2 else "all", flag=row > index, never=None,
            )  # fmt: skip
        self.alive = [ref for ref in self.alive if ref() is not None] + [weakref.ref(made)]
        self.most = max(self.most, len(self.alive))
        return Plain([made, Table("empty", ("a",))])


def joined(results):
    tables = [result.tables[0] for result in results]
    return Table("t", tables[0].columns, [row for table in tables for row in table])


def test_csv_is_that_of_all_rows_and_two_samples_are_alive_at_most(tmp_path):
    results = Counted(29)
    gc.disable()
    try:
        write_tables(tmp_path, results)
    finally:
        gc.enable()
    assert results.most <= 2
    (tmp_path / "once").mkdir()
    once = joined(Counted(29)).write_csv(tmp_path / "once")
    assert (tmp_path / "t.csv").read_bytes() == once.read_bytes()
    assert (tmp_path / "empty.csv").read_text() == "a\n"


@pytest.mark.parametrize("cells", [1, 50, 100_000])
def test_parquet_has_one_kind_per_column_whatever_the_first_sample_had(tmp_path, monkeypatch, cells):
    pq = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(parquet, "_CELLS", cells)
    write_tables(tmp_path, Counted(7))
    found = pq.read_table(tmp_path / "t.parquet")
    kinds = {field.name: str(field.type) for field in found.schema}
    assert kinds == {
        "sample": "string", "late": "string", "whole": "double", "mixed": "string", "flag": "bool", "never": "null",
    }  # fmt: skip
    wanted = [row | {"mixed": str(row["mixed"])} for row in joined(Counted(7))]
    assert found.to_pylist() == wanted
    groups = pq.ParquetFile(tmp_path / "t.parquet").metadata.num_row_groups
    assert groups == {1: 7, 50: 3, 100_000: 1}[cells]
    assert pq.read_table(tmp_path / "empty.parquet").column_names == ["a"]


def test_results_are_read_once_more_for_parquet_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    results = Counted(5)
    write_tables(tmp_path, results)
    assert results.asked == 5
    assert not list(tmp_path.glob("*.parquet"))
