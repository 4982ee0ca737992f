"""What is written comes back, and what does not is said by field, layer and head."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from small_dump import LAYERS, manifest, tensors

from ecokv_cli.dump.reader import open_dump
from ecokv_cli.dump.schema import BoxInfo, ImageGrid, ImageInfo, LayerFile
from ecokv_cli.dump.writer import fresh_folder, require_space
from ecokv_cli.errors import DumpError, NonFiniteError, OutputError


def edit(folder, **changes):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_layers_come_back_as_stored_and_are_handed_out_in_single_precision(write, dtype):
    folder = write(dtype=dtype)
    dump = open_dump(folder)
    for layer in dump.layers(range(LAYERS)):
        for name, tensor in tensors(layer.index, dtype).items():
            found = getattr(layer, name)
            assert found.dtype == torch.float32
            assert torch.equal(found, tensor.float())
        assert layer.scaling == 0.25 + layer.index
    with safe_open(folder / "layer_001.safetensors", "pt") as file:
        assert file.get_tensor("keys").dtype == dtype


def test_the_manifest_comes_back_equal(write):
    dump = open_dump(write())
    again = dump.manifest.from_json(json.loads(json.dumps(dump.manifest.to_json())), "here")
    assert again == dump.manifest
    assert dump.manifest.tokens.by_role() == {"text": 12, "special": 1}


def test_a_manifest_of_format_1_0_is_read_without_the_fields_that_came_later(write):
    folder = write()
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    for field in ("answers", "boxes", "settings"):
        del data[field]
    path.write_text(json.dumps(data | {"schema_version": "1.0"}))
    manifest = open_dump(folder).manifest
    assert (manifest.schema_version, manifest.answers, manifest.boxes, manifest.settings) == ("1.0", (), (), {})
    del data["versions"]
    path.write_text(json.dumps(data))
    with pytest.raises(DumpError, match=r"manifest.versions is missing"):
        open_dump(folder)


def test_boxes_come_back_and_one_on_no_image_is_refused(write):
    folder = write()
    image = ["page.png", "image_000.png", "PNG", "0" * 64, [7, 5], [7, 5], []]
    names = ("source", "file", "format", "sha256", "original_size", "used_size", "notes")
    box = {"text": "61543", "image": 0, "box": [0.0, 0.2, 3 / 7, 1.0]}
    edit(folder, images=[dict(zip(names, image, strict=True))], boxes=[box], answers=["61543"])
    manifest = open_dump(folder).manifest
    assert manifest.boxes == (BoxInfo("61543", 0, (0.0, 0.2, 3 / 7, 1.0)),)
    assert manifest.answers == ("61543",)
    edit(folder, boxes=[box, box | {"image": 1}])
    with pytest.raises(DumpError, match=r"boxes\[1\].image is 1, there are 1 images"):
        open_dump(folder)


def test_no_folder_no_manifest_and_no_json_are_told_apart(tmp_path, write):
    with pytest.raises(DumpError, match=r"no manifest.json.*ecokv dump"):
        open_dump(tmp_path / "nowhere")
    folder = write()
    (folder / "manifest.json").write_text("{broken")
    with pytest.raises(DumpError, match="cannot be read"):
        open_dump(folder)
    (folder / "manifest.json").write_text("[]")
    with pytest.raises(DumpError, match="not an ecokv manifest"):
        open_dump(folder)


def test_another_major_version_is_refused_and_another_minor_read(write):
    folder = write()
    edit(folder, schema_version="2.0")
    with pytest.raises(DumpError, match=r"dump format 2.0, this ecokv reads 1\."):
        open_dump(folder)
    edit(folder, schema_version="1.7", something_new=[1])
    assert open_dump(folder).manifest.schema_version == "1.7"


@pytest.mark.parametrize(("changes", "message"), [
    ({"window": "4"}, "manifest.window is str, expected int"),
    ({"seed": True}, "manifest.seed is bool, expected int"),
    ({"layers": {}}, "manifest.layers is dict, expected a list"),
    ({"model": 3}, "manifest.model is int, expected an object"),
    ({"position_ids": [[0, 1]]}, r"position_ids\[0\] has 2 entries, expected 13"),
])  # fmt: skip
def test_an_edited_manifest_is_refused_by_field(write, changes, message):
    folder = write()
    edit(folder, **changes)
    with pytest.raises(DumpError, match=message):
        open_dump(folder)


def test_a_missing_field_is_named(write):
    folder = write()
    data = json.loads((folder / "manifest.json").read_text())
    del data["tokens"]["roles"]
    (folder / "manifest.json").write_text(json.dumps(data))
    with pytest.raises(DumpError, match=r"manifest\.tokens\.roles is missing"):
        open_dump(folder)


def test_damaged_layers_are_named_with_what_happened(write):
    folder = write()
    path = folder / "layer_001.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    with pytest.raises(DumpError, match=r"layer 1 is truncated, \d+ bytes instead of \d+"):
        open_dump(folder).layer(1)
    path.write_bytes(whole + b"x")
    with pytest.raises(DumpError, match="layer 1 is too long"):
        open_dump(folder).layer(1)
    path.write_bytes(b"\xff" * len(whole))
    with pytest.raises(DumpError, match=r"layer 1 is damaged \(its header cannot be \d+ bytes long in a file of"):
        open_dump(folder).layer(1)
    path.write_bytes(whole.replace(b'"F32"', b'"F99"', 1))
    with pytest.raises(DumpError, match=r"layer 1 is damaged \('\w+' is of kind 'F99', expected F64, F32, F16, BF16\)"):
        open_dump(folder).layer(1)
    path.unlink()
    with pytest.raises(DumpError, match="layer 1 is missing"):
        open_dump(folder).layer(1)
    assert open_dump(folder).layer(0).tokens == 13


def test_a_layer_file_outside_the_folder_is_not_read(write):
    folder = write()
    data = json.loads((folder / "manifest.json").read_text())
    data["layers"][0]["file"] = "../../../secret"
    (folder / "manifest.json").write_text(json.dumps(data))
    with pytest.raises(DumpError, match="expected the name of a file in the dump's folder"):
        open_dump(folder).layer(0)


def test_an_absent_layer_names_the_range(write):
    with pytest.raises(DumpError, match="has no layer 7; layers are 0 to 2"):
        open_dump(write()).layer(7)


@pytest.mark.parametrize(("tensor", "message"), [
    ("keys", "layer 2, KV head 1: keys holds 1 NaN"),
    ("decode_queries", "layer 2, query head 1: decode_queries holds 1 NaN"),
])  # fmt: skip
def test_non_finite_tensors_are_counted_when_written_and_refused_by_layer_and_head_when_read(write, tensor, message):
    def spoil(index, found):
        if index == 2:
            found[tensor][1, 0, 3] = torch.inf
        return found

    dump = open_dump(write(change=spoil))
    assert [r.nonfinite for r in dump.manifest.layers] == [{}, {}, {tensor: 1}]
    assert dump.layer(1).tokens == 13
    with pytest.raises(NonFiniteError, match=message):
        dump.layer(2)


def test_a_failed_write_leaves_the_old_dump_and_no_litter(write):
    folder = write()
    before = sorted(p.name for p in folder.iterdir())

    def fail():
        with fresh_folder(folder, force=True) as partial:
            (partial / "layer_000.safetensors").write_bytes(b"half")
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    assert sorted(p.name for p in folder.iterdir()) == before
    assert [p.name for p in folder.parent.iterdir()] == ["page"]


def test_existing_results_need_force(write):
    folder = write()
    with pytest.raises(OutputError, match="exists; add --force"), fresh_folder(folder, force=False):
        pass
    with fresh_folder(folder, force=True) as partial:
        (partial / "new").touch()
    assert [p.name for p in folder.iterdir()] == ["new"]
    assert [p.name for p in folder.parent.iterdir()] == ["page"]


def test_a_file_in_the_way_and_a_full_disk_are_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="a file is in the way"), fresh_folder(tmp_path / "file" / "x", force=False):
        pass
    full = OSError(28, "No space left on device")
    with pytest.raises(OutputError, match="the disk is full"), fresh_folder(tmp_path / "run", force=False):
        raise full
    with pytest.raises(OutputError, match=r"needs about \d+.* GB and .* GB are free"):
        require_space(tmp_path / "a" / "b", 10**18)


@pytest.mark.parametrize(("computed", "stored", "way_out"), [
    ("float32", "float32", ""),
    ("float16", "float16", "; dump with --dtype float32"),
    ("float32", "float16", "; dump with --store-dtype float32"),
    ("bfloat16", "float16", "; dump with --store-dtype bfloat16"),
])  # fmt: skip
def test_numbers_that_are_not_finite_are_said_with_the_way_out(computed, stored, way_out):
    record = LayerFile(2, "layer_002.safetensors", 1, "", 0.5, {"keys": 7})
    found = manifest([record], compute_dtype=computed, stored_dtype=stored)
    (line,) = found.nonfinite()
    assert line == f"layer 2: keys holds 7 NaN or infinite numbers; analysis will refuse them{way_out}"


def test_images_without_rows_and_columns_are_named():
    image = ImageInfo("page.png", "image_000.png", "PNG", "0" * 64, (7, 5), (7, 5), ())
    other = replace(image, source="second.png", file="image_001.png")
    grid = ImageGrid(0, 3, 2, 2, (0, 0, 1, 1), 0)
    assert manifest([], images=(image, other), grids=(grid, replace(grid, image=1, start=8))).unplaced() == []
    (line,) = manifest([], images=(image, other), grids=(grid,)).unplaced()
    assert line.startswith("image 1 (second.png): where its tokens look is not known for tiny, so they have no row")
