"""Every kind of image people really have, and its limits."""

import io

import pytest
from PIL import Image

from ecokv_cli.dump.reader import open_dump

SHORT = ("--decode", "1", "--ignore-eos")


def picture(width=84, height=56):
    return Image.linear_gradient("L").resize((width, height)).convert("RGB")


def manifest(run, sample="sample"):
    return open_dump(run / "dump" / sample).manifest


@pytest.mark.parametrize("name", ["page.png", "page.jpg", "page.gif", "page.webp", "page.tif", "page.bmp"])
def test_images_of_every_kind(ecokv, tmp_path, name):
    picture().save(tmp_path / name)
    assert ecokv("dump", name, "-p", "the total", *SHORT, "-o", "r")[0] == 0
    (image,) = manifest(tmp_path / "r", "page").images
    assert image.used_size == (84, 56)
    assert manifest(tmp_path / "r", "page").tokens.by_role()["image"] == 6


def test_a_bad_image_is_refused_before_the_model_is_looked_for(ecokv, tmp_path):
    (tmp_path / "page.png").write_bytes(b"no image")
    status, _, err = ecokv("dump", "page.png", "-p", "x", "-m", "no/such/model")
    assert status == 1
    assert err.startswith("ecokv: error: image 'page.png' is not an image that can be read")


def test_an_image_from_standard_input(ecokv, ecokv_process, tmp_path, monkeypatch):
    picture().save(tmp_path / "page.png")
    content = (tmp_path / "page.png").read_bytes()
    done = ecokv_process("dump", "-", "-p", "the total", *SHORT, "-o", "r", stdin=content)
    assert done.returncode == 0, done.stderr
    (image,) = manifest(tmp_path / "r").images
    assert (image.source, image.format) == ("-", "PNG")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    status, _, err = ecokv("dump", "-", "-p", "the total")
    assert (status, "image on standard input is empty (0 bytes)" in err) == (1, True)


def test_several_images_in_order(ecokv, tmp_path):
    for name, size in (("a.png", (84, 56)), ("b.png", (56, 112))):
        picture(*size).save(tmp_path / name)
    assert ecokv("dump", "b.png", "a.png", "-p", "the total", *SHORT, "-o", "r")[0] == 0
    found = manifest(tmp_path / "r", "b")
    assert [image.source for image in found.images] == ["b.png", "a.png"]
    assert [(grid.image, grid.rows, grid.cols) for grid in found.grids] == [(0, 4, 2), (1, 2, 3)]


@pytest.mark.parametrize("name", ["film.gif", "book.tif", "film.webp"])
def test_a_frame_of_an_animation_or_page_of_a_book(ecokv, tmp_path, name):
    options = {"lossless": True} if name.endswith("webp") else {}
    shades = [Image.new("RGB", (56, 56), (shade,) * 3) for shade in (0, 120, 240)]
    shades[0].save(tmp_path / name, save_all=True, append_images=shades[1:], **options)
    for frame, shade in ((0, 0), (2, 240)):
        status, _, err = ecokv("dump", name, "--frame", frame, "-p", "the total", *SHORT, "-o", f"r{frame}")
        assert status == 0
        assert f"{name}: holds 3 frames or pages: only number {frame} is used" in err
        sample = tmp_path / f"r{frame}" / "dump" / name[:4]
        assert Image.open(sample / "image_000.png").getpixel((3, 3)) == (shade,) * 3
    status, _, err = ecokv("dump", name, "--frame", "3", "-p", "the total")
    assert status == 2
    assert "has no frame 3: its frames are 0 to 2" in err


def test_limits_of_pixels(ecokv, tmp_path):
    picture(560, 280).save(tmp_path / "page.png")
    status, _, err = ecokv("dump", "page.png", "-p", "x", *SHORT, "-o", "small", "--max-pixels", 28 * 28 * 9)
    assert status == 0
    assert "page.png: scaled from 560 x 280 to 118 x 59 pixels (at most 7056)" in err
    picture(56, 28).save(tmp_path / "tiny.png")
    status, _, err = ecokv("dump", "tiny.png", "-p", "x", *SHORT, "-o", "large", "--min_pixels", 28 * 28 * 32)
    assert status == 0
    assert "tiny.png: scaled from 56 x 28 to 224 x 112 pixels (at least 25088)" in err
    small, large = manifest(tmp_path / "small", "page"), manifest(tmp_path / "large", "tiny")
    assert small.images[0].original_size == (560, 280)
    assert small.tokens.by_role()["image"] == 8
    assert large.tokens.by_role()["image"] == 32
    for options, message in (
        (("--min-pixels", "0"), "min pixels is 0"),
        (("--min-pixels", "101", "--max-pixels", "100"), "min pixels is 101: give a number of pixels from 1 to 100"),
        (("--max-pixels", "0"), "--max-pixels 0: give a number of pixels from 1 on"),
    ):
        status, _, err = ecokv("dump", "page.png", "-p", "x", *options)
        assert (status, message in err) == (2, True)


@pytest.mark.parametrize("option", [("--frame", "1"), ("--min-pixels", "100")])
def test_what_is_for_one_sample_is_not_taken_with_a_manifest(ecokv, tmp_path, option):
    (tmp_path / "m.jsonl").write_text('{"prompt": "the total"}')
    status, _, err = ecokv("dump", "--manifest", "m.jsonl", *option)
    assert status == 2
    assert f"{option[0]} is for one sample" in err


def test_an_image_whose_tokens_have_no_known_place_is_said(ecokv, tmp_path, monkeypatch):
    from ecokv_cli.models.layout import ADAPTERS

    picture().save(tmp_path / "page.png")
    note = "image 0 (page.png): where its tokens look is not known for qwen2_vl, so they have no row and column"
    status, _, err = ecokv("dump", "page.png", "-p", "the total", *SHORT, "-o", "known")
    assert (status, note in err) == (0, False)
    assert "images" in ecokv("info", "known")[1]
    assert "without rows" not in ecokv("info", "known")[1]
    monkeypatch.delitem(ADAPTERS, "qwen2_vl")
    status, _, err = ecokv("dump", "page.png", "-p", "the total", *SHORT, "-o", "unknown")
    assert (status, note in err) == (0, True)
    assert "1, 1 without rows and columns" in ecokv("info", "unknown")[1]
    assert ecokv("analyze", "unknown", "--figures", "none")[0] == 0
    assert ecokv("evict", "unknown", "-b", "8", "-w", "4", "--figures", "none")[0] == 0


def test_a_decompression_bomb_is_refused(ecokv, tmp_path):
    import struct
    import zlib

    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 1, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"")),
        (b"IEND", b""),
    ]
    body = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    for options in ((), ("--max-pixels", "1000")):
        status, _, err = ecokv("dump", "bomb.png", "-p", "x", "-m", "no/such/model", *options)
        assert (status, err.count("\n")) == (1, 1)
        assert "bomb.png' is too large" in err
