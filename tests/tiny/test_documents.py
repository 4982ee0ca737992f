import numpy as np
import pytest

from ecokv_cli.tiny.documents import (
    HELD_OUT_SEEDS,
    TILE,
    TRAIN_SEEDS,
    VALIDATION_SEEDS,
    WORDS,
    held_out,
    render,
)


def test_a_page_is_a_pure_function_of_its_seed():
    first, again, other = render(7, 11, 2), render(7, 11, 2), render(8, 11, 2)
    assert np.array_equal(first.pixels, again.pixels)
    assert first.fields == again.fields
    assert first.fields != other.fields


@pytest.mark.parametrize(("lines", "columns"), [(1, 1), (5, 1), (24, 1), (4, 2), (24, 2)])
def test_pages_are_whole_tiles_with_unique_keys_and_short_numbers(lines, columns):
    page = render(3, lines, columns)
    assert page.pixels.shape == (page.layout.tiles[0] * TILE, page.layout.tiles[1] * TILE)
    assert page.image_tokens * TILE * TILE == page.pixels.size
    keys = [field.key for field in page.fields]
    assert len(set(keys)) == len(keys) >= 1
    assert set(keys) <= set(WORDS)
    assert all(field.value.isdigit() and 3 <= len(field.value) <= 5 for field in page.fields)


def test_ink_is_inside_the_boxes_and_nowhere_else():
    page = render(12, 9, 2)
    light = np.median(page.pixels)
    covered = np.zeros(page.pixels.shape, dtype=bool)
    for field in page.fields:
        for x0, y0, x1, y1 in (field.key_box, field.value_box):
            assert 0 <= x0 < x1 <= page.pixels.shape[1]
            assert 0 <= y0 < y1 <= page.pixels.shape[0]
            assert page.pixels[y0:y1, x0:x1].min() < light - 60
            covered[y0:y1, x0:x1] = True
    assert page.pixels[~covered].min() > light - 80


def test_value_boxes_lie_right_of_their_keys_on_the_same_line():
    for field in render(12, 9, 2).fields:
        assert field.value_box[0] >= field.key_box[2] - 6
        assert abs(field.value_box[1] - field.key_box[1]) <= 6


def test_seed_ranges_do_not_meet():
    spans = sorted((r.start, r.stop) for r in (TRAIN_SEEDS, VALIDATION_SEEDS, HELD_OUT_SEEDS))
    assert spans[0][1] <= spans[1][0]
    assert spans[1][1] <= spans[2][0]


def test_held_out_pages_are_spread_over_all_sizes_and_both_layouts():
    pages = list(held_out(500))
    tokens = np.array([page.image_tokens for page, _ in pages])
    assert tokens.min() >= 64
    assert tokens.max() <= 384
    counts, _ = np.histogram(tokens, bins=8, range=(64, 384))
    assert counts.min() > 40
    assert {page.layout.columns for page, _ in pages} == {1, 2}
    assert all(page.seed in HELD_OUT_SEEDS and field in page.fields for page, field in pages)


def test_impossible_pages_are_refused():
    for lines, columns in [(0, 1), (33, 2), (65, 1), (4, 3)]:
        with pytest.raises(ValueError, match="1 or 2 columns"):
            render(0, lines, columns)
