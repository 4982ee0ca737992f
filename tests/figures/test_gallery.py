"""The list of figures: chosen by name, drawn once for a run or for its first samples, honest about what is missing."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import synthetic
from PIL import Image

from ecokv_cli.errors import UsageError
from ecokv_cli.figures.gallery import SAMPLES, draw_analysis, draw_eviction, load_plates, save_drawings, undrawn
from ecokv_cli.figures.registry import FIGURES, parse_figures
from ecokv_cli.studies.tables import Table

RUN = [name for name, figure in FIGURES["analysis"].items() if figure.scope == "run"]


def analysis(samples=1):
    values = synthetic.cosine_histogram(3, 2)
    pca = synthetic.pca([(0, 0), (2, 1)])
    for table in (values, pca):
        table.rows += [row | {"tensor": "values"} for row in table.rows]
    tables = {
        "geometry": synthetic.geometry(3, 2), "redundancy": synthetic.redundancy(3, 2),
        "roles": synthetic.role_table(3, 2), "regions": synthetic.regions(3), "sinks": synthetic.sinks(3),
        "histogram": values, "pca": pca,
    }  # fmt: skip
    return SimpleNamespace(**{name: synthetic.sampled(table, samples) for name, table in tables.items()})


def eviction(samples=1, budgets=(16, 32)):
    methods = ("full", "snapkv", "keydiff")
    positions = synthetic.positions(methods, budgets[0])
    for budget in budgets[1:]:
        positions.rows += synthetic.positions(methods, budget).rows
    tables = {
        "fidelity": synthetic.fidelity(3, 2, methods, budgets), "positions": positions,
        "roles": synthetic.roles(methods, budgets), "recency": synthetic.recency(methods, budgets),
        "overlap": synthetic.overlap(methods, budgets), "plane": synthetic.plane(),
    }  # fmt: skip
    return SimpleNamespace(**{name: synthetic.sampled(table, samples) for name, table in tables.items()})


def dumps(folder, samples=1):
    """What figures read of dumps: the image and its grid."""
    prompt = synthetic.Prompt()
    Image.linear_gradient("L").resize((28 * prompt.cols, 28 * prompt.rows)).save(folder / "page.png")
    grid = SimpleNamespace(image=0, start=3, rows=prompt.rows, cols=prompt.cols, extra=0, box=(0, 0, 1, 1))
    images = [SimpleNamespace(file="page.png")]
    names = ["page", *(f"page{i}" for i in range(1, samples))]
    manifests = [SimpleNamespace(sample=name, images=images, grids=[grid]) for name in names]
    return [SimpleNamespace(folder=folder, manifest=manifest) for manifest in manifests]


def test_all_none_and_names():
    assert parse_figures("all", "analysis") == tuple(FIGURES["analysis"])
    assert parse_figures("all", "run") == (*FIGURES["analysis"], *FIGURES["eviction"])
    assert parse_figures(" NONE ", "eviction") == ()
    assert parse_figures("overlap-matrix, kept_by_age,kept_by_age", "eviction") == ("kept_by_age", "overlap_matrix")
    assert parse_figures("kept_by_age,pca_scatter", "run") == ("pca_scatter", "kept_by_age")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "lamda_by_layer",
            r"--figures 'lamda_by_layer': no such figure; did you mean lambda_by_layer\? choose all, none",
        ),
        ("kept_by_age", "no such figure; .*cosine_distribution, "),
        ("zzz", "'zzz': no such figure; choose all, none or from cosine_distribution"),
        ("all,none", "'all': no such figure"),
        ("", "'': no such figure"),
        ("norm_spread,", "'': no such figure"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(text, message):
    with pytest.raises(UsageError, match=message):
        parse_figures(text, "analysis")


def test_every_figure_says_what_it_shows_and_reads_tables_that_studies_have():
    for kind, result in (("analysis", analysis()), ("eviction", eviction())):
        for name, figure in FIGURES[kind].items():
            assert len(figure.shows) > 10, name
            assert all(isinstance(getattr(result, table), Table) for table in figure.tables), name


def test_figures_of_one_sample_have_plain_names():
    drawings = draw_analysis(analysis(), "single")
    assert [d.stem for d in drawings] == [n for n in FIGURES["analysis"] if n != "rope_by_layer"]
    assert [d.name for d in drawings] == [d.stem for d in drawings]


def test_several_samples_share_the_figures_over_layers():
    drawings = draw_analysis(analysis(SAMPLES + 2), "single")
    once = [d for d in drawings if d.name in RUN]
    assert [d.stem for d in once] == [name for name in RUN if name != "rope_by_layer"]
    assert [d.stem for d in drawings if d.name == "pca_scatter"] == [
        f"{sample}-pca_scatter" for sample in ("page", "page1", "page2")
    ]
    first = next(d for d in drawings if d.stem == "page-pca_scatter")
    assert first.title == "page: Keys in two dimensions"
    assert "first 3 of 5 samples" in first.caption
    assert first.data.distinct("sample") == ["page"]
    assert all("5 samples" in d.caption for d in once)


def test_eviction_is_drawn_per_image_and_budget_for_the_first_samples(tmp_path):
    drawings = draw_eviction(eviction(SAMPLES + 1), dumps(tmp_path, SAMPLES + 1), "single")
    stems = [d.stem for d in drawings]
    assert len(stems) == len(set(stems)) == 5 + 2 * 3 * 2
    assert "page1-kept_over_image_0_budget_32" in stems
    assert "page2-kept_in_plane_budget_16" in stems
    assert not any(stem.startswith("page3") for stem in stems)


def test_only_chosen_figures_are_drawn(tmp_path):
    chosen = parse_figures("norm_spread,kept_in_plane", "run")
    assert [d.stem for d in draw_analysis(analysis(), "single", chosen)] == ["norm_spread"]
    drawn = draw_eviction(eviction(), dumps(tmp_path), "single", chosen)
    assert [d.stem for d in drawn] == ["kept_in_plane_budget_16", "kept_in_plane_budget_32"]
    assert draw_analysis(analysis(), "single", ()) == []


def test_what_cannot_be_drawn_says_what_it_needs():
    chosen = parse_figures("rope_by_layer,norm_spread,sinks_by_layer", "analysis")
    result = analysis()
    result.sinks = Table("sinks", result.sinks.columns)
    drawings = draw_analysis(result, "single", chosen)
    assert undrawn("analysis", chosen, drawings) == [
        "rope_by_layer is not drawn: it needs keys before RoPE; dump again with --prerope-keys",
        "sinks_by_layer is not drawn: it needs attention sinks, and no position is one",
    ]
    assert undrawn("analysis", ("norm_spread",), drawings) == []


def test_saved_figures_come_back_with_their_captions(tmp_path):
    drawings = draw_analysis(analysis(), "single", ("norm_spread",))
    save_drawings(tmp_path / "figures", drawings, ("svg",))
    (plate,) = load_plates(tmp_path / "figures")
    assert (plate.title, plate.caption) == (drawings[0].title, drawings[0].caption)
    assert plate.png.is_file()
    assert len(json.loads((tmp_path / "figures" / "figures.json").read_text())) == 1
    assert sorted(p.suffix for p in (tmp_path / "figures").iterdir()) == [".csv", ".json", ".png", ".svg"]
