"""Manifests: what is read, and that every fault is one line naming file, line and field."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecokv_cli.errors import InputError
from ecokv_cli.sample.manifest import read_manifest
from ecokv_cli.sample.samples import Box, Sample


@pytest.fixture
def manifest(tmp_path):
    """Write lines (bytes, text or JSON values) and return the path."""

    def write(*lines):
        path = tmp_path / "samples.jsonl"
        raw = [x if isinstance(x, bytes) else (x if isinstance(x, str) else json.dumps(x)).encode() for x in lines]
        path.write_bytes(b"\n".join(raw))
        return path

    return write


def refusal(path):
    with pytest.raises(InputError) as caught:
        read_manifest(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_every_field_is_read(manifest, tmp_path):
    path = manifest({
        "id": "a/1", "images": ["p/one.png", "/abs/two.png"], "prompt": "what?\r\nsay", "answers": ["x", "y"],
        "boxes": [{"text": "x", "box": [0, 1, 5, 7.5], "image": 1}, {"text": "t", "box": [2, 3, 11, 13]}], "seed": 5,
    })  # fmt: skip
    assert read_manifest(path) == (
        Sample(
            "a-1", (tmp_path / "p" / "one.png", Path("/abs/two.png")), "what?\nsay", ("x", "y"),
            (Box("x", (0, 1, 5, 7.5), 1), Box("t", (2, 3, 11, 13), 0)),
        ),
    )  # fmt: skip


def test_what_may_be_absent(manifest, tmp_path):
    path = manifest(
        {"prompt": "the total"},
        {"image": "p.png", "prompt": ""},
        {"id": None, "image": None, "images": [], "prompt": "x", "answers": None, "boxes": None},
    )
    assert read_manifest(path) == (
        Sample("line-0001", (), "the total"),
        Sample("line-0002", (tmp_path / "p.png",), ""),
        Sample("line-0003", (), "x"),
    )


@pytest.mark.parametrize(("answers", "text"), [(["61543", "x"], "61543"), ([], "value")])
def test_an_object_of_boxes_takes_the_answer_for_value_and_the_label_for_others(manifest, answers, text):
    boxes = {"key": [1, 2, 3, 5], "value": [7, 11, 13, 17]}
    (sample,) = read_manifest(manifest({"image": "p.png", "prompt": "x", "answers": answers, "boxes": boxes}))
    assert sample.boxes == (Box("key", (1, 2, 3, 5)), Box(text, (7, 11, 13, 17)))


def test_blank_lines_carriage_returns_and_a_byte_order_mark_are_passed_over(manifest):
    path = manifest(b"\xef\xbb\xbf", b' {"prompt": "a"}\r', b"  ", b'{"prompt": "b"}\r', b"")
    assert [(s.id, s.prompt) for s in read_manifest(path)] == [("line-0002", "a"), ("line-0004", "b")]


def test_a_line_separator_inside_a_text_ends_no_line(manifest):
    (sample,) = read_manifest(manifest('{"prompt": "a\u2028b"}'))
    assert sample.prompt == "a\u2028b"


def test_standard_input_starts_paths_at_the_working_directory(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"image": "p.png", "prompt": "x"}')))
    assert read_manifest("-")[0].images == (Path("p.png"),)


def test_a_file_called_minus_is_a_file(manifest, tmp_path):
    assert read_manifest(manifest({"image": "-", "prompt": "x"}))[0].images == (tmp_path / "-",)


GOOD = {"image": "p.png", "prompt": "x"}


@pytest.mark.parametrize(("row", "message"), [
    ('{"prompt": ', r"not JSON \(Expecting value, column 12\)"),
    (b'{"prompt": "\xff"}', r"byte 0xff is not UTF-8"),
    ([1, 2], r"found a list of 2 entries, expected an object"),
    ("9" * 5000, r"not usable as JSON"),
    ("[" * 100_000, r"not usable as JSON"),
    ({"image": "p.png"}, r"field 'prompt': found nothing, expected a text"),
    (GOOD | {"prompt": 5}, r"field 'prompt': found the number 5, expected a text"),
    ({"prompt": " \n"}, r"field 'prompt': found a blank text and no image"),
    (GOOD | {"prompt": "a\0"}, r"field 'prompt': character 2 of the prompt is the control character U\+0000"),
    (GOOD | {"prompt": "\ud800"}, r"field 'prompt': found '\\ud800' with a lone surrogate"),
    (GOOD | {"id": 7}, r"field 'id': found the number 7, expected a text"),
    (GOOD | {"id": "../x"}, r"field 'id': found '../x', expected an id that stays inside"),
    (GOOD | {"id": "日本"}, r"field 'id': found '\\u65e5\\u672c', expected at least one"),
    ({"image": {"path": "x"}, "prompt": "x"}, r"field 'image': found an object, expected a path or a list of paths"),
    ({"image": "", "prompt": "x"}, r"field 'image': found '', expected a path"),
    ({"images": ["p.png", None], "prompt": "x"}, r"field 'images\[1\]': found null, expected a path"),
    (GOOD | {"images": ["q.png"]}, r"field 'images': found both 'image' and 'images', expected one of the two"),
    (GOOD | {"answers": "x"}, r"field 'answers': found 'x', expected a list of texts"),
    (GOOD | {"answers": ["x", 61543]}, r"field 'answers\[1\]': found the number 61543, expected a text"),
    (GOOD | {"boxes": 3}, r"field 'boxes': found the number 3, expected a list of boxes, or an object"),
    (GOOD | {"boxes": {"key": [1, 2, 3]}}, r"field 'boxes.key': found a list of 3 entries, expected \[x0, y0, x1, y1"),
    (GOOD | {"boxes": {"key": [1, 2, 3, "5"]}}, r"field 'boxes.key': found '5' among the corners, expected \[x0"),
    (GOOD | {"boxes": {"key": [1, 2, True, 5]}}, r"field 'boxes.key': found true among the corners"),
    (GOOD | {"boxes": {"key": [-1, 2, 3, 5]}}, r"field 'boxes.key': found the number -1 as a corner, expected pixels"),
    (GOOD | {"boxes": {"key": [1, 2, float("nan"), 5]}}, r"found the number nan as a corner, expected pixels from 0"),
    (GOOD | {"boxes": {"key": [1, 2, float("inf"), 5]}}, r"found the number inf as a corner, expected pixels from 0"),
    (GOOD | {"boxes": {"key": [1, 2, 10**400, 5]}}, r"found the number 10+ \.\.\. as a corner, expected pixels from 0"),
    (GOOD | {"boxes": {"a\nb": [1, 2, 3]}}, r"field 'boxes.a\\nb': found a list of 3 entries"),
    (GOOD | {"boxes": {"key": [3, 2, 3, 5]}}, r"field 'boxes.key': found an empty box, expected x0 < x1"),
    (GOOD | {"boxes": {"key": [1, 5, 3, 2]}}, r"field 'boxes.key': found an empty box"),
    (GOOD | {"boxes": [[1, 2, 3, 5]]}, r"field 'boxes\[0\]': found a list of 4 entries, expected an object"),
    (GOOD | {"boxes": [{"box": [1, 2, 3, 5]}]}, r"field 'boxes\[0\].text': found null, expected a text"),
    (GOOD | {"boxes": [{"text": "a"}]}, r"field 'boxes\[0\]': found null, expected \[x0"),
    (GOOD | {"boxes": [{"text": "a", "box": [1, 2, 3, 5], "image": 1}]}, r"boxes\[0\].image': found the number 1, ex"),
    (GOOD | {"boxes": [{"text": "a", "box": [1, 2, 3, 5], "image": False}]}, r"found false, expected the number of"),
    ({"prompt": "x", "boxes": {"key": [1, 2, 3, 5]}}, r"field 'boxes': found 1 and no image"),
])  # fmt: skip
def test_a_fault_names_file_line_field_what_was_found_and_what_was_expected(manifest, row, message):
    path = manifest(GOOD, "", row, GOOD)
    found = refusal(path)
    assert found.startswith(f"manifest {str(path)!r}, line 3")
    assert re.search(message, found)


@pytest.mark.parametrize(("first", "second"), [("a", "a"), ("a b", "a-b"), ("x" * 130, "x" * 120), ("line-0003", None)])
def test_ids_must_differ_as_folder_names(manifest, first, second):
    message = refusal(manifest(GOOD | {"id": first}, "", GOOD | {"id": second}))
    assert re.search(r"line 3, field 'id': found the folder name '.*', taken by line 1, expected", message)


@pytest.mark.parametrize("lines", [[], [""], ["  ", "", "\t"]])
def test_an_empty_manifest_is_refused(manifest, lines):
    assert "holds no sample" in refusal(manifest(*lines))


def test_a_missing_manifest_is_refused(tmp_path):
    assert "no.jsonl' does not exist" in refusal(tmp_path / "no.jsonl")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=7), inner, max_size=5),
    max_leaves=13,
)
CORNERS = st.lists(st.integers(-2, 13) | VALUES, min_size=3, max_size=5)
BOXES = st.dictionaries(st.sampled_from(("key", "value")) | st.text(), CORNERS) | st.lists(
    st.fixed_dictionaries({}, optional={"text": st.text() | VALUES, "box": CORNERS, "image": st.integers(-1, 3)})
)
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.text() | VALUES,
        "image": st.text() | VALUES,
        "images": st.lists(st.text()) | VALUES,
        "prompt": st.text() | VALUES,
        "answers": st.lists(st.text()) | VALUES,
        "boxes": BOXES | VALUES,
        "other": VALUES,
    },
)


def reads_or_refuses(folder, data):
    path = folder / "samples.jsonl"
    path.write_bytes(data)
    try:
        samples, message = read_manifest(path), None
    except InputError as error:
        samples, message = (), str(error)
    if message is not None:
        assert "\n" not in message
        assert message.startswith(f"manifest {str(path)!r}")
    assert bool(samples) == (message is None)
    assert len({sample.id for sample in samples}) == len(samples)
    for sample in samples:
        assert sample.images or sample.prompt.strip()
        assert all(isinstance(answer, str) for answer in sample.answers)
        for box in sample.boxes:
            x0, y0, x1, y1 = box.box
            assert 0 <= x0 < x1 <= 1 << 31
            assert 0 <= y0 < y1 <= 1 << 31
            assert 0 <= box.image < len(sample.images)


@settings(max_examples=500, deadline=None)
@given(st.lists(ROWS | VALUES, max_size=3))
def test_any_json_gives_samples_or_one_line(tmp_path_factory, rows):
    folder = tmp_path_factory.getbasetemp()
    reads_or_refuses(folder, "\n".join(json.dumps(row) for row in rows).encode())


@settings(max_examples=300, deadline=None)
@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_give_samples_or_one_line(tmp_path_factory, data):
    reads_or_refuses(tmp_path_factory.getbasetemp(), data)
