"""Visual-head scores from dumps: boxes to positions, tokens to boxes, and the table against the naive reference."""

import math
from dataclasses import replace

import numpy as np
import pytest
import reference
from builders import random_layer
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_dumps import memory_dump

from ecokv_cli.dump.schema import BoxInfo, ImageGrid
from ecokv_cli.errors import DumpError
from ecokv_cli.eviction.headscores import Target
from ecokv_cli.studies.headscores import head_scores, positions_of, targets_of

WHOLE = (0.0, 0.0, 1.0, 1.0)


def grid(start=3, rows=3, cols=5, box=WHOLE, extra=0, image=0):
    return ImageGrid(image, start, rows, cols, box, extra)


def positions(box, *grids, image=0):
    return positions_of(BoxInfo("7", image, box), grids)


def test_a_cell_counts_if_the_box_overlaps_it_by_more_than_an_edge():
    assert positions((0.2, 1 / 3, 0.4, 2 / 3), grid()) == (3 + 5 + 1,)
    assert positions((0.19, 0.3, 0.41, 0.7), grid()) == tuple(3 + 5 * row + col for row in range(3) for col in range(3))
    assert positions(WHOLE, grid()) == tuple(range(3, 18))
    assert positions((0.25, 0.4, 0.26, 0.41), grid()) == (9,)


def test_a_box_that_is_a_cell_is_that_cell_in_spite_of_rounding():
    for cells in range(1, 61):
        for number in range(cells):
            part = number / cells, (number + 1) / cells
            view = [0.3 + 0.4 * side for side in part]
            assert positions((part[0], 0.0, part[1], 1.0), grid(0, 1, cells)) == (number,)
            assert positions((0.0, part[0], 1.0, part[1]), grid(0, cells, 1)) == (number,)
            assert positions((view[0], 0.0, view[1], 1.0), grid(0, 1, cells, (0.3, 0.0, 0.7, 1.0))) == (number,)


def test_a_newline_token_after_each_row_belongs_to_no_cell():
    found = positions(WHOLE, grid(start=10, rows=2, cols=3, extra=1))
    assert found == (10, 11, 12, 14, 15, 16)
    assert positions((0.7, 0.6, 0.9, 0.9), grid(start=10, rows=2, cols=3, extra=1)) == (16,)


def test_every_view_of_the_image_shows_the_box_and_other_images_do_not():
    overview = grid(start=0, rows=2, cols=2)
    left, right = (grid(20, 4, 3, (0.0, 0.0, 0.5, 1.0), extra=1), grid(40, 4, 3, (0.5, 0.0, 1.0, 1.0), extra=1))
    other = grid(start=80, image=1)
    box = (0.4, 0.1, 0.6, 0.2)
    assert positions(box, overview, left, right, other) == (0, 1, 22, 40)
    assert positions(box, overview, left, right, other, image=1) == (80 + 2,)
    assert positions((0.6, 0.1, 0.7, 0.2), left) == ()  # beside this view


@settings(deadline=None, derandomize=True, database=None)
@given(
    st.tuples(*[st.integers(0, 60)] * 4), st.integers(1, 6), st.integers(1, 6), st.integers(0, 1),
    st.sampled_from([(0, 0, 60, 60), (0, 0, 30, 60), (20, 10, 60, 40)]),
)  # fmt: skip
def test_positions_are_those_of_all_overlapped_cells(corners, rows, cols, extra, covered):
    """Against a loop over all cells, in whole sixtieths, so that an edge is an edge."""
    x0, x1 = sorted(corners[:2])
    y0, y1 = sorted(corners[2:])
    gx0, gy0, gx1, gy1 = covered
    wanted = []
    for row in range(rows):
        for col in range(cols):
            # Cell borders multiplied by the number of cells stay whole.
            left, right = gx0 * cols + col * (gx1 - gx0), gx0 * cols + (col + 1) * (gx1 - gx0)
            top, bottom = gy0 * rows + row * (gy1 - gy0), gy0 * rows + (row + 1) * (gy1 - gy0)
            if x0 * cols < right and x1 * cols > left and y0 * rows < bottom and y1 * rows > top:
                wanted.append(7 + row * (cols + extra) + col)
    found = positions_of(
        BoxInfo("7", 0, (x0 / 60, y0 / 60, x1 / 60, y1 / 60)),
        [ImageGrid(0, 7, rows, cols, tuple(side / 60 for side in covered), extra)],
    )
    assert list(found) == wanted


def boxed(strings, boxes, grids=None, ended=False, **fields):
    """A dump that answered with `strings`; `boxes` are (text, box)."""
    named = tuple(BoxInfo(text, 0, box) for text, box in boxes)
    return memory_dump(strings=strings, boxes=named, grids=(grid(),) if grids is None else grids, ended=ended, **fields)


CELL = {n: ((n % 5) / 5, (n // 5) / 3, (n % 5 + 1) / 5, (n // 5 + 1) / 3) for n in range(15)}


@pytest.mark.parametrize(("strings", "steps"), [
    (("6", "1", "5"), [0, 1, 2]),
    ((" 6", "1 ", "\n5"), [0, 1, 2]),  # blanks around a token do not matter
    (("", " ", "5"), [2]),  # nothing matches nothing, though every text contains it
    (("7", "5"), [1]),  # 7 stands in two boxes
    (("9", "5"), [1]),  # 9 in none
    (("total", "to", "Total"), [0, 1]),  # parts of a word count, case matters
    ((), []),
])  # fmt: skip
def test_a_token_counts_if_it_stands_in_exactly_one_box(strings, steps):
    boxes = [("615", CELL[7]), ("72", CELL[2]), ("47", CELL[11]), ("total", CELL[4])]
    found = targets_of(boxed(strings, boxes).manifest)
    assert [target.step for target in found] == steps
    where = {"6": 10, "1": 10, "5": 10, "total": 7, "to": 7}
    assert [target.positions for target in found] == [(where[strings[step].strip()],) for step in steps]


def test_two_boxes_of_the_same_text_leave_the_place_open():
    assert targets_of(boxed(("6",), [("61", CELL[7]), ("61", CELL[8])]).manifest) == []


def test_a_box_that_no_token_shows_is_no_target():
    assert targets_of(boxed(("6",), [("61", CELL[7])], grids=()).manifest) == []
    assert targets_of(boxed(("6",), [("61", (0.8, 0, 1, 1))], grids=(grid(box=(0, 0, 0.5, 1)),)).manifest) == []


def test_the_token_that_ended_the_answer_was_predicted_too():
    boxes = [("61", CELL[7]), ("end", CELL[8])]
    assert targets_of(boxed(("6", "end"), boxes, ended=True).manifest) == [Target(0, (10,)), Target(1, (11,))]


def looking(sample, strings, boxes, seed):
    """A dump in which some query heads look at the right places, and the naive scores of it."""
    spots = {text: positions_of(BoxInfo(text, 0, box), [grid()]) for text, box in boxes}
    made = []
    for index in range(3):
        layer = random_layer(seed + index)
        keys = layer.keys.clone()
        for step in range(3):
            asked = (layer.window_queries if step == 0 else layer.decode_queries)[:, -1 if step == 0 else step - 1]
            # The key of the first cell of a box is that of a query, which then likes it best.
            keys[:, spots[boxes[step % len(boxes)][0]][0]] = 5 * asked[[index % 3, 3 + (index + step) % 3]]
        made.append(replace(layer, index=index, layers=3, keys=keys))
    dump = boxed(strings, boxes, sample=sample, made=tuple(made))
    arrays = [[getattr(layer, name).numpy() for layer in made] for name in (
        "window_queries", "keys", "decode_queries", "decode_keys",
    )]  # fmt: skip
    return dump, reference.sample_head_scores(*arrays, strings, [(text, spots[text]) for text, _ in boxes])


def test_the_table_is_the_mean_over_samples_of_the_naive_scores():
    first, one = looking("one", (" 6", "7", "1", "0"), [("61", (0.1, 0.1, 0.5, 0.5)), ("70", CELL[14])], 0)
    second, two = looking("two", ("5", "", "3 ", "x"), [("35", CELL[3])], 50)
    nothing = boxed(("6", "1"), [], sample="three")
    assert one.any()
    assert two.any()
    seen = []
    found = head_scores([first, nothing, second], lambda done, total: seen.append((done, total)))
    np.testing.assert_allclose(found.table.scores, reference.head_scores([one, two]), rtol=1e-12)
    assert (found.table.model, found.table.config_sha256) == ("tiny", "0" * 64)
    assert (found.table.samples, found.table.tokens) == (2, 4 + 2)
    assert found.skipped == {"three": "its manifest has no boxes"}
    assert seen == [(1, 3), (2, 3), (3, 3)]


def staring(place):
    """One layer whose queries all like the key at `place` best."""
    layer = random_layer()
    keys = 0 * layer.keys
    keys[:, place] = 1
    ones = {name: 0 * getattr(layer, name) + 1 for name in ("window_queries", "decode_queries")}
    return replace(layer, index=0, layers=1, keys=keys, decode_keys=0 * layer.decode_keys, **ones)


def test_a_head_that_always_looks_at_the_right_place_scores_the_worth_of_its_cells():
    dump = boxed(("6", "1", "5"), [("615", (0.4, 1 / 3, 0.8, 2 / 3))], layers=1, made=(staring(10),))
    assert [target.positions for target in targets_of(dump.manifest)] == [(10, 11)] * 3
    assert head_scores([dump]).table.scores == ((3 / 2,) * 6,)


@pytest.mark.parametrize(("dump", "reason"), [
    (boxed(("6",), []), "its manifest has no boxes"),
    (boxed((), [("61", CELL[7])]), r"nothing was decoded \(dump again with --decode 32\)"),
    (boxed(("9", "8"), [("61", CELL[7])]), "no token of the answer '98' stands in exactly one box"),
])  # fmt: skip
def test_when_no_sample_can_be_used_the_first_reason_is_given(dump, reason):
    with pytest.raises(DumpError, match=rf"none of 2 samples can be used, page: {reason}; .*--manifest"):
        head_scores([dump, replace(dump, manifest=replace(dump.manifest, sample="again"))])


def test_no_head_at_the_right_place_is_an_error_and_no_table_of_zeros():
    dump = boxed(("6",), [("61", CELL[7])], layers=1, made=(staring(0),))
    with pytest.raises(DumpError, match="in 1 samples no head ever looked at the right place"):
        head_scores([dump])


def test_samples_of_two_models_are_refused():
    good = boxed(("6",), [("61", CELL[7])])
    other = boxed(("6",), [("61", CELL[7])], model="large", digest="1" * 64)
    with pytest.raises(DumpError, match="a dump of large, the first is of tiny"):
        head_scores([good, other])
    # Two checkpoints of one architecture have one configuration.
    for change in ({"model": "large"}, {"digest": "1" * 64}):
        with pytest.raises(DumpError, match=r"a dump of .*, the first is of tiny"):
            head_scores([good, boxed(("6",), [("61", CELL[7])], **change)])


def test_scores_are_finite_and_never_negative():
    found, _ = looking("one", ("6", "1"), [("61", CELL[7])], 3)
    for row in head_scores([found]).table.scores:
        assert all(math.isfinite(score) and score >= 0 for score in row)
