"""Figures of many samples, reduced one by one, show what figures of all their rows show."""

import gc
import weakref
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
from many_samples import EVICTION, GEOMETRY, LENGTHS, joined, sample

from ecokv_cli.figures import gallery, reduction
from ecokv_cli.figures.gallery import draw_analysis, draw_eviction
from ecokv_cli.figures.reduction import reduce_analysis, reduce_eviction
from ecokv_cli.figures.registry import FIGURES
from ecokv_cli.studies.analyze import analyze
from ecokv_cli.studies.evict import evict
from ecokv_cli.studies.statistics import over_samples
from ecokv_cli.studies.tables import Table


class Read(Sequence):
    """Results that are new each time, as if read; knows how many were alive at most."""

    def __init__(self, results):
        self.results, self.alive, self.most = results, [], 0

    def __len__(self):
        return len(self.results)

    def __getitem__(self, index):
        made = replace(self.results[index])
        self.alive = [ref for ref in self.alive if ref() is not None] + [weakref.ref(made)]
        self.most = max(self.most, len(self.alive))
        return made


@pytest.fixture(scope="module")
def dumps():
    return [sample(number) for number in range(len(LENGTHS))]


@pytest.fixture(scope="module")
def analysed(dumps):
    return [analyze([dump], GEOMETRY) for dump in dumps]


@pytest.fixture(scope="module")
def evicted(dumps):
    return [evict([dump], EVICTION) for dump in dumps]


@pytest.fixture
def unlaid(monkeypatch):
    """Figures are drawn but not laid out, which takes most of the time."""
    monkeypatch.setattr("ecokv_cli.figures.drawing.freeze", lambda figure: figure)


def once(kind):
    """Names of the figures over all samples."""
    return tuple(name for name, figure in FIGURES[kind].items() if figure.scope == "run")


def assert_same(found, wanted):
    assert [drawing.stem for drawing in found] == [drawing.stem for drawing in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert (one.title, one.caption) == (other.title, other.caption)
        assert len(one.data) == len(other.data) > 0
        for column in other.data.columns:
            rest = [[row[column] for row in d.data if isinstance(row[column], str | None)] for d in (one, other)]
            assert rest[0] == rest[1], (one.stem, column)
            numbers = [drawing.data.numbers(column) for drawing in (one, other)]
            np.testing.assert_allclose(*numbers, rtol=1e-12, atol=1e-12, err_msg=f"{one.stem}: {column}")


@pytest.mark.usefixtures("unlaid")
def test_figures_of_the_geometry_show_the_same(analysed):
    reduced, _ = reduce_analysis(analysed, ("cos_mean",))
    drawn = draw_analysis(reduced, "double", once("analysis"))
    assert {drawing.name for drawing in drawn} >= set(once("analysis")) - {"rope_by_layer", "sinks_by_layer"}
    assert_same(drawn, draw_analysis(joined(analysed), "double", once("analysis")))


@pytest.mark.usefixtures("unlaid")
def test_figures_of_the_eviction_show_the_same(dumps, evicted):
    reduced, _ = reduce_eviction(evicted, ("mass",), max(LENGTHS))
    drawn = draw_eviction(reduced, dumps, "double", once("eviction"))
    assert {drawing.name for drawing in drawn} == set(once("eviction"))
    assert_same(drawn, draw_eviction(joined(evicted), dumps, "double", once("eviction")))


@pytest.mark.usefixtures("unlaid")
def test_single_samples_are_the_first_ones(dumps, analysed, evicted):
    for draw, found, wanted in (
        (draw_analysis, reduce_analysis(analysed, ("cos_mean",))[0], joined(analysed)),
        (lambda *a: draw_eviction(a[0], dumps, *a[1:]), reduce_eviction(evicted, ("mass",), 53)[0], joined(evicted)),
    ):
        assert_same(*(draw(result, "single", ("pca_scatter", "kept_in_plane")) for result in (found, wanted)))
    assert reduce_analysis(analysed, ("cos_mean",))[0].pca.distinct("sample")[: gallery.SAMPLES] == ["s0", "s1", "s2"]


def test_tables_over_samples_are_the_very_same(analysed, evicted):
    _, layers = reduce_analysis(analysed, ("cos_mean", "spearman"))
    by = ("model", "layer")
    measures = ("cos_mean", "spearman")
    assert over_samples(layers, by, measures) == over_samples(joined(analysed).layers, by, measures)
    _, methods = reduce_eviction(evicted, ("mass", "oracle_overlap"), max(LENGTHS))
    by = ("model", "budget", "method", "window")
    measures = ("mass", "oracle_overlap")
    assert over_samples(methods, by, measures) == over_samples(joined(evicted).methods, by, measures)


def test_the_ledger_of_all_samples_adds_up(evicted):
    found, every = reduce_eviction(evicted, ("mass",), max(LENGTHS))[0].ledger, joined(evicted).ledger
    for column in ("kept", "exact"):
        sums = [
            {key: stats.total for key, stats in t.stats(("method", "budget"), column).items()} for t in (found, every)
        ]
        assert sums[0] == sums[1]


def test_two_samples_are_held_at_a_time_besides_the_first(analysed, evicted):
    for results, reduce in (
        (Read(analysed), lambda r: reduce_analysis(r, ("cos_mean",))),
        (Read(evicted), lambda r: reduce_eviction(r, ("mass",), max(LENGTHS))),
    ):
        gc.disable()
        try:
            reduce(results)
        finally:
            gc.enable()
        assert results.most <= 2


def test_what_is_kept_grows_by_numbers_of_samples_alone(analysed):
    """Rows do not grow with samples, but for those of the first ones."""
    few, many = (reduce_analysis(analysed[:n] * m, ("cos_mean",))[0] for n, m in ((9, 1), (9, 6)))
    for each in fields(few):
        if each.name != "sinks":
            assert len(getattr(many, each.name)) == len(getattr(few, each.name)), each.name
    assert len(many.geometry.distinct("sample")) == 54


@pytest.mark.usefixtures("unlaid")
def test_sinks_are_drawn_for_the_first_samples_that_have_any(monkeypatch, analysed):
    monkeypatch.setattr(reduction, "WITH_SINKS", 2)
    where = {"position": 0, "token": "x", "role": "special", "reason": "attention", "attention": 20.0}
    row = dict.fromkeys(analysed[0].sinks.columns) | where | {"model": "m", "key_norm_relative": 3.0}
    found = [
        replace(each, sinks=Table("sinks", each.sinks.columns, [row | {"sample": f"s{i}", "layer": 1}] if i else []))
        for i, each in enumerate(analysed[:4])
    ]
    (drawing,) = draw_analysis(reduce_analysis(found, ("cos_mean",))[0], "double", ("sinks_by_layer",))
    assert drawing.data.where(measure=None).distinct("sample") == ["s1", "s2"]
    assert "one mark per sink and layer of the first 2 samples with sinks, 4 in all: (a)" in drawing.caption
    assert "position 0 “x” (2 of 4 layers)" in drawing.caption
    np.testing.assert_array_equal(drawing.data.numbers("attention"), [20, 20])
