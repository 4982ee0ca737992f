"""Tables of many samples, reduced one by one, know what the table of all their rows knows."""

import numpy as np
import pytest

from ecokv_cli.studies.reduced import Reducer, Reduction, prepared
from ecokv_cli.studies.statistics import over_samples
from ecokv_cli.studies.tables import Stats, Table

HOW = Reduction(
    cells=("tensor", "layer", "kv_head"), level=("tensor", "layer"), means=("x", "n"), series=("x",),
)  # fmt: skip


def sample(number, rng, *, gaps=True):
    """A table with a row per tensor, layer and head; some samples lack values of a layer, or the tensor at all."""
    made = Table("t", ("model", "sample", "tensor", "layer", "kv_head", "x", "n", "note"))
    for tensor in ("keys", "values")[: 1 if number == 2 else 2]:
        for layer in range(3):
            for head in range(2):
                x = None if gaps and (rng.random() < 0.2 or (number, layer) == (4, 1)) else float(rng.normal())
                made.add(
                    model="m", sample=f"s{number}", tensor=tensor, layer=layer, kv_head=head, x=x, n=number + head,
                    note=None,
                )  # fmt: skip
    return made


def tables(count, **options):
    """The tables of `count` samples, all of their rows in one, and what is left of them."""
    rng = np.random.default_rng(7)
    each = [sample(number, rng, **options) for number in range(count)]
    reducer = Reducer(HOW)
    for table in each:
        reducer.add(table)
    return Table("t", each[0].columns, [row for table in each for row in table]), reducer.table()


def test_means_intervals_and_counts_over_samples_are_those_of_all_rows():
    every, reduced = tables(11)
    for tensor in ("keys", "values"):
        whole, part = every.where(tensor=tensor), reduced.where(tensor=tensor)
        assert part.distinct("sample") == whole.distinct("sample")
        assert over_samples(part, ("layer",), ("x",)).rows == over_samples(whole, ("layer",), ("x",)).rows
    assert over_samples(every, ("tensor", "layer"), ("x",)).rows == over_samples(reduced, HOW.level, ("x",)).rows


def test_rows_are_means_over_samples():
    every, reduced = tables(11)
    wanted = every.aggregate(HOW.cells, "x", lambda values: sum(values) / len(values))
    assert {tuple(row[c] for c in HOW.cells): row["x"] for row in reduced} == pytest.approx(wanted)
    assert reduced.columns == every.columns
    assert {row["sample"] for row in reduced} == {None}


def test_up_to_seven_samples_have_the_very_numbers_that_numpy_has():
    every, reduced = tables(7)
    mean = lambda values: float(np.mean(values))  # noqa: E731
    assert reduced.aggregate(HOW.cells, "x", mean) == every.aggregate(HOW.cells, "x", mean)


@pytest.mark.parametrize("by", [(), ("layer",), ("tensor", "kv_head")])
def test_counts_sums_and_extremes_are_those_of_all_rows(by):
    every, reduced = tables(11)
    wanted = {key: (s.rows, s.defined, s.low, s.high) for key, s in every.stats(by, "x").items()}
    assert {key: (s.rows, s.defined, s.low, s.high) for key, s in reduced.stats(by, "x").items()} == wanted
    sums = {key: s.total for key, s in every.stats(by, "x").items()}
    assert {key: s.total for key, s in reduced.stats(by, "x").items()} == pytest.approx(sums)
    whole = every.stats((), "x")[()]
    assert (whole.rows, whole.defined) == (len(every), len(every.numbers("x")))
    assert whole.total == pytest.approx(sum(every.numbers("x")))


def test_samples_stand_in_their_order_with_gaps_where_they_have_nothing():
    _, reduced = tables(5, gaps=False)
    assert reduced.distinct("sample") == [f"s{i}" for i in range(5)]
    keys, values = (reduced.by_sample(HOW.level, "x")[tensor, 1] for tensor in ("keys", "values"))
    assert np.isnan(values).tolist() == [False, False, True, False, False]
    assert not np.isnan(keys).any()
    assert reduced.where(tensor="values").by_sample(("layer",), "x")[1,].shape == (4,), "those that have values"


def test_undefined_numbers_are_no_numbers():
    _, reduced = tables(11)
    assert np.isnan(reduced.by_sample(HOW.level, "x")["keys", 1][4])
    assert Stats(rows=3).mean is None


def test_what_is_not_kept_is_refused():
    _, reduced = tables(3)
    with pytest.raises(ValueError, match="column n is not kept per sample"):
        reduced.by_sample(HOW.level, "n")
    with pytest.raises(ValueError, match="x is kept per tensor, layer, not layer"):
        reduced.by_sample(("layer",), "x")
    with pytest.raises(ValueError, match="means over samples"):
        reduced.aggregate(("layer", "sample"), "x", sum)
    with pytest.raises(ValueError, match="not kept per sample"):
        reduced.where(kv_head=1).by_sample(HOW.level, "x")


def test_rows_of_the_first_samples_can_be_kept_beside_numbers_of_all():
    def doubled(table):
        return Table("d", ("sample", "layer", "y"), [
            {"sample": row["sample"], "layer": row["layer"], "y": 2.0 * row["n"]} for row in table
        ])  # fmt: skip

    reducer = Reducer(Reduction(level=("layer",), series=("y",), first=2, prepare=doubled))
    every = [sample(number, np.random.default_rng(1)) for number in range(5)]
    for table in (Table("t", every[0].columns), *every):
        reducer.add(table)
    found = reducer.table()
    assert (found.name, found.first, found.rows) == ("t", 2, every[0].rows + every[1].rows)
    assert len(found.distinct("sample")) == 5
    assert found.where(sample="s1") == every[1]
    np.testing.assert_array_equal(found.by_sample(("layer",), "y")[0,], [1, 3, 5, 7, 9])


def test_a_table_without_rows_stays_one():
    reducer = Reducer(HOW)
    reducer.add(Table("t", ("sample", "x")))
    found = reducer.table()
    assert (found.name, found.columns, found.rows, found.distinct("sample")) == ("t", ("sample", "x"), [], [])


def test_reduced_tables_are_not_prepared_again():
    twice = prepared(lambda table: Table("new", table.columns, [row | {"x": 1.0} for row in table]))
    every, reduced = tables(2)
    assert twice(every).name == "new"
    assert twice(reduced) is reduced


def test_rows_among_values():
    every, reduced = tables(3)
    assert every.among("layer", [0, 2]).distinct("layer") == reduced.among("layer", [0, 2]).distinct("layer") == [0, 2]
    assert len(every.among("layer", ())) == 0


def test_a_column_of_values_is_as_many_rows():
    one, many = (Table("positions", ("method", "position", "kept")) for _ in range(2))
    kept = [0.5, float("nan"), 1.0]
    for position, share in enumerate(kept):
        one.add(method="snapkv", position=position, kept=share)
    many.extend({"method": "snapkv"}, position=range(3), kept=kept)
    assert many.rows == one.rows
    assert [list(row) for row in many] == [list(many.columns)] * 3
    with pytest.raises(ValueError, match="kept"):
        many.extend({"method": "snapkv"}, position=range(3))
    with pytest.raises(ValueError, match="argument"):
        many.extend({"method": "snapkv"}, position=range(3), kept=[0.1])
