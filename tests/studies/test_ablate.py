"""Plans, effects, optimum and uncertainty of ablations on answers made by hand."""

import itertools

import numpy as np
import pytest

from ecokv_cli.errors import DumpError, MethodError, UsageError
from ecokv_cli.eviction.spec import parse_single
from ecokv_cli.studies.ablate import EXPERIMENTS, Ranges, plan, scored, tables_of
from ecokv_cli.studies.ablate.factorial import effects
from ecokv_cli.studies.ablate.grid import winning_shares
from ecokv_cli.studies.ablate.kept import digest, lacking, read_kept, write_kept
from ecokv_cli.studies.evaluate import ANSWERS, arms_of
from ecokv_cli.studies.tables import Table

BASE = parse_single("snapkv+ecokv")
SMALL = Ranges(alphas=(0.0, 0.8), betas=(0.6, 1.0))


def answers(scores, budget=64):
    """Rows from ``{method: [score per sample]}``; a wrong answer differs from sample to sample and arm to arm."""
    table = Table("answers", ANSWERS)
    empty = dict.fromkeys(ANSWERS)
    for method, values in scores.items():
        for number, score in enumerate(values):
            said = "right" if score == 1 else f"{method} {score}"
            row = {"model": "m", "sample": f"s{number}", "method": method, "budget": budget, "score": score}
            table.add(**empty | row | {"prediction": said})
    return table


def experiment(name, ranges=SMALL, base=BASE):
    (found,) = plan([name], base, ranges)
    return found


def made(name, scores, **more):
    return tables_of([scored(answers(scores), experiment(name, **more), 64)])


FACTORIAL = {
    "snapkv": [0, 0, 0, 1, 0],
    "snapkv+ecokv[window=32]": [1, 0, 0, 1, 0],
    "snapkv[window=4]": [1, 1, 0, 1, 0],
    "snapkv+ecokv": [1, 1, 1, 1, 1],
}


def test_effects_of_the_2_x_2_by_hand():
    cells, table = made("factorial", FACTORIAL)
    assert [(row["window"], row["booster"], row["mean"], row["n"]) for row in cells] == [
        (32, "none", 0.2, 5), (32, "ecokv", 0.4, 5), (4, "none", 0.6, 5), (4, "ecokv", 1.0, 5),
    ]  # fmt: skip
    assert {row["effect"]: row["difference"] for row in table} == pytest.approx({
        "window": 0.5, "booster": 0.3, "interaction": 0.2, "window_plain": 0.4, "window_boosted": 0.6,
        "booster_first": 0.2, "booster_second": 0.4, "both": 0.8,
    })  # fmt: skip
    reading = {row["effect"]: row["reading"] for row in table}
    assert reading["window_plain"] == "window 4 instead of 32, without ecokv"
    assert reading["interaction"] == "gain of +ecokv at window 4 minus its gain at window 32"


def test_effects_of_one_sample_by_hand():
    found = effects(np.array([[0.1], [0.3], [0.5], [0.4]]))
    assert found["window"] == pytest.approx([0.25])
    assert found["booster"] == pytest.approx([0.05])
    assert found["interaction"] == pytest.approx([-0.3])
    assert found["both"] == pytest.approx(found["window"] + found["booster"])


def test_intervals_and_p_values_of_effects_are_those_of_all_resamples_and_sign_patterns():
    _, table = made("factorial", FACTORIAL)
    row = table.where(effect="window").rows[0]
    per_sample = [0.5, 1.0, 0.5, 0.0, 0.5]  # of FACTORIAL, by hand
    signed = [np.dot(signs, per_sample) / 5 for signs in itertools.product((1, -1), repeat=5)]
    assert row["p"] == pytest.approx(min(1, 2 * np.mean([mean >= 0.5 - 1e-12 for mean in signed])))
    resampled = [np.mean(drawn) for drawn in itertools.product(per_sample, repeat=5)]
    low, high = np.quantile(resampled, [0.025, 0.975])
    assert (row["difference_low"], row["difference_high"]) == pytest.approx((low, high), abs=0.05)


GRID = {
    "snapkv+ecokv[alpha=0.0]": [1, 0, 0, 1],
    "snapkv+ecokv[alpha=0.0,beta=1.0]": [1, 1, 1, 0],
    "snapkv+ecokv": [0, 0, 1, 0],
    "snapkv+ecokv[beta=1.0]": [0, 0, 0, 0],
}


def test_optimum_of_a_grid_by_hand():
    grid, optimum = made("grid", GRID)
    assert [(row["alpha"], row["beta"], row["mean"], row["best"], row["reference"]) for row in grid] == [
        (0, 0.6, 0.5, False, False), (0, 1, 0.75, True, False), (0.8, 0.6, 0.25, False, True),
        (0.8, 1, 0, False, False),
    ]  # fmt: skip
    (row,) = optimum
    assert (row["alpha"], row["beta"], row["mean"], row["tied"], row["n"]) == (0, 1, 0.75, 1, 4)
    assert (row["against"], row["difference"]) == ("snapkv+ecokv", 0.5)
    # Only the last cell is behind on samples enough for its interval to leave out 0.
    assert (row["level"], row["cells"]) == (3, 4)
    assert sum(row["wins"] for row in grid) == pytest.approx(1)


def test_of_equal_cells_the_reference_is_the_optimum_and_a_flat_grid_is_seen_as_flat():
    flat = {method: [1, 0, 1] for method in GRID}
    grid, optimum = made("grid", flat)
    assert [row["wins"] for row in grid] == [0.25] * 4
    assert [row["best"] for row in grid] == [True] * 4
    (row,) = optimum
    assert (row["method"], row["tied"], row["level"]) == ("snapkv+ecokv", 4, 4)
    assert (row["difference"], row["difference_low"], row["difference_high"], row["p"]) == (0, 0, 0, 1)


def test_winning_shares_are_those_of_all_resamples():
    scores = np.array([[1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 1, 0.5]])
    expected = np.zeros(3)
    for drawn in itertools.product(range(4), repeat=4):
        sums = [sum(row[i] for i in drawn) for row in scores.tolist()]
        winners = [total == max(sums) for total in sums]
        expected += np.array(winners) / sum(winners) / 4**4
    assert winning_shares(scores) == pytest.approx(expected, abs=0.03)
    assert winning_shares(scores) == pytest.approx(winning_shares(scores, seed=0))


def test_a_grid_without_the_reference_still_compares_with_it():
    ranges = Ranges(alphas=(0.5,), betas=(0.5,))
    scores = {"snapkv+ecokv[alpha=0.5,beta=0.5]": [1, 1], "snapkv+ecokv": [0, 1]}
    grid, optimum = made("grid", scores, ranges=ranges)
    assert len(grid) == 1
    assert not grid.rows[0]["reference"]
    assert optimum.rows[0]["difference"] == 0.5


def test_variants_are_compared_with_the_method_as_it_is():
    (table,) = made("averaging", {"snapkv+ecokv": [1, 0, 0.5], "snapkv+ecokv[avg_domain=candidates]": [1, 1, 0.25]})
    first, second = table
    assert table.name == "averaging"
    assert (first["variant"], first["against"], first["difference"], first["p"]) == ("all", None, None, None)
    assert (second["variant"], second["against"]) == ("candidates", "snapkv+ecokv")
    assert second["difference"] == pytest.approx(0.25)
    assert (first["changed"], second["changed"], second["n"]) == (0, 2, 3)


def test_samples_that_lack_an_arm_are_left_out_of_all_arms():
    found = scored(answers({"snapkv+ecokv": [1, 0, 1], "snapkv+ecokv[avg_domain=candidates]": [1, 0]}),
                   experiment("averaging"), 64)  # fmt: skip
    assert found.scores.tolist() == [[1, 0], [1, 0]]
    assert found.alike
    assert not scored(answers(FACTORIAL), experiment("factorial"), 64).alike


def test_every_experiment_has_the_arms_it_says():
    names = {each.name: [variant.method.name for variant in each.variants] for each in plan([], BASE, Ranges())}
    assert list(names) == list(EXPERIMENTS)
    assert names["factorial"] == list(FACTORIAL)
    assert len(set(names["grid"])) == 36
    assert "snapkv+ecokv" in names["grid"]
    assert "snapkv+ecokv[alpha=0.2,beta=1.0]" in names["grid"]
    assert names["normalisation"] == [
        "snapkv+ecokv",
        *(f"snapkv+ecokv[normalisation={kind}]" for kind in ("clipped", "robust", "zscore", "rank", "softmax")),
    ]  # fmt: skip
    assert names["std"] == [
        "snapkv+ecokv", "snapkv+ecokv[std=true]", "snapkv+ecokv[std=true,temperature=4.0]",
        "snapkv+ecokv[std=true,temperature=16.0]",
    ]  # fmt: skip
    assert names["averaging"] == ["snapkv+ecokv", "snapkv+ecokv[avg_domain=candidates]"]
    assert names["redundancy-map"] == [
        "snapkv+ecokv",
        *(f"snapkv+ecokv[redundancy_map={kind}]" for kind in ("sigmoid2", "exp", "inverse", "minmax", "centred")),
    ]  # fmt: skip


def test_options_as_given_are_the_reference():
    base = parse_single("adakv+ecokv[alpha=0.2,normalisation=robust]")
    found = plan(["normalisation", "factorial"], base, Ranges(windows=(8, 3)))
    assert [each.name for each in found] == ["factorial", "normalisation"]
    factorial, normalisation = found
    assert [variant.name for variant in factorial.variants[::3]] == [
        "adakv[window=8]", "adakv+ecokv[window=3,alpha=0.2,normalisation=robust]"
    ]  # fmt: skip
    assert normalisation.reference.name == "adakv+ecokv[window=3,alpha=0.2,normalisation=robust]"
    assert normalisation.variants[2].method == normalisation.reference


def test_another_booster_has_the_factorial_alone():
    mixkv = parse_single("snapkv+mixkv")
    (found,) = plan([], mixkv, Ranges())
    assert [variant.name for variant in found.variants] == [
        "snapkv", "snapkv+mixkv", "snapkv[window=4]", "snapkv+mixkv[window=4]"
    ]  # fmt: skip
    with pytest.raises(UsageError, match="--only grid: varies options of ecokv"):
        plan(["grid"], mixkv, Ranges())


@pytest.mark.parametrize(("names", "base", "ranges", "message"), [
    (["griddd"], "snapkv+ecokv", Ranges(), "did you mean grid"),
    ([], "snapkv+ecokv[window=8]", Ranges(), "give --window instead"),
    ([], "snapkv+ecokv", Ranges(windows=(4, 4)), "two different windows"),
])  # fmt: skip
def test_plans_that_make_no_sense_are_refused(names, base, ranges, message):
    with pytest.raises(UsageError, match=message):
        plan(names, parse_single(base), ranges)
    with pytest.raises(MethodError, match=r"alpha=1\.5 is outside"):
        plan(["grid"], BASE, Ranges(alphas=(1.5,)))


def test_kept_answers_come_back_as_they_were(tmp_path):
    assert read_kept(tmp_path) == {}
    row = {"sample": "007", "method": "snapkv", "budget": 16, "prediction": "0042", "score": 1.0}
    kept = {("d1", "snapkv", 16): row, ("d2", "full", None): row | {"method": "full", "budget": None}}
    write_kept(tmp_path, kept)
    assert read_kept(tmp_path) == kept
    (tmp_path / "answers.json").write_text("[{}]")
    with pytest.raises(DumpError, match="remove it to decode everything again"):
        read_kept(tmp_path)


def test_samples_that_lack_the_same_arms_are_asked_together():
    full, wide, narrow = arms_of([parse_single(name) for name in ("full", "snapkv", "snapkv[window=4]")], [64])
    kept = [("a", "full", None), ("a", "snapkv", 64), ("a", "snapkv[window=4]", 64), ("b", "snapkv", 64),
            ("c", "snapkv", 64), ("c", "snapkv", 32)]  # fmt: skip
    groups = lacking(kept, {"s1": "a", "s2": "b", "s3": "c", "s4": "d"}, [full, wide, narrow])
    assert groups == {(full, narrow): ["s2", "s3"], (full, wide, narrow): ["s4"]}


def test_answers_of_other_settings_or_input_are_not_used():
    same = digest({"steps": 8}, "s", "page 1")
    assert same == digest({"steps": 8}, "s", "page 1")
    assert len({same, digest({"steps": 9}, "s", "page 1"), digest({"steps": 8}, "s", "page 2"),
                digest({"steps": 8}, "t", "page 1")}) == 4  # fmt: skip
