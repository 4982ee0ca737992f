"""Tables of the studies, each number against its definition, on the small dump of the dump tests."""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
from builders import random_layer

from ecokv_cli.dump.reader import Dump
from ecokv_cli.dump.schema import Decoded, Manifest, ModelInfo, Tokens
from ecokv_cli.errors import DumpError, MethodError
from ecokv_cli.eviction.spec import parse_method, parse_methods
from ecokv_cli.studies.evict import EvictSettings, evict
from ecokv_cli.studies.results import read_results, summarise, write_results, write_tables
from ecokv_cli.studies.tables import Table

TOKENS = 29
ROLES = ("special", *("image",) * 20, *("text",) * 8)


class FakeDump(Dump):
    """A dump whose layers come from memory."""

    def layer(self, index):
        return layer_of(index)


def layer_of(index):
    return replace(random_layer(index, shift=0.2 * index), index=index)


@pytest.fixture
def dump(tmp_path):
    cell = [None, *range(20), *[None] * 8]
    tokens = Tokens(
        tuple(range(TOKENS)), ("x",) * TOKENS, ROLES, tuple(0 if c is not None else None for c in cell),
        tuple(c if c is None else c // 5 for c in cell), tuple(c if c is None else c % 5 for c in cell),
    )  # fmt: skip
    manifest = Manifest(
        schema_version="1.0", created="", sample="page", command="", seed=0, device="cpu", processor={}, images=(),
        grids=(),
        model=ModelInfo("tiny", None, "Tiny", "tiny", "", 3, 6, 2, 5, False), attention="sdpa", compute_dtype="float32",
        stored_dtype="float32", prompt="?", rendered_sha256="", tokens=tokens, position_ids=(), window=11, tensors=(),
        decoded=Decoded((1, 2, 3, 4), ("a",) * 4, "aaaa", False), layers=(), seconds={}, versions={},
    )  # fmt: skip
    return FakeDump(tmp_path, manifest)


def run_evict(dump, **changes):
    base = {
        "methods": tuple(parse_methods(["full", "snapkv", "keydiff", "oracle"], 3)),
        "budgets": (7, 11),
        "layers": (0, 2),
        "heads": (0, 1),
        "focus": (2, 1),
    }
    return evict([dump], EvictSettings(**(base | changes)))


def test_the_ledger_adds_up(dump):
    result = run_evict(dump)
    for row in result.ledger:
        assert row["kept"] == row["window_kept"] + row["free_kept"]
        assert row["kept"] == (TOKENS if row["method"] == "full" else row["nominal"])
    totals = result.ledger.aggregate(("method", "budget"), "kept", sum)
    assert totals["snapkv[window=3]", 11] == 11 * 2 * 2


def test_shares_by_position_role_and_age_agree_with_the_masks(dump):
    result = run_evict(dump)
    mask = result.masks["page"]["snapkv[window=3]@7"]
    assert mask.shape == (2, 2, TOKENS)
    rows = result.positions.where(method="snapkv[window=3]", budget=7)
    np.testing.assert_allclose(rows.where(layer="all").numbers("kept"), mask.double().mean((0, 1)))
    np.testing.assert_allclose(rows.where(layer=2, kv_head=1).numbers("kept"), mask[1, 1].double())
    roles = result.roles.where(method="snapkv[window=3]", budget=7)
    assert sum(roles.numbers("share_of_kept")) == pytest.approx(1)
    assert sum(roles.numbers("kept_tokens")) == pytest.approx(7)
    image = roles.where(role="image").rows[0]
    assert image["share_of_role"] == pytest.approx(float(mask[..., 1:21].double().mean()))
    ages = result.recency.where(method="snapkv[window=3]", budget=7)
    assert ages.rows[0]["kept"] == 1
    covered = sum(r["kept"] * (r["age_high"] - r["age_low"] + 1) for r in ages)
    assert covered == pytest.approx(7)
    assert ages.rows[-1]["age_high"] == TOKENS - 1


def test_summary_rows_are_means_and_the_oracle_overlaps_itself(dump):
    result = run_evict(dump)
    methods = result.methods
    assert len(methods) == 8
    row = methods.where(method="keydiff[window=3]", budget=11).rows[0]
    part = result.fidelity.where(method="keydiff[window=3]", budget=11)
    assert row["mass"] == pytest.approx(np.mean(part.numbers("mass")))
    free = run_evict(dump, methods=tuple(parse_methods(["oracle", "random[window=1]"])))
    assert set(free.fidelity.where(method="oracle").numbers("oracle_overlap")) == {1.0}
    pair = free.overlap.where(budget=7).rows[0]
    assert (pair["method_a"], pair["method_b"]) == ("oracle", "random[window=1]")
    assert 0 <= pair["jaccard"] < 1


def test_a_budget_smaller_than_a_window_is_refused_before_anything_is_read(dump):
    with pytest.raises(MethodError, match="smaller than its window"):
        run_evict(dump, methods=(parse_method("snapkv"),))


def test_results_come_back_as_written(tmp_path, dump):
    result = run_evict(dump)
    summary = summarise([dump], tmp_path, "ecokv evict", {"ecokv": "0"}, {"budgets": "7, 11"}, result.methods)
    write_results(tmp_path, result.tables, summary)
    again = read_results(tmp_path)
    assert again.summary["settings"] == {"budgets": "7, 11"}
    assert again.summary["samples"][0]["held_out_queries"] == 4
    assert again.table("fidelity").rows == result.fidelity.rows
    assert again.table("positions").columns == result.positions.columns
    assert read_results(tmp_path / "nowhere") is None
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(DumpError, match="cannot be read"):
        read_results(tmp_path)


def test_parquet_holds_the_same_rows(tmp_path, dump):
    parquet = pytest.importorskip("pyarrow.parquet")
    result = run_evict(dump)
    write_tables(tmp_path, [result])
    assert parquet.read_table(tmp_path / "fidelity.parquet").to_pylist() == result.fidelity.rows


def test_tables_refuse_odd_rows_and_write_undefined_numbers_as_empty_cells(tmp_path):
    table = Table("t", ("a", "b"))
    with pytest.raises(ValueError, match="'b'"):
        table.add(a=1)
    with pytest.raises(ValueError, match="'c'"):
        table.add(a=1, b=2, c=3)
    table.add(a=math.nan, b="x,y")
    table.add(a=0.1 + 0.2, b=None)
    with table.write_csv(tmp_path).open(newline="") as file:
        assert list(csv.reader(file)) == [["a", "b"], ["", "x,y"], ["0.30000000000000004", ""]]
    assert Table.read_csv(tmp_path / "t.csv").rows == table.rows
    assert table.numbers("a") == [0.1 + 0.2]


def test_chosen_heads_are_the_rows_of_all_heads(dump):
    every, single = run_evict(dump), run_evict(dump, heads=(1,))
    assert single.fidelity.rows == every.fidelity.where(kv_head=1).rows
    shares = single.positions.where(layer="all", method="snapkv[window=3]", budget=7).numbers("kept")
    mask = single.masks["page"]["snapkv[window=3]@7"][:, 1].double().mean(0)
    np.testing.assert_allclose(shares, mask)
