"""A budget of the whole prompt keeps it with every method, whatever the dump lacks of what the method scores with."""

from dataclasses import replace

import pytest
from builders import TOKENS
from every_method import EVERY, at_window
from memory_dumps import memory_dump

from ecokv_cli.errors import DumpError, EcokvError, MethodError
from ecokv_cli.eviction.method import Method
from ecokv_cli.eviction.spec import parse_method
from ecokv_cli.studies.evaluate import Arm
from ecokv_cli.studies.evict import EvictSettings, evict
from ecokv_cli.studies.route import RouteSettings, route_study
from ecokv_cli.studies.selecting import select_arms


def poor_dump(**fields):
    """A dump without received attention and with one window query; no head scores are given with it."""
    dump = memory_dump(layers=2, **fields)
    return replace(dump, made=tuple(replace(each, window_queries=each.window_queries[:, -1:]) for each in dump.made))


def found(method, *budgets, dump=None):
    return evict([dump or poor_dump()], EvictSettings((method,), budgets, (0, 1), (0, 1), (0, 0)))


@pytest.mark.parametrize("spec", [*EVERY, "route[0=h2o,1-=observed+ecokv]"])
def test_evict_asks_for_nothing_if_nothing_is_evicted(spec):
    result = found(parse_method(spec), TOKENS, 1000)
    assert {row["kept"] for row in result.ledger} == {TOKENS}
    assert {row["note"] for row in result.ledger} == {"budget covers the prompt: nothing evicted"}
    assert {row["output_error"] for row in result.fidelity} == {0}


@pytest.mark.parametrize(("spec", "message"), [
    ("h2o[window=3]", "h2o needs received attention"),
    ("sparsemm[window=1]", "sparsemm needs head scores"),
    ("snapkv[window=3]", "needs the last 3 queries and the dump holds 1"),
    ("route[0=keydiff,1-=observed]", "observed needs received attention"),
])  # fmt: skip
def test_one_budget_that_evicts_is_enough_to_ask(spec, message):
    with pytest.raises(EcokvError, match=message):
        found(parse_method(spec), TOKENS, TOKENS - 1)


@pytest.mark.parametrize("spec", ["h2o", "sparsemm", "retentive", "snapkv"])
def test_evaluation_and_routing_ask_for_nothing_either(spec):
    layer, method = poor_dump().made[0], parse_method(spec)
    arms = [Arm(parse_method("full"), None), Arm(method, TOKENS), Arm(method, TOKENS + 5)]
    (first, *others), _ = select_arms(layer, arms)
    assert first.mask.all()
    assert all(selection.mask.all() for selection in others)
    with pytest.raises((DumpError, MethodError), match="needs"):
        select_arms(layer, [*arms, Arm(method.with_window(3), TOKENS - 1)])
    if not method.host.moves_layers:
        pair = [poor_dump(sample=name, prompt=name) for name in "ab"]
        routes = route_study(pair[:1], pair[1:], RouteSettings((method, parse_method("keydiff")), (40, 99)))
        assert {row["error"] for row in routes.profile} == {0}


def test_scores_are_computed_once_for_the_largest_budget_that_evicts(monkeypatch):
    asked = []

    def scores(self, layer, budget=None):
        asked.append(budget)
        return original(self, layer, budget)

    original = Method.scores
    monkeypatch.setattr(Method, "scores", scores)
    dump = memory_dump(layers=2)
    found(at_window("snapkv", 3), 7, TOKENS, 0.5, 11, 99, dump=dump)
    assert asked == [15, 15]  # half of 29, in each of two layers
    assert parse_method("full").shared_scores(dump.made[0], [7]) is None


def settings_of(spec, *budgets):
    return EvictSettings((parse_method(spec),), budgets, (0,), (0,), (0, 0))


def test_a_budget_in_tokens_that_fits_no_sample_is_refused_at_once_and_one_that_fits_some_is_not():
    samples = [memory_dump("one"), memory_dump("two")]
    for spec in ("snapkv[window=31]", "route[0-1=keydiff,2-=snapkv[window=31]]"):
        with pytest.raises(MethodError, match=r"^snapkv\[window=31\]: budget 17 is smaller .*raise --budget to 31"):
            settings_of(spec, 29, 17).require_fits(samples, every=False)
    # All of the prompt is kept at 29, and what a share comes to is known of a sample only.
    settings_of("snapkv[window=31]", 29).require_fits(samples, every=False)
    settings_of("snapkv[window=31]", 0.1).require_fits(samples, every=False)
