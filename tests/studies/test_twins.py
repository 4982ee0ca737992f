"""Samples that are the same though something about their dumps differs, and samples that are not."""

from dataclasses import replace

import numpy as np
import pytest
from memory_dumps import memory_dump
from PIL import Image

from ecokv_cli.dump.schema import ImageInfo
from ecokv_cli.sample.images import load_image
from ecokv_cli.studies.twins import distinct, marks_of

PAGE = np.random.default_rng(7).integers(0, 256, (31, 43, 3), dtype=np.uint8)


@pytest.fixture
def dumped(tmp_path):
    """A function that dumps a sample with image files, as far as its manifest and the images go."""
    count = 0

    def dump(*files, frame=0, max_pixels=None, **fields):
        nonlocal count
        count += 1
        folder = tmp_path / f"dump-{count}"
        folder.mkdir()
        images = []
        for number, file in enumerate(files):
            image, name = load_image(file, frame=frame, max_pixels=max_pixels), f"image_{number:03d}.png"
            image.image.save(folder / name)
            images.append(
                ImageInfo(
                    image.source, name, image.format, image.sha256, image.original_size, image.used_size, image.notes
                )
            )
        return replace(memory_dump(images=tuple(images), **fields), folder=folder)

    return dump


@pytest.fixture
def saved(tmp_path):
    """A function that saves the page under a name, whose ending says how."""

    def save(name, page=PAGE, **options):
        path = tmp_path / name
        Image.fromarray(page).save(path, **options)
        return path

    return save


def same(first, second):
    return bool(marks_of(first) & marks_of(second))


def test_another_name_changes_nothing(dumped, saved):
    page = saved("page.png")
    (copied := page.with_name("copy.png")).write_bytes(page.read_bytes())
    assert same(dumped(page, sample="one"), dumped(copied, sample="two"))
    assert not same(dumped(page), dumped(saved("other.png", 255 - PAGE)))


@pytest.mark.parametrize("name", ["page.tiff", "page.bmp", "again.png"])
def test_a_page_saved_again_without_loss_is_the_same(dumped, saved, name):
    first, second = saved("page.png", compress_level=1), saved(name)
    assert first.read_bytes() != second.read_bytes()
    assert same(dumped(first), dumped(second))


def test_a_page_saved_again_with_loss_is_another_as_nothing_tells(dumped, saved):
    assert not same(dumped(saved("page.png")), dumped(saved("page.jpg")))


def test_a_page_scaled_to_another_size_is_the_same_file(dumped, saved):
    page = saved("page.png")
    assert same(dumped(page), dumped(page, max_pixels=300))


def test_two_pages_of_one_file_are_two(dumped, saved):
    second = Image.fromarray(255 - PAGE)
    file = saved("pages.tiff", save_all=True, append_images=[second])
    assert not same(dumped(file, frame=0), dumped(file, frame=1))
    assert same(dumped(file, frame=1), dumped(file, frame=1))
    assert same(dumped(file, frame=1), dumped(saved("second.png", 255 - PAGE)))


def test_the_prompt_counts_and_the_template_around_it_does_not(dumped, saved):
    page = saved("page.png")
    asked = dumped(page, prompt="total?")
    tokens = replace(asked.manifest.tokens, ids=tuple(range(29)))
    assert not same(asked, dumped(page, prompt="date?"))
    assert same(asked, dumped(page, prompt="total?", rendered_sha256="other", tokens=tokens))
    # What the model was given is the same, however it was written.
    assert same(asked, dumped(page, prompt="total? ", tokens=asked.manifest.tokens))


def test_samples_without_images_go_by_their_prompt_and_their_number_and_order_counts(dumped, saved):
    assert same(dumped(prompt="a"), dumped(prompt="a"))
    assert not same(dumped(prompt="a"), dumped(prompt="b"))
    one, two = saved("one.png"), saved("two.png", 255 - PAGE)
    assert same(dumped(one, two), dumped(one, two))
    assert not same(dumped(one, two), dumped(two, one))
    assert not same(dumped(one), dumped(one, one))
    assert not same(dumped(one), dumped())


def test_an_image_that_the_dump_holds_no_longer_goes_by_its_file(dumped, saved):
    page = saved("page.png")
    first, second = dumped(page), dumped(page)
    (second.folder / "image_000.png").unlink()
    assert same(first, second)
    assert not same(dumped(saved("page.bmp")), second)


def test_a_sample_is_kept_once_and_what_repeats_it_is_named(dumped, saved):
    page, other = saved("page.png"), saved("other.png", PAGE[::-1])
    dumps = [
        dumped(page, sample="one"), dumped(other, sample="two"), dumped(page, sample="three"),
        dumped(page, sample="four", prompt="Another question?"), dumped(other, sample="five"),
    ]  # fmt: skip
    kept, twins = distinct(dumps)
    assert [dump.manifest.sample for dump in kept] == ["one", "two", "four"]
    assert twins == {"three": "one", "five": "two"}
