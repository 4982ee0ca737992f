"""Layer-wise routes: every number of the tables recomputed by hand."""

import itertools

import numpy as np
import pytest
from memory_dumps import memory_dump

from ecokv_cli.errors import DumpError, MethodError, UsageError
from ecokv_cli.eviction.fidelity import HeldOut
from ecokv_cli.eviction.spec import parse_method, parse_methods
from ecokv_cli.studies.route import RouteSettings, route_study

SPECS = ("snapkv", "keydiff", "random", "vnorm")
LAYERS, BUDGET = 5, 11


def settings(specs=SPECS, budgets=(BUDGET,), **options):
    return RouteSettings(tuple(parse_methods(specs, 3)), budgets, **options)


def dumps(first, count, **fields):
    """Samples of one model; no two alike."""
    numbers = range(first, first + count)
    return [memory_dump(f"s{i}", seed=100 * i, prompt=f"prompt {i}", layers=LAYERS, **fields) for i in numbers]


def errors_of(samples, methods, budget):
    """Mean error of every method in every layer, ``[layers][methods]``, straight from the held-out queries."""
    table = np.zeros((LAYERS, len(methods)))
    for layer, (m, method) in itertools.product(range(LAYERS), enumerate(methods)):
        found = [
            float(HeldOut(dump.made[layer]).judge(method.select(dump.made[layer], budget)).error.mean())
            for dump in samples
        ]
        table[layer, m] = sum(found) / len(found)
    return table


@pytest.fixture(scope="module")
def study():
    calibration, evaluation = dumps(0, 3), dumps(3, 2)
    chosen = settings(budgets=(BUDGET, 17), assignments=50, seed=3)
    return calibration, evaluation, chosen, route_study(calibration, evaluation, chosen)


@pytest.mark.parametrize("budget", [BUDGET, 17])
def test_the_profile_is_the_mean_error_on_the_calibration_samples_and_the_route_its_minimum(study, budget):
    calibration, _, chosen, result = study
    wanted = errors_of(calibration, chosen.methods, budget)
    rows = result.profile.where(budget=budget)
    assert len(rows) == LAYERS * len(SPECS)
    for row in rows:
        m = [method.name for method in chosen.methods].index(row["method"])
        assert row["error"] == pytest.approx(wanted[row["layer"], m], rel=1e-12)
        assert row["chosen"] == (m == wanted[row["layer"]].argmin())
        assert row["samples"] == 3
    route = result.chosen[budget]
    best = [chosen.methods[m] for m in wanted.argmin(1)]
    for layer, method in zip(calibration[0].made, best, strict=True):
        assert route.at(layer) == method
    assert parse_method(route.name) == route


@pytest.mark.parametrize("budget", [BUDGET, 17])
def test_routes_are_judged_on_the_other_samples(study, budget):
    calibration, evaluation, chosen, result = study
    best = errors_of(calibration, chosen.methods, budget).argmin(1)
    unseen = errors_of(evaluation, chosen.methods, budget)
    profiled, *homogeneous = result.routes.where(budget=budget)
    assert (profiled["kind"], profiled["samples"]) == ("profiled", 2)
    assert profiled["error"] == pytest.approx(np.mean([unseen[layer, m] for layer, m in enumerate(best)]), rel=1e-12)
    assert [row["route"] for row in homogeneous] == [method.name for method in chosen.methods]
    for m, row in enumerate(homogeneous):
        assert row["kind"] == "homogeneous"
        assert row["error"] == pytest.approx(unseen[:, m].mean(), rel=1e-12)
        assert (row["rank"], row["random_routes"]) == (None, None)


@pytest.mark.parametrize("budget", [BUDGET, 17])
def test_random_routes_use_each_method_as_often_and_the_rank_counts_the_better_ones(study, budget):
    calibration, evaluation, chosen, result = study
    best = errors_of(calibration, chosen.methods, budget).argmin(1).tolist()
    assert 1 < len(set(best)) < LAYERS  # what is tested here needs a mixed route
    unseen = errors_of(evaluation, chosen.methods, budget)
    possible = {
        round(sum(unseen[layer, m] for layer, m in enumerate(order)) / LAYERS, 12)
        for order in set(itertools.permutations(best))
    }
    drawn = result.random.where(budget=budget).numbers("error")
    assert len(drawn) == 50
    assert {round(error, 12) for error in drawn} <= possible
    assert len(set(drawn)) > 5
    profiled = result.routes.where(budget=budget, kind="profiled").rows[0]
    assert profiled["rank"] == 1 + sum(error < profiled["error"] for error in drawn)
    assert profiled["random_routes"] == 50


def test_the_draw_depends_on_the_seed_only(study):
    calibration, evaluation, chosen, result = study
    again = route_study(calibration, evaluation, chosen)
    assert again.random.rows == result.random.rows
    other = route_study(calibration, evaluation, settings(budgets=(BUDGET, 17), assignments=50, seed=4))
    assert other.random.rows != result.random.rows
    assert other.routes.where(kind="homogeneous").rows == result.routes.where(kind="homogeneous").rows


def test_a_route_of_one_method_has_no_rank_and_equals_that_method():
    # A block as long as the prompt is the prompt: of equal errors the earlier method wins.
    result = route_study(dumps(0, 1), dumps(1, 1), settings(("manifoldkv", "manifoldkv[block=29]")))
    profiled, first, second = result.routes
    assert (profiled["rank"], profiled["random_routes"]) == (None, None)
    assert len(result.random) == 0
    assert profiled["error"] == first["error"] == second["error"]
    assert result.chosen[BUDGET].name == "route[0-4=manifoldkv[window=3]]"


def test_a_route_of_a_single_layer_is_its_best_method():
    pair = [memory_dump(f"s{i}", seed=i, prompt=str(i), layers=1) for i in range(2)]
    result = route_study(pair[:1], pair[1:], settings())
    assert result.routes.rows[0]["rank"] is None
    assert result.chosen[BUDGET].name.startswith("route[0=")


def test_progress_counts_all_samples():
    seen = []
    route_study(dumps(0, 2), dumps(2, 1), settings(), lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("names", [("s0", "elsewhere"), ("s0", "s0")])
def test_no_sample_may_choose_and_judge_whatever_its_name(names):
    first, second = (memory_dump(name, seed=i, layers=LAYERS) for i, name in enumerate(names))
    with pytest.raises(DumpError, match=r"is the same sample as .*s0, .*judged on other samples"):
        route_study([*dumps(5, 1), first], [*dumps(6, 1), second], settings())


def test_shares_of_the_prompt_are_budgets_too():
    calibration, evaluation = dumps(0, 2), dumps(2, 1)
    chosen = settings(budgets=(BUDGET, 0.37))
    result = route_study(calibration, evaluation, chosen)
    assert list(result.chosen) == [BUDGET, 0.37]
    # 0.37 of 29 is 10.73: 11 tokens.
    for table in result.tables:
        tokens, share = ([{**row, "budget": None} for row in table.where(budget=b)] for b in (BUDGET, 0.37))
        assert tokens == share
        assert tokens or table.name == "random"
    with pytest.raises(
        MethodError, match=r"sample s0: snapkv\[window=3\]: budget 0.05, which is 1 of the prompt's 29 "
    ):
        route_study(calibration, evaluation, settings(budgets=(0.05,)))
    with pytest.raises(UsageError, match=r"budget 1\.5: a share of the prompt lies between 0 and 1"):
        settings(budgets=(1.5,))


@pytest.mark.parametrize("change", [{"page": "two"}, {"prompt": "another?"}])
def test_another_image_or_another_prompt_is_another_sample(change):
    result = route_study([memory_dump(layers=LAYERS)], [memory_dump(layers=LAYERS, **change)], settings())
    assert len(result.routes) == 1 + len(SPECS)


@pytest.mark.parametrize(("calibration", "evaluation"), [(0, 2), (2, 0)])
def test_both_sets_need_a_sample(calibration, evaluation):
    with pytest.raises(DumpError, match=f"{calibration} calibration and {evaluation} evaluation samples.*--evaluate"):
        route_study(dumps(0, calibration), dumps(5, evaluation), settings())


@pytest.mark.parametrize("where", ["calibration", "evaluation"])
def test_dumps_of_two_models_are_refused(where):
    other = dumps(7, 1, model="large", digest="1" * 64)
    sets = {"calibration": dumps(0, 1), "evaluation": dumps(1, 1)}
    sets[where] = [*sets[where], *other]
    with pytest.raises(DumpError, match="a dump of large, the first is of tiny"):
        route_study(sets["calibration"], sets["evaluation"], settings())


@pytest.mark.parametrize(("specs", "budgets", "message"), [
    (("snapkv",), (11,), "name at least two"),
    (("snapkv", "oracle"), (11,), "oracle.*sees the queries that judge it"),
    (("snapkv", "full"), (11,), "full: no candidate for a route, it keeps everything"),
    (("snapkv", "pyramidkv"), (11,), "pyramidkv moves budget between layers"),
    (("snapkv", "sparsemm"), (11,), "sparsemm moves budget between layers"),
    (("snapkv", "keydiff"), (11, 2), "budget 2 is smaller than its window of 3"),
])  # fmt: skip
def test_what_cannot_be_routed_is_refused_before_anything_is_read(specs, budgets, message):
    with pytest.raises(MethodError, match=message):
        settings(specs, budgets)
