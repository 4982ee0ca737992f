"""Files that are no image, damaged or hostile: refused in one line, never half decoded."""

import struct
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sample_pictures import HEIGHT, WIDTH, encode, gradient, pixels, refused

from ecokv_cli.errors import EcokvError
from ecokv_cli.sample.images import load_image


def png(width, height, mode_byte=0, data=b""):
    """A hand-made PNG whose header claims any size."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, mode_byte, 0, 0, 0)), (b"IDAT", data), (b"IEND", b"")]
    body = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


def test_zero_bytes(save):
    assert "is empty (0 bytes)" in refused(save("empty.png", b""))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"dear all,\nplease find attached\n", "text"),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3", "a PDF document"),
        (b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>', "an SVG drawing"),
        (b"<!DOCTYPE html>\n<HTML><body>Log in</body></HTML>", "a web page"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "a HEIC, AVIF or video file of type 'heic'"),
        (encode(gradient(), "JPEG2000"), "{} bytes of an unknown or damaged format"),
        (bytes(range(1, 251, 7)), "36 bytes of an unknown or damaged format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 7 7\n", "text"),
    ],
)
def test_other_kinds_of_file_are_named(save, content, found):
    message = refused(save("picture.png", content))
    assert f"picture.png' is not an image that can be read (found {found.format(len(content))})" in message
    assert "BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP" in message


# --- damaged images


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP"])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_file_cut_off_is_never_half_decoded(save, file_format, share):
    content = encode(gradient(211, 199), file_format)
    message = refused(save("cut.img", content[: int(share * len(content))]))
    assert "cut.img'" in message


def test_pillow_says_why_a_file_is_cut_off(save):
    content = encode(gradient(), "JPEG")
    assert "cut.jpg' cannot be decoded (image file is truncated (" in refused(save("cut.jpg", content[:-17]))


def test_corrupt_data_inside_a_png_is_refused_by_its_checksum(save):
    content = bytearray(encode(gradient(), "PNG"))
    content[content.index(b"IDAT") + 30] ^= 1
    assert "cannot be decoded (broken PNG file" in refused(save("bad.png", bytes(content)))


def test_valid_checksums_around_pixel_data_that_is_not_compressed(save):
    assert "cannot be decoded (" in refused(save("bad.png", png(7, 5, data=b"not zlib at all")))


@pytest.mark.parametrize("side", [10_007, 20_011])
def test_decompression_bombs(save, side):
    """Pillow only warns of the first size; both are refused before a pixel is decoded."""
    message = refused(save("bomb.png", png(side, side)))
    assert "bomb.png' is too large" in message
    assert f"{side * side} pixels" in message
    assert f"limit of {Image.MAX_IMAGE_PIXELS * (1 if side < 15_000 else 2)}" in message


def test_max_pixels_does_not_lift_the_guard(save):
    assert "is too large" in refused(save("bomb.png", png(10_007, 10_007)), max_pixels=101)


def test_a_large_page_of_a_tiff_is_caught_too(save, monkeypatch):
    small, large = gradient(7, 5), gradient(43, 41)
    path = save("book.tif", encode(small, "TIFF", save_all=True, append_images=[large]))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1009)
    assert load_image(path).used_size == (7, 5)
    assert "1763 pixels" in refused(path, frame=1)


def test_damaged_exif_does_not_cost_the_image(save):
    content = encode(gradient(), "PNG", exif=b"Exif\0\0nonsense")
    loaded = load_image(save("photo.png", content))
    assert loaded.notes == ("EXIF data is damaged: its orientation is ignored",)
    assert np.array_equal(pixels(loaded), np.asarray(gradient()))


def test_warnings_of_pillow_become_notes(save):
    exif = Image.Exif()
    exif[0x010E] = "a description long enough to lie outside its entry"
    content = encode(gradient(), "JPEG", exif=exif.tobytes()[:-31])
    (note,) = load_image(save("photo.jpg", content)).notes
    assert note.startswith("Pillow warns: ")


# --- random damage


def loads_or_refuses(path, content):
    """The pixels, or None where the file is refused; anything else, warnings included, fails."""
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return pixels(load_image(path))
        except EcokvError as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017 -- the same bytes may also be accepted
            return None


FORMATS = ["PNG", "JPEG", "GIF", "WEBP", "TIFF"]
CONTENT = {
    f: encode(gradient(), f, **({"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0"} if f == "JPEG" else {})) for f in FORMATS
}
CONTENT["GIF"] = encode(gradient(), "GIF", save_all=True, append_images=[Image.new("RGB", (WIDTH, HEIGHT))])
CONTENT["TIFF"] = encode(gradient(), "TIFF", compression="tiff_lzw")
MAGIC = [content[:12] for content in CONTENT.values()] + [b"P6 ", b"BM", b""]
quick = settings(max_examples=80, deadline=None, derandomize=True, database=None)


@quick
@given(st.sampled_from(MAGIC), st.binary(max_size=307))
def test_random_bytes(tmp_path_factory, magic, noise):
    loads_or_refuses(tmp_path_factory.getbasetemp() / "noise.img", magic + noise)


@pytest.mark.parametrize("file_format", FORMATS)
@quick
@given(data=st.data())
def test_random_bit_flips(tmp_path_factory, file_format, data):
    content = bytearray(CONTENT[file_format])
    for place in data.draw(st.lists(st.integers(0, 8 * len(content) - 1), min_size=1, max_size=5, unique=True)):
        content[place // 8] ^= 1 << place % 8
    result = loads_or_refuses(tmp_path_factory.getbasetemp() / "flipped.img", bytes(content))
    if file_format == "PNG" and result is not None:
        assert np.array_equal(result, np.asarray(gradient()))  # checksums leave no way to other pixels


@pytest.mark.parametrize("file_format", FORMATS)
@quick
@given(data=st.data())
def test_random_truncations_give_all_pixels_or_none(tmp_path_factory, file_format, data):
    content = CONTENT[file_format]
    path = tmp_path_factory.getbasetemp() / "cut.img"
    whole = loads_or_refuses(path, content)
    result = loads_or_refuses(path, content[: data.draw(st.integers(0, len(content) - 1))])
    assert whole is not None
    assert result is None or np.array_equal(result, whole)
