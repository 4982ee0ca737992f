"""What people really hand in, and where it goes: images, prompts, paths, streams."""

import json
import os
import subprocess
import sys

import pytest
from PIL import Image

from ecokv_cli.cli import console
from ecokv_cli.dump.reader import open_dump

SHORT = ("--decode", "1", "--ignore-eos")


def picture(width=84, height=56):
    return Image.linear_gradient("L").resize((width, height)).convert("RGB")


def manifest(run, sample="sample"):
    return open_dump(run / "dump" / sample).manifest


# --- images


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


def test_an_image_from_standard_input(ecokv_process, tmp_path):
    picture().save(tmp_path / "page.png")
    content = (tmp_path / "page.png").read_bytes()
    done = ecokv_process("dump", "-", "-p", "the total", *SHORT, "-o", "r", stdin=content)
    assert done.returncode == 0, done.stderr
    (image,) = manifest(tmp_path / "r").images
    assert (image.source, image.format) == ("-", "PNG")
    done = ecokv_process("dump", "-", "-p", "the total", stdin=b"")
    assert (done.returncode, b"image on standard input is empty (0 bytes)" in done.stderr) == (1, True)


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


# --- prompts


@pytest.mark.parametrize("prompt", ["", "  ", "\n\t"])
def test_a_blank_prompt_goes_with_an_image_and_is_said(ecokv, tmp_path, prompt):
    picture().save(tmp_path / "page.png")
    status, _, err = ecokv("dump", "page.png", "-p", prompt, *SHORT, "-o", "r")
    assert status == 0
    assert "the prompt is blank" in err
    assert ecokv("dump", "-p", prompt)[0] == 2


def test_prompts_from_standard_input_and_files(ecokv_process, tmp_path):
    (tmp_path / "Größe der Frage.txt").write_bytes(b"\xef\xbb\xbfwhat is\r\nthe total?\r\n")
    done = ecokv_process("dump", "-p", "@Größe der Frage.txt", *SHORT, "-o", "file")
    assert done.returncode == 0, done.stderr
    done = ecokv_process("dump", "-p", "-", *SHORT, "-o", "stdin", stdin=b"what is\nthe total?\n")
    assert done.returncode == 0, done.stderr
    assert manifest(tmp_path / "file").prompt == manifest(tmp_path / "stdin").prompt == "what is\nthe total?"


@pytest.mark.parametrize("token", ["<|image_pad|>", "<|im_end|>", "<|im_start|>", "<|vision_start|>", "<|video_pad|>"])
def test_control_tokens_in_a_prompt_are_never_bound(ecokv, tmp_path, token):
    picture().save(tmp_path / "page.png")
    for images in ((), ("page.png",)):
        status, out, err = ecokv("dump", *images, "-p", f"the {token} total", "-o", "r")
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert f"the prompt holds '{token}', a control token of this model" in err
    assert not (tmp_path / "r").exists()


def test_a_broken_up_control_token_is_text(ecokv, tmp_path):
    assert ecokv("dump", "-p", "the < |im_end|> total", *SHORT, "-o", "r")[0] == 0
    ids = manifest(tmp_path / "r").tokens
    assert ids.strings.count("<|im_end|>") == 1  # the template's own


# --- names and places


@pytest.mark.parametrize("name", ["Rechnung für März 請求書", "a b c", 'it\'s "quoted" & <b>', "100%{x}", "[bold]x"])
def test_names_with_spaces_signs_and_other_alphabets(ecokv, tmp_path, name):
    picture().save(tmp_path / f"{name}.png")
    status, out, _ = ecokv("dump", f"{name}.png", "-p", "the total", *SHORT, "-o", f"run of {name}")
    assert status == 0
    assert f"run of {name}" in out
    (sample,) = (tmp_path / f"run of {name}" / "dump").iterdir()
    assert open_dump(sample).manifest.images[0].source == f"{name}.png"
    assert ecokv("validate", f"run of {name}")[0] == 0


@pytest.mark.parametrize(("place", "message"), [
    ("file", "a file is in the way of the folder"),
    ("file/deeper", "a file is in the way of the folder"),
    ("/proc/ecokv", "cannot be written ("),
])  # fmt: skip
def test_places_where_nothing_can_be_written_are_found_before_the_model_is_loaded(ecokv, tmp_path, place, message):
    (tmp_path / "file").touch()
    status, out, err = ecokv("dump", "-p", "the total", "-m", "no/such/model", "-o", place)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert message in err


def test_an_existing_dump_is_kept_without_force_and_the_model_is_not_looked_for(ecokv, run_folder):
    before = {p.name: p.read_bytes() for p in (run_folder / "dump" / "two-columns").iterdir()}
    status, _, err = ecokv("dump", "-o", run_folder, "-m", "no/such/model")
    assert (status, "two-columns exists; add --force to replace it" in err) == (1, True)
    assert {p.name: p.read_bytes() for p in (run_folder / "dump" / "two-columns").iterdir()} == before


def test_too_little_space_is_found_before_the_run(ecokv, tmp_path, monkeypatch):
    from ecokv_cli.dump import writer

    monkeypatch.setattr(writer.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    status, _, err = ecokv("dump", "-p", "the total", "-o", "r", "-q")
    assert (status, err.count("\n")) == (1, 1)
    assert "r/dump/sample: the dump needs about 0.00 GB and 0.00 GB are free; choose another disk" in err
    assert not (tmp_path / "r").exists()


def test_the_size_is_said_before_it_is_written_unless_quiet(ecokv):
    status, _, err = ecokv("dump", "-p", "the total", *SHORT, "-o", "r")
    assert status == 0
    assert "MB will be written" in err
    assert ecokv("dump", "-p", "the total", *SHORT, "-o", "s", "-q")[2] == ""


# --- streams


def test_a_full_standard_output_is_one_line():
    if not os.path.exists("/dev/full"):  # noqa: PTH110
        pytest.skip("there is no /dev/full here")
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-m", "ecokv_cli", "info", "--env"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode != 0
    assert b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_reader_that_goes_away(run_folder):
    with subprocess.Popen(
        [sys.executable, "-m", "ecokv_cli", "info", str(run_folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (0, b"")


def test_colours_only_where_they_are_asked_for(ecokv_process):
    for environment in ({}, {"NO_COLOR": "1"}, {"TERM": "dumb"}):
        done = ecokv_process("dump", "-p", "the total", "-o", "r", "--force", "-v", **environment)
        assert done.returncode == 0, done.stderr
        assert b"\x1b" not in done.stdout + done.stderr


# --- errors that were not foreseen


class OutOfMemoryError(RuntimeError):
    """As torch calls its own."""


@pytest.mark.parametrize(("error", "message"), [
    (MemoryError(), "out of memory; give a smaller image (--max-pixels) or a shorter prompt"),
    (OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "out of memory; give a smaller image"),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to"),
     "out of memory; give a smaller image"),
    (ZeroDivisionError("division\nby zero"), "ZeroDivisionError: division by zero (test_inputs.py, line "),
])  # fmt: skip
def test_any_other_error_is_one_line_too(ecokv, tmp_path, monkeypatch, error, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("ecokv_cli.models.dumping.capture", fail)
    common = ("dump", "-p", "the total", "-o", "r")
    status, out, err = ecokv(*common, "-q")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"ecokv: error: {message}")
    assert not (tmp_path / "r").exists()
    with pytest.raises(type(error)):
        ecokv(*common, "--debug")


def test_what_rooms_log_is_shown_or_not(capsys):
    import logging

    log = logging.getLogger("ecokv_cli.somewhere")
    for quiet, expected in ((False, "7 is [bold]odd[/bold]\nnote\n"), (True, "")):
        console.Screen(quiet=quiet, verbose=False, as_json=False)
        log.info("%d is [bold]odd[/bold]", 7)
        log.warning("note")
        log.debug("not shown")
        assert capsys.readouterr().err == expected


def test_json_on_stdout_stays_json_whatever_is_said_on_the_way(ecokv, tmp_path):
    picture(560, 280).save(tmp_path / "page.png")
    status, out, err = ecokv(
        "dump", "page.png", "-p", "the total", *SHORT, "-o", "r", "--json", "-v", "--max-pixels", "9000"
    )
    assert status == 0
    assert json.loads(out)["run"] == "r"
    assert "scaled from" in err
