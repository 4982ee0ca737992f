import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecokv_cli.sample.names import id_name, sample_name


@pytest.mark.parametrize(("source", "name"), [
    ("a/b/page 1.png", "page-1"), ("-", "sample"), ("", "sample"), ("Füße.jpg", "F-e"), ("...png", "sample"),
    ("../../etc/passwd", "passwd"), ("x" * 300 + ".png", "x" * 60),
])  # fmt: skip
def test_sample_names_are_safe_folder_names(source, name):
    assert sample_name(source) == name


@pytest.mark.parametrize(("identifier", "name"), [
    ("page-1", "page-1"), ("v1.5.001", "v1.5.001"), ("train/0007", "train-0007"), (".hidden", "hidden"),
    ("question 3?", "question-3"), ("x" * 300, "x" * 120), ("a..b", "a..b"), ("C:x", "C-x"),
])  # fmt: skip
def test_ids_become_folder_names(identifier, name):
    assert id_name(identifier) == name


@pytest.mark.parametrize("identifier", ["../x", "a/../../x", "/etc/x", "..\\x", "\\x", "C:\\x", "c:/x", "x/.."])
def test_ids_that_leave_the_folder_are_refused(identifier):
    with pytest.raises(ValueError, match="stays inside"):
        id_name(identifier)


@pytest.mark.parametrize("identifier", ["", "..", "...", "日本", "--", " "])
def test_ids_without_a_usable_character_are_refused(identifier):
    with pytest.raises(ValueError, match="at least one"):
        id_name(identifier)


@given(st.text())
def test_an_id_is_one_visible_folder_name_or_refused(identifier):
    try:
        name = id_name(identifier)
    except ValueError:
        return
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,119}", name)
