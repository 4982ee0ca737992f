"""Images of every format, mode, orientation and size: the right pixels, sizes and notes."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from sample_pictures import HEIGHT, WIDTH, encode, gradient, pixels, refused

from ecokv_cli.errors import InputError, UsageError
from ecokv_cli.sample.images import load_image


def test_a_plain_image_is_kept_as_it_is(save):
    path = save("page.png", gradient())
    loaded = load_image(path)
    assert np.array_equal(pixels(loaded), np.asarray(gradient()))
    assert (loaded.original_size, loaded.used_size) == ((WIDTH, HEIGHT), (WIDTH, HEIGHT))
    assert (loaded.image.mode, loaded.format, loaded.source, loaded.notes) == ("RGB", "PNG", str(path), ())
    assert loaded.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("file_format", ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"])
def test_every_supported_format_is_read_by_content_not_name(save, file_format):
    loaded = load_image(save("picture.data", encode(gradient(), file_format)))
    assert loaded.format == file_format
    assert loaded.used_size == (WIDTH, HEIGHT)
    assert np.abs(pixels(loaded).astype(int) - np.asarray(gradient())).mean() < 12


def test_names_with_spaces_and_other_alphabets(save):
    loaded = load_image(save("Rechnung für März 請求書.png", gradient()))
    assert loaded.source.endswith("Rechnung für März 請求書.png")


# --- animations and pages


@pytest.mark.parametrize("file_format", ["GIF", "PNG", "WEBP", "TIFF"])
def test_frames(save, file_format):
    shades = (10, 130, 250)
    first, *others = [Image.new("RGB", (WIDTH, HEIGHT), (shade, shade, shade)) for shade in shades]
    options = {"lossless": True} if file_format == "WEBP" else {}
    content = encode(first, file_format, save_all=True, append_images=others, **options)
    path = save("film.img", content)
    for frame, shade in enumerate(shades):
        loaded = load_image(path, frame=frame)
        assert np.unique(pixels(loaded)).tolist() == [shade]
        assert loaded.notes == (f"holds 3 frames or pages: only number {frame} is used (counted from 0)",)
    assert np.array_equal(pixels(load_image(path)), pixels(load_image(path, frame=0)))
    for frame in (3, -1):
        message = refused(path, UsageError, frame=frame)
        assert message.endswith(f"film.img' has no frame {frame}: its frames are 0 to 2")


def test_a_photograph_with_a_second_picture_behind_it(save):
    loaded = load_image(save("phone.jpg", encode(gradient(), "MPO", save_all=True, append_images=[gradient(7, 5)])))
    assert (loaded.format, loaded.used_size) == ("MPO", (WIDTH, HEIGHT))
    assert loaded.notes == ("holds 2 frames or pages: only number 0 is used (counted from 0)",)


def test_a_still_image_has_one_frame(save):
    assert "its frames are 0 to 0" in refused(save("page.png", gradient()), UsageError, frame=1)


# --- orientation


@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(save, file_format, orientation):
    upright = np.asarray(gradient())
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.swapaxes(0, 1),
        6: np.rot90(upright, 1),
        7: np.rot90(upright, 2).swapaxes(0, 1),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if file_format == "WEBP" else {}
    content = encode(Image.fromarray(np.ascontiguousarray(stored)), file_format, exif=exif, **options)
    loaded = load_image(save("photo.img", content))
    assert np.array_equal(pixels(loaded), upright)
    assert loaded.original_size == (WIDTH, HEIGHT)
    assert loaded.notes == ((f"turned upright (EXIF orientation {orientation})",) if orientation > 1 else ())


# --- modes


def test_palette_and_one_bit(save):
    palette = gradient().quantize(16)
    assert np.array_equal(pixels(load_image(save("p.png", palette))), np.asarray(palette.convert("RGB")))
    bits = gradient().convert("1")
    loaded = load_image(save("bits.png", bits))
    assert np.array_equal(pixels(loaded)[..., 2], 255 * np.asarray(bits).astype(int))
    assert loaded.notes == ()


@pytest.mark.parametrize(("mode", "ink"), [("RGBA", (200, 20, 20)), ("LA", (40,)), ("PA", (200, 20, 20))])
def test_transparency_is_composited_on_white(save, mode, ink):
    image = Image.new("RGBA" if mode == "PA" else mode, (3, 1))
    for x, alpha in enumerate((255, 51, 0)):
        image.putpixel((x, 0), (*ink, alpha))
    loaded = load_image(save("p.gif" if mode == "PA" else "p.png", image))
    solid, faint, clear = pixels(loaded)[0].astype(int)
    ink = np.array(ink * (3 // len(ink)))
    assert np.abs(solid - ink).max() <= 1
    assert clear.tolist() == [255, 255, 255]
    if mode != "PA":  # a GIF knows no half transparency
        assert np.abs(faint - (ink * 0.2 + 255 * 0.8)).max() <= 1
    assert loaded.notes == ("transparent parts are shown on white",)


def test_a_transparent_palette_colour(save):
    image = Image.new("P", (2, 1), 0)
    image.putpalette([9, 9, 9, 90, 90, 90])
    image.putpixel((1, 0), 1)
    assert pixels(load_image(save("p.png", image, transparency=0)))[0].tolist() == [[255] * 3, [90] * 3]


def test_an_opaque_alpha_channel_is_no_news(save):
    loaded = load_image(save("p.png", gradient().convert("RGBA")))
    assert loaded.notes == ()
    assert np.array_equal(pixels(loaded), np.asarray(gradient()))


@pytest.mark.parametrize("name", ["grey.png", "grey.tif", "grey.pgm"])
def test_16_bit_greyscale_is_scaled_not_clipped(save, name):
    values = np.array([[0, 257, 4112], [32896, 65278, 65535]], dtype=np.uint16)
    loaded = load_image(save(name, Image.fromarray(values)))
    assert pixels(loaded)[..., 0].tolist() == [[0, 1, 16], [128, 254, 255]]
    (note,) = loaded.notes
    assert note.startswith("greyscale of mode I")
    assert note.endswith("scaled to 8 bit: 0 is black, 65535 is white")


def test_dark_16_bit_greyscale_stays_dark(save):
    loaded = load_image(save("dark.png", Image.fromarray(np.full((2, 3), 2570, dtype=np.uint16))))
    assert np.unique(pixels(loaded)).tolist() == [10]


@pytest.mark.parametrize(
    ("values", "black", "white", "expected"),
    [
        ([0, 65535, 13107], "0", "65535", [0, 255, 51]),
        ([-1000, 1000, 0], "-1000", "1000", [0, 255, 128]),
        ([0, 1 << 20, 1 << 18], "0", "1.04858e+06", [0, 255, 64]),
        ([70000, 70000, 70000], "70000", "70000", [0, 0, 0]),
    ],
)
def test_32_bit_integers(save, values, black, white, expected):
    loaded = load_image(save("depth.tif", Image.fromarray(np.array([values], dtype=np.int32))))
    assert pixels(loaded)[0, :, 0].tolist() == expected
    assert loaded.notes == (f"greyscale of mode I scaled to 8 bit: {black} is black, {white} is white",)


@pytest.mark.parametrize(
    ("values", "white", "expected"),
    [([0, 0.2, 0.6], "1", [0, 51, 153]), ([0, 1.6, 200], "255", [0, 2, 200]), ([0, 100, 1000], "1000", [0, 26, 255])],
)
def test_float_images(save, values, white, expected):
    loaded = load_image(save("depth.tif", Image.fromarray(np.array([values], dtype=np.float32))))
    assert pixels(loaded)[0, :, 0].tolist() == expected
    assert loaded.notes == (f"greyscale of mode F scaled to 8 bit: 0 is black, {white} is white",)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_float_images_that_are_not_finite(save, odd):
    message = refused(save("depth.tif", Image.fromarray(np.array([[0, odd]], dtype=np.float32))))
    assert "(NaN or infinity among its pixels)" in message


@pytest.mark.parametrize("name", ["print.jpg", "print.tif"])
def test_cmyk(save, name):
    loaded = load_image(save(name, Image.new("CMYK", (WIDTH, HEIGHT), (0, 255, 255, 0))))
    assert np.abs(pixels(loaded).astype(int) - [255, 0, 0]).max() <= 3
    assert loaded.notes == ("converted from CMYK without a colour profile",)


# --- sizes


def test_one_pixel(save):
    loaded = load_image(save("dot.png", Image.new("RGB", (1, 1), (1, 2, 3))), max_pixels=1)
    assert (pixels(loaded).tolist(), loaded.notes) == ([[[1, 2, 3]]], ())


@pytest.mark.parametrize("size", [(1400, 7), (7, 1400)])
def test_long_and_thin_images(save, size):
    message = refused(save("strip.png", Image.new("L", size)))
    assert f"strip.png' is {size[0]} x {size[1]} pixels" in message
    assert "less than 200 times" in message
    shorter = tuple(min(side, 1399) for side in size)
    assert load_image(save("strip.png", Image.new("L", shorter))).used_size == shorter


def test_max_pixels_scales_down_and_keeps_both_sizes(save):
    path = save("large.png", gradient(400, 300))
    loaded = load_image(path, max_pixels=1200)
    assert (loaded.original_size, loaded.used_size) == ((400, 300), (40, 30))
    assert loaded.notes == ("scaled from 400 x 300 to 40 x 30 pixels (at most 1200)",)
    expected = gradient(400, 300).resize((40, 30), Image.Resampling.LANCZOS)
    assert np.array_equal(pixels(loaded), np.asarray(expected))
    assert load_image(path, max_pixels=120_000).notes == ()


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 311), st.integers(1, 311), st.integers(1, 997))
@example(49, 49, 1)
@example(199, 1, 50)
def test_max_pixels_is_never_passed_and_the_shape_is_kept(tmp_path_factory, width, height, limit):
    path = tmp_path_factory.mktemp("sizes") / "any.bmp"
    Image.new("1", (width, height)).save(path)
    try:
        used = load_image(path, max_pixels=limit).used_size
    except InputError as error:
        assert "too long and thin" in str(error)  # noqa: PT017 -- the same size may also be accepted
        return
    assert used[0] * used[1] <= limit
    if min(used) > 1 and used != (width, height):
        scale = (limit / (width * height)) ** 0.5
        assert used[0] in (int(width * scale), round(width * scale))
        assert used[1] in (int(height * scale), round(height * scale))


def test_scaling_that_makes_an_image_too_thin_names_the_limit(save):
    message = refused(save("strip.png", Image.new("L", (1990, 10))), max_pixels=450)
    assert "scaled to at most 450 pixels, is 299 x 1 pixels" in message


@pytest.mark.parametrize("limit", [0, -5])
def test_max_pixels_below_one(save, limit):
    assert f"max pixels is {limit}" in refused(save("page.png", gradient()), UsageError, max_pixels=limit)


def test_min_pixels_scales_up_and_keeps_both_sizes(save):
    path = save("small.png", gradient(40, 30))
    loaded = load_image(path, min_pixels=4800)
    assert (loaded.original_size, loaded.used_size) == ((40, 30), (80, 60))
    assert loaded.notes == ("scaled from 40 x 30 to 80 x 60 pixels (at least 4800)",)
    expected = gradient(40, 30).resize((80, 60), Image.Resampling.LANCZOS)
    assert np.array_equal(pixels(loaded), np.asarray(expected))
    assert load_image(path, min_pixels=1200).notes == ()


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 97), st.integers(1, 97), st.integers(1, 9973), st.integers(0, 997))
@example(37, 31, 1200, 0)
@example(1, 199, 9973, 0)
def test_pixels_lie_between_both_limits_and_an_image_is_scaled_once(tmp_path_factory, width, height, least, more):
    path = tmp_path_factory.mktemp("sizes") / "any.bmp"
    Image.new("1", (width, height)).save(path)
    loaded = load_image(path, max_pixels=least + more, min_pixels=least)
    used = loaded.used_size
    assert used[0] * used[1] <= least + more
    assert len(loaded.notes) == (used != (width, height))
    if width * height < least:
        for now, before in zip(used, (width, height), strict=True):
            low, high = (before * (limit / (width * height)) ** 0.5 for limit in (least, least + more))
            assert low - 1 <= now <= high + 1
    if width * height < least and more > 2 * max(used):
        assert used[0] * used[1] >= least


@pytest.mark.parametrize(("least", "most"), [(0, None), (-5, None), (1 << 27, None), (10**30, None), (101, 100)])
def test_min_pixels_out_of_range(save, least, most):
    message = refused(save("page.png", gradient()), UsageError, min_pixels=least, max_pixels=most)
    assert f"min pixels is {least}: give a number of pixels from 1 to {most or 1 << 26}" in message


def test_the_room_does_not_import_torch():
    code = (
        "import sys; from ecokv_cli.sample import images, prompts, shipped, templates; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'matplotlib', 'scipy', 'sklearn')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, env=os.environ).returncode == 0
