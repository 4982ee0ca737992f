"""Shares of the prompt in studies: every sample has its own tokens, tables keep what was asked, files give it back."""

import dataclasses
import json

import pytest
from builders import random_layer
from memory_dumps import memory_dump

from ecokv_cli.dump.schema import Tokens
from ecokv_cli.errors import MethodError, UsageError
from ecokv_cli.eviction.spec import parse_method, parse_methods
from ecokv_cli.figures.fidelity import fidelity_by_budget
from ecokv_cli.figures.reduction import reduce_eviction
from ecokv_cli.studies.accuracy import accuracy_table, pivot
from ecokv_cli.studies.evaluate import ANSWERS, arms_of, unfit
from ecokv_cli.studies.evict import EvictSettings, evict
from ecokv_cli.studies.parts import tables_codec
from ecokv_cli.studies.selecting import select_arms
from ecokv_cli.studies.statistics import over_samples
from ecokv_cli.studies.tables import Table

BUDGETS = (7, 0.25, 0.5)


def dump_of(sample, tokens):
    """A dump of two layers with a prompt of so many tokens."""
    made = tuple(dataclasses.replace(random_layer(index, tokens=tokens), index=index, layers=2) for index in range(2))
    nothing = (None,) * tokens
    told = Tokens(tuple(range(tokens)), ("x",) * tokens, ("text",) * tokens, nothing, nothing, nothing)
    return memory_dump(sample, layers=2, made=made, tokens=told)


DUMPS = (dump_of("short", 23), dump_of("long", 41))


def settings(*specs, budgets=BUDGETS, window=3):
    return EvictSettings(
        tuple(parse_method(spec).with_window(window) for spec in specs), budgets, (0, 1), (0, 1), (0, 0)
    )


def test_the_same_share_is_other_tokens_on_another_sample():
    found = evict(DUMPS, settings("snapkv", "keydiff", "full"))
    # 5.75 and 11.5 of 23, 10.25 and 20.5 of 41.
    nominal = {"short": {7: 7, 0.25: 6, 0.5: 12}, "long": {7: 7, 0.25: 10, 0.5: 21}}
    for row in found.ledger:
        wanted = nominal[row["sample"]][row["budget"]]
        assert row["nominal"] == wanted
        assert type(row["nominal"]) is int
        assert row["kept"] == (row["tokens"] if row["method"] == "full" else wanted)
    for table in found.tables:
        if "budget" in table.columns:
            assert [(budget, type(budget)) for budget in table.distinct("budget")] == [(b, type(b)) for b in BUDGETS]
    assert found.masks["long"]["snapkv[window=3]@0.25"].sum(-1).tolist() == [[10, 10]] * 2
    means = {
        (row["method"], row["budget"]): row["mean"]
        for row in over_samples(found.methods, ("method", "budget"), ("kept",))
    }
    assert means["snapkv[window=3]", 0.25] == 8
    assert means["keydiff[window=3]", 0.5] == 16.5


def test_a_figure_of_several_samples_puts_a_share_where_it_lies_among_the_tokens():
    results = [evict([dump], settings("snapkv", "full", budgets=(11, 0.25))) for dump in DUMPS]
    reduced, _ = reduce_eviction(results, ("kept",), 41)
    ax = fidelity_by_budget(reduced.fidelity).figure.axes[0]
    # 6 and 10 tokens, which is less than 11 on average.
    assert [label.get_text() for label in ax.xaxis.get_ticklabels()] == ["25 %", "11"]


def test_a_sample_that_is_too_short_for_a_share_is_named():
    chosen = settings("keydiff", "snapkv", budgets=(7, 0.1))
    short, long = DUMPS
    chosen.require_fit(long)
    assert len(evict([long], chosen).ledger)
    with pytest.raises(
        MethodError, match=r"sample short: keydiff\[window=3\]: budget 0\.1, which is 2 of .* 23 tokens, "
    ):
        evict([short], chosen)
    for budget in (0, 1.0, 0.0):
        with pytest.raises(UsageError, match=f"budget {budget}: "):
            settings("keydiff", budgets=(budget,))


def test_arms_of_tokens_and_shares_share_scores_and_select_each_its_own():
    # A greedy choice goes on for as long as the largest budget needs.
    arms = arms_of(parse_methods(["full", "mmr[window=3]"]), [2, 9, 0.5, 0.05])
    assert [arm.budget for arm in arms] == [None, 9, 0.5, 0.05]
    # Whether a share is too small depends on the prompt.
    assert [budget for _, budget in unfit(parse_methods(["snapkv[window=3]"]), [2, 0.05])] == [2]
    layer = random_layer(tokens=61)
    chosen, _ = select_arms(layer, arms)
    assert [selection.counts.tolist() for selection in chosen] == [[61] * 2, [9] * 2, [31] * 2, [3] * 2]
    alone = arms[2].method.select(layer, 31)
    assert chosen[2].mask.equal(alone.mask)


def test_accuracy_is_in_the_order_of_budgets_and_has_a_column_for_each():
    answers = Table("answers", ANSWERS)
    for budget, scores in ((None, (1, 1)), (0.25, (1, 0)), (64, (1, 1)), (128, (1, 0)), (0.5, (0, 0))):
        for number, score in enumerate(scores):
            arm = {"method": "snapkv" if budget else "full", "budget": budget, "window": 3, "kept": 7}
            answers.add(**dict.fromkeys(ANSWERS) | arm | {"sample": f"s{number}", "score": score})
    accuracy = accuracy_table(answers, {})
    assert accuracy.distinct("budget") == [None, 128, 64, 0.5, 0.25]
    papers, best = pivot(accuracy)
    assert papers.columns[4:] == ("128", "64", "0.5", "0.25")
    assert {column for _, column in best} == set(papers.columns[4:])


def test_files_give_back_tokens_as_whole_numbers_and_shares_as_they_were(tmp_path):
    table = Table("methods", ("method", "budget", "kept"))
    for budget in (64, 0.25, None, 0.1, 1000000):
        table.add(method="snapkv", budget=budget, kept=1.5)
    wanted = [(budget, type(budget)) for budget in table.distinct("budget")]

    def budgets(found):
        return [(budget, type(budget)) for budget in found.distinct("budget")]

    assert budgets(Table.read_csv(table.write_csv(tmp_path))) == wanted
    codec = tables_codec(lambda tables: tables[0], lambda one: [one])
    codec.write(tmp_path, table)
    assert budgets(codec.read(tmp_path)) == wanted
    # What shards agree on goes through JSON.
    assert [(b, type(b)) for b in json.loads(json.dumps([64, 0.25]))] == [(64, int), (0.25, float)]


def test_a_parquet_column_of_both_has_floats(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    from ecokv_cli.studies.parquet import kinds_of, write_parquet

    for name, budgets in (("both", [64, 0.25, None]), ("tokens", [64, 128, None])):
        table, kinds = Table(name, ("budget",)), {}
        for budget in budgets:
            table.add(budget=budget)
        kinds_of(table, kinds)
        write_parquet(tmp_path, {name: kinds}, [table])
        found = parquet.read_table(tmp_path / f"{name}.parquet")["budget"].to_pylist()
        assert found == budgets
        assert type(found[0]) is (float if name == "both" else int)
