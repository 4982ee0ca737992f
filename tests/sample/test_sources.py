"""Paths that cannot be read, and standard input."""

import hashlib
import io
import sys
from pathlib import Path

import numpy as np
import pytest
from sample_pictures import encode, gradient, pixels, refused

from ecokv_cli.errors import UsageError
from ecokv_cli.sample import sources
from ecokv_cli.sample.images import load_image
from ecokv_cli.sample.sources import check_stdin_read_once


def test_an_odd_name_stays_on_one_line(tmp_path):
    assert r"two\nlines.png" in refused(tmp_path / "two\nlines.png")


def test_missing_file(tmp_path):
    assert refused(tmp_path / "no.png").endswith("no.png' does not exist: check the path")


def test_folder(tmp_path):
    assert "is a folder" in refused(tmp_path)


def test_nul_in_the_path():
    assert "cannot be read (" in refused("a\0b.png")


def test_unreadable_file(save, monkeypatch):
    path = save("secret.png", gradient())

    def deny(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", deny)  # permission bits do not stop the superuser
    message = refused(path)
    assert "secret.png' cannot be read (Permission denied)" in message
    assert "permissions" in message


def test_symbolic_link_to_itself(tmp_path):
    link = tmp_path / "loop.png"
    link.symlink_to(link)
    assert "loop.png' cannot be read (" in refused(link)


def test_a_file_too_long_to_be_an_image_is_not_read(save, monkeypatch):
    path = save("weights.png", gradient())
    size = path.stat().st_size
    monkeypatch.setattr(sources, "MAX_BYTES", size)
    assert load_image(path).format == "PNG"
    monkeypatch.setattr(sources, "MAX_BYTES", size - 1)
    message = refused(path)
    assert f"has {size} bytes" in message
    assert f"at most {size - 1} are read" in message


def feed(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_standard_input(monkeypatch):
    content = encode(gradient(), "PNG")
    feed(monkeypatch, content)
    loaded = load_image("-")
    assert np.array_equal(pixels(loaded), np.asarray(gradient()))
    assert (loaded.source, loaded.sha256) == ("-", hashlib.sha256(content).hexdigest())


def test_empty_standard_input(monkeypatch):
    feed(monkeypatch, b"")
    assert refused("-") == "image on standard input is empty (0 bytes): give an image file"


def test_a_path_called_minus_is_a_file(save, monkeypatch, tmp_path):
    save("-", encode(gradient(), "PNG"))
    monkeypatch.chdir(tmp_path)
    assert load_image(Path("-")).format == "PNG"


def test_standard_input_is_read_once():
    check_stdin_read_once(["a.png", Path("-"), "-"])
    with pytest.raises(UsageError, match="2 inputs are '-'"):
        check_stdin_read_once(["-", "b.png", "-"])
