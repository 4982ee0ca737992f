"""Figures of the simulated eviction draw the numbers they are given, say what is missing, and bend to odd tables."""

from __future__ import annotations

import numpy as np
import pytest
import synthetic
from album import page
from PIL import Image

from ecokv_cli.figures.eviction import kept_by_role, overlap_matrix
from ecokv_cli.figures.fidelity import fidelity_by_budget
from ecokv_cli.figures.overlay import GridImage, kept_over_image
from ecokv_cli.figures.planes import kept_in_plane
from ecokv_cli.figures.recency import kept_by_age, kept_recent
from ecokv_cli.studies.tables import Table


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_budgets_are_ticks_on_a_logarithmic_axis():
    table = synthetic.fidelity(5, 2, ("snapkv", "keydiff"), (16, 64, 256))
    drawing = fidelity_by_budget(table)
    assert drawing.figure.axes[0].get_xscale() == "log"
    assert labels(drawing.figure.axes[0].xaxis) == ["16", "64", "256"]
    row = drawing.data.where(method="keydiff", budget=64, measure="output_error").rows[0]
    numbers = table.where(method="keydiff", budget=64).numbers("output_error")
    expected = [np.mean(numbers), np.quantile(numbers, 0.25), np.quantile(numbers, 0.75), 10]
    assert [row["mean"], row["q25"], row["q75"], row["n"]] == pytest.approx(expected)


@pytest.mark.parametrize("width", ["single", "double"])
def test_one_budget_gives_dots(width):
    drawing = fidelity_by_budget(synthetic.fidelity(5, 2, budgets=(64,)), width)
    ax = drawing.figure.axes[0]
    assert ax.get_xscale() == "linear"
    assert labels(ax.yaxis) == list(synthetic.METHODS)
    assert [len(line.get_xdata()) for line in ax.lines] == [1] * 7
    assert "at a budget of 64 tokens" in drawing.caption


def test_unmatched_windows_are_said():
    caption = fidelity_by_budget(synthetic.fidelity(2, 2, ("keydiff", "snapkv", "snapkv+ecokv"))).caption
    assert "The rows are not matched: windows are 0 (keydiff), 4 (snapkv+ecokv) and 32 (snapkv)." in caption
    assert "not matched" not in fidelity_by_budget(synthetic.fidelity(2, 2, ("snapkv", "keydiff"))).caption


def test_undefined_fidelity_is_left_out():
    table = synthetic.fidelity(3, 2, ("snapkv",), (16, 32))
    for row in table.where(budget=16):
        row["output_cosine"] = None
    drawing = fidelity_by_budget(table)
    assert drawing.data.where(measure="output_cosine").numbers("budget") == [32]


def test_ages_run_to_the_start_of_the_prompt():
    drawing = kept_by_age(synthetic.recency(("full", "snapkv", "keydiff"), (32,)))
    assert [ax.get_title() for ax in drawing.figure.axes if ax.get_visible()] == ["snapkv", "keydiff"]
    steps = drawing.figure.axes[0].patches[-1].get_data()
    assert steps.edges[[0, 1, -1]].tolist() == [0, 7, len(synthetic.Prompt().roles)]
    assert steps.values.tolist() == drawing.data.where(method="snapkv").numbers("kept")


def ages(sample, length, bins):
    """A `recency` table of one method that keeps the ages below `length` / 2."""
    table = Table("recency", ("model", "sample", "method", "budget", "age_low", "age_high", "kept"))
    for low in range(0, length, bins):
        high = min(low + bins, length) - 1
        kept = sum(age < length / 2 for age in range(low, high + 1)) / (high - low + 1)
        table.add(model="m", sample=sample, method="snapkv", budget=7, age_low=low, age_high=high, kept=kept)
    return table


def test_prompts_of_different_length_share_bins_of_ages():
    table = ages("long", 30, 5)
    table.rows += ages("short", 12, 2).rows
    drawn = kept_by_age(table).data
    assert drawn.numbers("age_low") == list(range(0, 30, 5))
    assert drawn.numbers("age_high")[-1] == 29
    assert drawn.numbers("samples") == [2, 2, 2, 1, 1, 1], "the short prompt has no such ages"
    # The short prompt keeps ages 0 to 5: all of the first bin; its bin 4-5 gives one age to each side.
    assert drawn.numbers("kept") == pytest.approx([1, (1 + 1 / 5) / 2, 0.5, 0, 0, 0])


def test_shares_of_bins_that_lie_across_an_edge_equal_those_of_single_ages():
    """Every age has the share of its prompt's own bin; the figure has the means over samples of means over ages."""
    lengths, widest = {"a": (97, 5), "b": (61, 3), "c": (41, 2)}, 5
    table, every_age = Table("recency", ages("a", 1, 1).columns), {}
    generator = np.random.default_rng(3)
    for sample, (length, width) in lengths.items():
        own = ages(sample, length, width)
        every_age[sample] = []
        for row in own:
            row["kept"] = float(generator.random())
            every_age[sample] += [row["kept"]] * (row["age_high"] - row["age_low"] + 1)
        table.rows += own.rows
    drawing = kept_by_age(table)
    for row in drawing.data:
        parts = [found[row["age_low"] : row["age_high"] + 1] for found in every_age.values()]
        assert row["kept"] == pytest.approx(np.mean([np.mean(part) for part in parts if part]))
    assert len(drawing.data) == -(-97 // widest)


def test_the_caption_tells_of_split_bins_only_where_there_are_any():
    def told(*tables):
        together = Table("recency", tables[0].columns, [row for table in tables for row in table])
        return "goes to both" in kept_by_age(together).caption

    assert not told(ages("a", 30, 5))
    assert not told(ages("a", 30, 5), ages("b", 28, 5)), "bins of the same width"
    assert not told(ages("a", 36, 6), ages("b", 12, 2)), "three narrow bins make a wide one"
    assert told(ages("a", 30, 5), ages("b", 12, 2))


def test_recent_positions_are_counted_from_the_end():
    table = synthetic.positions(("full", "snapkv", "keydiff"), 32)
    drawing = kept_recent(table)
    rows = drawing.data.where(method="snapkv")
    assert rows.numbers("age_low") == rows.numbers("age_high") == list(range(64))
    assert rows.numbers("kept") == table.where(method="snapkv", layer="all").numbers("kept")[:-65:-1]
    assert "full" not in drawing.data.distinct("method")
    short = synthetic.Prompt(rows=2, cols=3, text=5)
    assert len(kept_recent(synthetic.positions(("snapkv",), 7, short)).data) == len(short.roles)


def test_intervals_over_samples_are_drawn_where_there_are_several():
    one, many = (synthetic.sampled(synthetic.recency(("snapkv",), (16,)), n) for n in (1, 5))
    patches = [len(kept_by_age(table).figure.axes[0].patches) for table in (one, many)]
    assert patches[1] == patches[0] + 1
    roles = [kept_by_role(synthetic.sampled(synthetic.roles(("snapkv",), (16,)), n)) for n in (1, 5)]
    assert [len(drawing.figure.axes[0].collections) for drawing in roles] == [0, 1]
    assert "intervals over samples" in roles[1].caption
    table = synthetic.sampled(synthetic.fidelity(3, 2, ("snapkv",), (16, 32)), 5)
    row = fidelity_by_budget(table).data.where(budget=16, measure="mass").rows[0]
    assert row["q25"] < row["low"] < row["mean"] < row["high"] < row["q75"]


def test_kept_keys_stand_out_in_the_plane_of_all():
    positions = synthetic.positions(("full", "snapkv", "keydiff"), 32)
    drawing = kept_in_plane(synthetic.plane(), positions, budget=32)
    axes = [ax for ax in drawing.figure.axes if ax.get_visible()]
    assert [ax.get_title() for ax in axes] == ["snapkv", "keydiff"]
    assert len({(ax.get_xlim(), ax.get_ylim()) for ax in axes}) == 1, "the same axes"
    for ax in axes:
        counts = [len(cloud.get_offsets()) for cloud in ax.collections]
        assert counts[0] == len(synthetic.Prompt().roles) - 32, "evicted"
        assert sum(counts[1:]) == 32
    assert len(drawing.data.where(method="keydiff", kept=True)) == 32
    assert drawing.figure.get_supxlabel() == "PC 1 (41.3 %)"
    assert "KV head 1 of layer 3" in drawing.caption


def test_plane_without_keys_or_methods():
    positions = synthetic.positions(("full", "snapkv"), 32)
    assert kept_in_plane(Table("plane", synthetic.plane().columns), positions, budget=32) is None
    assert kept_in_plane(synthetic.plane(), positions, budget=31) is None
    assert kept_in_plane(synthetic.plane(), synthetic.positions(("full",), 32), budget=32) is None


def test_a_choice_blind_to_roles_is_drawn():
    drawing = kept_by_role(synthetic.roles(("full", "random", "keydiff"), (64,)))
    ax = drawing.figure.axes[0]
    assert labels(ax.xaxis) == ["text", "image", "special"]
    assert ax.lines[0].get_ydata() == pytest.approx([64 / len(synthetic.Prompt().roles)] * 2)
    assert len(ax.patches) == 2 * 3
    assert len({bar.get_hatch() for bar in ax.patches}) == 2


def test_agreement_is_symmetric_whichever_way_a_pair_is_given():
    table = Table("overlap", ("model", "sample", "budget", "method_a", "method_b", "jaccard"))
    for a, b, share in (("keydiff", "snapkv", 0.25), ("snapkv", "oracle", 0.5), ("oracle", "keydiff", None)):
        table.add(model="m", sample="s", budget=64, method_a=a, method_b=b, jaccard=share)
    drawing = overlap_matrix(table)
    values = {(r["method_a"], r["method_b"]): r["jaccard"] for r in drawing.data}
    assert values["snapkv", "keydiff"] == values["keydiff", "snapkv"] == 0.25
    assert values["oracle", "keydiff"] is None
    assert sorted(t.get_text() for t in drawing.figure.axes[0].texts) == [".25", ".25", ".50", ".50", "–", "–"]


def test_many_methods_leave_their_numbers_to_the_file():
    many = tuple(f"snapkv+ecokv[alpha={a / 10}]" for a in range(11))
    narrow = overlap_matrix(synthetic.overlap(many, (32,)), "single")
    assert not narrow.figure.axes[0].texts
    assert "numbers are in the data file" in narrow.caption
    wide = overlap_matrix(synthetic.overlap(many, (32,)))
    assert len(wide.figure.axes[0].texts) == 11 * 10


def test_kept_cells_are_darker_than_evicted_ones_on_any_image_in_grey():
    prompt = synthetic.Prompt(rows=5, cols=7)
    table = synthetic.positions(("snapkv",), 19, prompt)
    kept = np.array(table.where(layer=3, role="image").numbers("kept")).reshape(5, 7).astype(bool)
    shades = []
    for ink in ("black", "white"):
        image = GridImage(Image.new("RGB", (7 * 29, 5 * 31), ink), 5, 7)
        drawing = kept_over_image(table, image, budget=table.rows[0]["budget"], width="single")
        pixels = np.asarray(drawing.figure.axes[1].images[0].get_array()) @ (0.299, 0.587, 0.114)
        height, width = pixels.shape
        shades.append(pixels[height // 10 :: height // 5][:5, width // 14 :: width // 7][:, :7])
    assert max(shade[kept].max() for shade in shades) < min(shade[~kept].min() for shade in shades) - 0.05
    share = 100 * kept.mean()
    assert drawing.figure.axes[1].get_xlabel() == f"{share:.0f} % kept"


def test_overlay_without_its_image_or_tokens():
    table = synthetic.positions(("snapkv",))
    assert kept_over_image(table, page(synthetic.Prompt()), budget=8, image=1) is None
    assert kept_over_image(table, page(synthetic.Prompt()), budget=9) is None
    text_only = Table(table.name, table.columns, [row for row in table if row["role"] == "text"])
    assert kept_over_image(text_only, page(synthetic.Prompt()), budget=8) is None


def test_overlay_of_a_second_image_and_of_a_chosen_budget():
    prompt = synthetic.Prompt(rows=3, cols=5)
    table = synthetic.positions(("snapkv", "full"), 8, prompt)
    table.rows += synthetic.positions(("snapkv",), 16, prompt).rows
    for row in table.where(role="image"):
        row["image"] = 1
    drawing = kept_over_image(table, page(prompt), image=1, budget=16, width="single")
    assert drawing.stem == "kept_over_image_1_budget_16"
    assert drawing.data.distinct("budget") == [16]
    assert drawing.data.distinct("budget") == [16]


def test_transparent_pixels_are_paper():
    clear = Image.new("RGBA", (55, 33), (0, 0, 0, 0))
    prompt = synthetic.Prompt(rows=3, cols=5)
    drawing = kept_over_image(
        synthetic.positions(("random",), 7, prompt), GridImage(clear, 3, 5), budget=7, width="single"
    )
    assert np.asarray(drawing.figure.axes[0].images[0].get_array()).max() == pytest.approx(1.0)


def test_samples_are_averaged_and_counted():
    table = synthetic.fidelity(2, 3, ("snapkv",), (16, 32))
    table.rows += [row | {"sample": "other"} for row in table.rows]
    drawing = fidelity_by_budget(table)
    assert "means over 2 samples, layers and KV heads" in drawing.caption
    assert drawing.data.rows[0]["n"] == 2 * 3, "quartiles are over layers and heads, each a mean over samples"
