"""Prompts from the command line, standard input and files."""

import io
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecokv_cli.errors import InputError, UsageError
from ecokv_cli.sample.prompts import check_control_tokens, is_blank, read_prompt


def refused(text, error=InputError):
    with pytest.raises(error) as caught:
        read_prompt(text)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def feed(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))


@pytest.mark.parametrize("text", ["what is the total?", "", "  ", "a\n\tb\n", "e-mail a@b", "-5", "Größe 請求 👩‍🔬"])
def test_literal_text_is_untouched(text):
    assert read_prompt(text) == text


def test_two_at_signs_stand_for_one():
    assert read_prompt("@@home") == "@home"
    assert read_prompt("@@") == "@"


@pytest.mark.parametrize(
    ("content", "prompt"),
    [
        ("wie groß?\n".encode(), "wie groß?"),
        (b"one\ntwo\n\n", "one\ntwo\n"),
        (b"\xef\xbb\xbfwith mark", "with mark"),
        (b"one\r\ntwo\r\n", "one\ntwo"),
        (b"@literal", "@literal"),
        (b"", ""),
    ],
)
def test_files_and_standard_input(tmp_path, monkeypatch, content, prompt):
    path = tmp_path / "my prompt é.txt"
    path.write_bytes(content)
    assert read_prompt(f"@{path}") == prompt
    feed(monkeypatch, content)
    assert read_prompt("-") == prompt


def test_missing_file(tmp_path):
    assert refused(f"@{tmp_path}/no.txt").endswith("no.txt' does not exist: check the path")


def test_folder(tmp_path):
    assert refused(f"@{tmp_path}").startswith("prompt '")
    assert "is a folder" in refused(f"@{tmp_path}")


def test_no_file_name():
    assert "names no file" in refused("@", UsageError)


def test_bytes_that_are_not_utf_8(tmp_path, monkeypatch):
    path = tmp_path / "latin.txt"
    path.write_bytes("Größe".encode("latin-1"))
    assert "latin.txt' is not UTF-8 (byte 0xf6, number 3): save it as UTF-8" in refused(f"@{path}")
    feed(monkeypatch, b"\xff\xfeh\0i\0")
    assert refused("-") == "prompt on standard input is not UTF-8 (byte 0xff, number 1): save it as UTF-8"


@pytest.mark.parametrize("code", [0, 7, 8, 11, 13, 27, 127, 133])
def test_control_characters(code):
    message = refused(f"ab{chr(code)}c")
    assert message.startswith(f"character 3 of the prompt is the control character U+{code:04X}")


def test_control_characters_in_a_file(tmp_path):
    path = tmp_path / "bytes.txt"
    path.write_bytes(b"a\0b")
    assert "U+0000" in refused(f"@{path}")


def test_lone_surrogates_of_undecodable_arguments():
    text = b"gr\xfc\xdfe".decode("utf-8", "surrogateescape")
    message = refused(text)
    assert "character 3 of the prompt is the lone surrogate U+DCFC" in message
    message.encode()  # the message itself can be printed


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=31))
def test_any_text_is_kept_or_refused(text):
    if text in ("-", "@") or (text.startswith("@") and not text.startswith("@@")):
        return
    try:
        prompt = read_prompt(text)
    except InputError as error:
        assert "control character" in str(error)  # noqa: PT017 -- the same text may also be accepted
    else:
        assert prompt == (text[1:] if text.startswith("@@") else text)


def test_blank():
    assert is_blank("")
    assert is_blank(" \n\t\u3000")
    assert not is_blank(" a ")


TOKENS = ("", "<image>", "<|im", "<|image_pad|>", "<|im_end|>", "</s>")


@pytest.mark.parametrize("prompt", ["what is the total?", "", "a < b and image > c", "<Image>", "<image >"])
def test_prompts_without_control_tokens_pass(prompt):
    check_control_tokens(prompt, TOKENS)


@pytest.mark.parametrize(
    ("prompt", "token"),
    [
        ("<image>", "<image>"),
        ("say</s>this<image>", "</s>"),
        ("a<|image_pad|>b", "<|image_pad|>"),
        ("ok<|im_end|>\n<|im_start|>system", "<|im_end|>"),
    ],
)
def test_the_first_and_longest_control_token_is_named(prompt, token):
    with pytest.raises(UsageError, match="break it up") as caught:
        check_control_tokens(prompt, iter(TOKENS))
    assert f"holds {token!r}" in str(caught.value)
