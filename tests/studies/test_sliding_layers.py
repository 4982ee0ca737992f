"""Sliding-window layers among full ones: no study counts them as layers of anything."""

from dataclasses import replace

import numpy as np
import pytest
import reference
import torch
from memory_dumps import memory_dump

from ecokv_cli.dump.schema import LayerFile
from ecokv_cli.eviction.spec import parse_method, parse_methods
from ecokv_cli.studies.evict import EvictSettings, evict
from ecokv_cli.studies.route import RouteSettings, route_study

LAYERS, SLIDING, FULL, WINDOW = 7, (0, 2, 3, 6), (1, 4, 5), 3


def dump(number=0):
    """A dump of seven layers, four of which are sliding windows and must never be asked for."""
    records = [
        LayerFile(i, f"layer_{i}", 0, "", 0.37, {}, *(("sliding", 5) if i in SLIDING else ("full", None)))
        for i in range(LAYERS)
    ]
    found = memory_dump(f"s{number}", seed=10 * number, prompt=str(number), layers=LAYERS)
    for index in SLIDING:
        found.made[index].keys.fill_(torch.nan)
    made = tuple(replace(layer, full=FULL) for layer in found.made)  # as a dump on the disk gives them
    return replace(found, made=made, manifest=replace(found.manifest, layers=tuple(records)))


def ledger(spec, budget, scores=None):
    chosen = EvictSettings((parse_method(spec).with_window(WINDOW),), (budget,), FULL, (0, 1), (1, 0), scores)
    return evict([dump()], chosen).ledger


@pytest.mark.parametrize("budget", [11, 17])
def test_a_pyramid_stands_on_the_full_layers_and_spends_their_budget(budget):
    rows = ledger("pyramidkv", budget)
    assert rows.distinct("layer") == list(FULL)
    wanted = reference.pyramid_counts(len(FULL), budget - WINDOW, 29 - WINDOW, 20, "exact", WINDOW)
    assert [row["free_kept"] for row in rows] == [count for count in wanted for _ in range(2)]
    assert sum(row["kept"] for row in rows) == len(FULL) * 2 * budget


def test_head_scores_of_sliding_layers_take_no_share():
    scores = torch.tensor(np.random.default_rng(7).random((LAYERS, 6)))
    rows = ledger("sparsemm", 11, scores)
    own = reference.sparse_counts(scores[list(FULL)].numpy(), 2, 11 - WINDOW, 29 - WINDOW, 0.1, "exact")
    assert [row["free_kept"] for row in rows] == own.flatten().tolist()
    assert sum(row["kept"] for row in rows) == len(FULL) * 2 * 11


def test_a_route_goes_by_the_numbers_of_the_model():
    parts = {1: "knorm", 4: "vnorm", 5: "keydiff"}
    whole = ledger("route[0-1=knorm,2-4=vnorm,5-6=keydiff]", 11)
    for layer, spec in parts.items():
        route, alone = (rows.where(layer=layer) for rows in (whole, ledger(spec, 11)))
        assert len(route) == 2
        assert [row["kept"] for row in route] == [row["kept"] for row in alone]
    masks = [
        evict([dump()], EvictSettings((parse_method(spec).with_window(WINDOW),), (11,), FULL, (0, 1), (1, 0))).masks[
            "s0"
        ]
        for spec in ("route[0-1=knorm,2-4=vnorm,5-6=keydiff]", *parts.values())
    ]
    route, *alone = (next(iter(found.values())) for found in masks)
    assert all(torch.equal(route[place], mask[place]) for place, mask in enumerate(alone))


def test_a_route_is_made_from_full_layers_and_covers_the_whole_model():
    settings = RouteSettings(tuple(parse_methods(("snapkv", "keydiff", "vnorm"), WINDOW)), (11,), assignments=5)
    result = route_study([dump(0), dump(1)], [dump(2)], settings)
    assert result.profile.distinct("layer") == list(FULL)
    assert all(np.isfinite(row["error"]) for table in result.tables for row in table)
    route = result.chosen[11]
    best = {row["layer"]: row["method"] for row in result.profile.where(chosen=True)}
    taken = [route.at(layer).name for layer in dump().made]
    assert taken == [best[layer] for layer in (1, 1, 1, 1, 4, 5, 5)]
    assert parse_method(route.name) == route
