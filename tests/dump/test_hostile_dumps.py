"""Dumps that were made to deceive, or damaged at random: a fault or one line, never a crash."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from small_dump import LAYERS, header, manifest, tensors

from ecokv_cli.dump.reader import open_dump
from ecokv_cli.dump.tensors import read_header
from ecokv_cli.dump.validation import faults
from ecokv_cli.dump.writer import LayerWriter, fresh_folder
from ecokv_cli.errors import DumpError

GOOD = {"x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}


@pytest.mark.parametrize(("content", "message"), [
    (b"", "header cannot be 0 bytes long in a file of 0"),
    (b"abc", "header cannot be"),
    (header(GOOD, bytes(24), length=1 << 62), "header cannot be"),
    (header(b"{broken", bytes(24)), "header is no JSON"),
    (header(b"\xff\xfe", bytes(24)), "header is no JSON"),
    (header(b"[" * 50_000, bytes(24)), "header is no JSON"),
    (header(b'{"a":' * 50_000, bytes(24)), "header is no JSON"),
    (header([1], bytes(24)), "header is a list"),
    (header({"x": 5}, bytes(24)), "'x' has no two data_offsets"),
    (header({"x": GOOD["x"] | {"data_offsets": [0, "24"]}}, bytes(24)), "'x' has no two data_offsets"),
    (header({"x": GOOD["x"] | {"data_offsets": [True, 24]}}, bytes(24)), "'x' has no two data_offsets"),
    (header({"x": GOOD["x"] | {"dtype": ["F32"]}}, bytes(24)), "'x' is of kind"),
    (header({"x": GOOD["x"] | {"dtype": "I64"}}, bytes(24)), "'x' is of kind 'I64', expected F64, F32, F16, BF16"),
    (header({"x": GOOD["x"] | {"shape": [2, -3]}}, bytes(24)), "'x' has no shape"),
    (header({"x": GOOD["x"] | {"shape": [2, 10**30]}}, bytes(24)), "where its neighbours and its shape say"),
    (header({"x": GOOD["x"] | {"data_offsets": [-24, 0]}}, bytes(24)), "where its neighbours and its shape say"),
    (header(GOOD | {"y": GOOD["x"]}, bytes(24)), "'y' does not begin and end where"),
    (header(GOOD, bytes(25)), "its tensors end at byte"),
    (header(GOOD, bytes(23)), "its tensors end at byte"),
])  # fmt: skip
def test_headers_that_make_no_sense(tmp_path, content, message):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(DumpError) as caught:
        read_header(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_header_says_what_safetensors_says(write):
    path = write() / "layer_000.safetensors"
    found = {tensor.name: tensor for tensor in read_header(path)}
    content = path.read_bytes()
    for name, expected in load_file(path).items():
        tensor = found[name]
        raw = np.frombuffer(content[tensor.begin : tensor.begin + tensor.bytes], np.float32)
        assert np.array_equal(raw.reshape(tensor.shape), expected.numpy())
    assert len(found) == len(tensors(0))


quick = settings(max_examples=150, deadline=None, derandomize=True, database=None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A small dump, and the bytes of its files."""
    folder = tmp_path_factory.mktemp("fuzz") / "page"
    with fresh_folder(folder, force=True) as partial:
        writer = LayerWriter(partial)
        for index in range(LAYERS):
            writer.add(index, tensors(index), 0.25)
        writer.finish(manifest(writer.records))
    return folder, {path.name: path.read_bytes() for path in folder.iterdir()}


@quick
@given(data=st.data())
def test_random_damage_to_a_layer_is_a_fault_or_an_error_of_ours(whole, data):
    """Size and checksum are made to fit, so that the damage reaches the parsers."""
    folder, files = whole
    content = bytearray(files["layer_001.safetensors"])
    places = st.integers(0, min(len(content), 700) - 1)
    for place in data.draw(st.lists(places, min_size=1, max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))]
    path = folder / "layer_001.safetensors"
    path.write_bytes(content)
    fitting = json.loads(files["manifest.json"])
    fitting["layers"][1]["bytes"] = len(content)
    (folder / "manifest.json").write_text(json.dumps(fitting))
    for fault in faults(folder):
        assert "\n" not in fault.found
    try:
        open_dump(folder).layer(1)
    except DumpError as error:
        assert "\n" not in str(error)  # noqa: PT017 -- the damage may also be harmless


def places(value, path=()):
    """Paths of all values inside a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(10**400), 10**400), st.floats(), st.text(max_size=7),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from(["../x", "/etc/passwd", "..", "a\\b", "C:x", "\0", "", ".hidden"]),
)  # fmt: skip


@quick
@given(data=st.data())
def test_a_manifest_edited_at_random_is_read_or_refused_and_what_is_read_can_be_used(whole, data):
    folder, files = whole
    (folder / "layer_001.safetensors").write_bytes(files["layer_001.safetensors"])
    changed = json.loads(files["manifest.json"])
    for _ in range(data.draw(st.integers(1, 2))):
        *way, last = data.draw(st.sampled_from([path for path in places(changed) if path]))
        target = changed
        for key in way:
            target = target[key]
        target[last] = data.draw(ODD)
    (folder / "manifest.json").write_text(json.dumps(changed))
    for fault in faults(folder):
        assert "\n" not in fault.found
    try:
        dump = open_dump(folder)
        for index in dump.full_layers:
            dump.layer(index)
    except DumpError as error:
        assert "\n" not in str(error)  # noqa: PT017 -- the change may also be harmless
        return
    assert {record.file for record in dump.manifest.layers} <= files.keys()
    assert dump.manifest.from_json(json.loads(json.dumps(dump.manifest.to_json())), "here") == dump.manifest


@quick
@given(st.binary(max_size=97) | st.text(max_size=97).map(lambda t: t.encode("utf-8", "surrogatepass")))
def test_any_bytes_as_a_manifest_are_refused(whole, content):
    folder, _ = whole
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(DumpError) as caught:
        open_dump(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"schema_version": ' + "9" * 5000 + "}", '{"a": ' * 100_000])
def test_json_made_to_exhaust_the_parser(whole, text):
    folder, _ = whole
    (folder / "manifest.json").write_text(text)
    with pytest.raises(DumpError, match="cannot be read"):
        open_dump(folder)
