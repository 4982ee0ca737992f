"""Chat templates from files, standard input, and by name."""

import io
import sys

import pytest

from ecokv_cli.errors import InputError
from ecokv_cli.sample.templates import ChatTemplate, read_template


def test_a_file_is_read_as_it_is(tmp_path):
    path = tmp_path / "my template é.jinja"
    path.write_bytes(b"\xef\xbb\xbf{{ messages }}\r\n\xc3\xa9\n")
    assert read_template(str(path)) == ChatTemplate(str(path), "{{ messages }}\r\né\n")


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{{ 7 }}")))
    assert read_template("-") == ChatTemplate("-", "{{ 7 }}")


@pytest.mark.parametrize("name", ["default", "tool_use", "x"])
def test_what_is_no_file_is_a_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert read_template(name) == ChatTemplate(name, None)
    (tmp_path / name).write_text("text")
    assert read_template(name) == ChatTemplate(name, "text")


@pytest.mark.parametrize("name", ["no/file", "no.jinja", "./x"])
def test_what_looks_like_a_file_has_to_be_one(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"chat template .* does not exist"):
        read_template(name)


def test_a_folder_and_bytes_that_are_no_text(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        read_template(str(tmp_path))
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not UTF-8"):
        read_template(str(tmp_path / "x"))
