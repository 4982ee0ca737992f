"""Every fault of a dump is found, one line each."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from small_dump import KV_HEADS, LAYERS, QUERY_HEADS, STEPS, TOKENS, WINDOW, header, manifest, tensors

from ecokv_cli.dump.reader import open_dump
from ecokv_cli.dump.tensors import nonfinite_by_head, read_header
from ecokv_cli.dump.validation import Fault, faults
from ecokv_cli.dump.writer import LayerWriter, fresh_folder
from ecokv_cli.errors import DumpError


def edit(folder, change):
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def replace_tensors(folder, index, change):
    """Write a layer anew with other tensors and make size and checksum fit."""
    writer = LayerWriter(folder)
    path = folder / f"layer_{index:03d}.safetensors"
    found = load_file(path)
    change(found)
    path.unlink()
    writer.add(index, found, 0.5)
    (record,) = writer.records
    edit(folder, lambda data: data["layers"][index].update(bytes=record.bytes, sha256=record.sha256))


def texts(folder):
    found = list(faults(folder))
    assert all("\n" not in fault.found for fault in found)
    return [(fault.layer, fault.found) for fault in found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_dump_as_written_has_no_fault(write, dtype):
    folder = write(dtype=dtype)
    edit(folder, lambda data: data.update(stored_dtype=str(dtype).removeprefix("torch.")))
    assert texts(folder) == []


def test_progress_is_told_layer_by_layer(write):
    seen = []
    assert list(faults(write(), lambda done, total: seen.append((done, total)))) == []
    assert seen == [(1, LAYERS), (2, LAYERS), (3, LAYERS)]


def test_files_that_are_missing_cut_off_changed_or_unknown(write):
    folder = write()
    first, second, third = (folder / f"layer_00{i}.safetensors" for i in range(3))
    size = second.stat().st_size
    first.unlink()
    second.write_bytes(second.read_bytes()[:-3])
    content = bytearray(third.read_bytes())
    content[-5] ^= 1
    third.write_bytes(content)
    (folder / "notes.txt").touch()
    found = texts(folder)
    assert found[0] == (0, "is missing")
    assert found[1] == (1, f"has {size - 3} bytes, expected {size}")
    assert found[2][0] == 2
    assert found[2][1].startswith("has sha256 ")
    assert found[3] == (None, "is not in the manifest")
    assert len(found) == 4


def test_a_folder_in_place_of_a_layer_is_one_line(write):
    folder = write()
    path = folder / "layer_001.safetensors"
    path.unlink()
    path.mkdir()
    ((layer, text),) = texts(folder)
    assert layer == 1
    assert "bytes, expected" in text or "cannot be read" in text


@pytest.mark.parametrize(("change", "expected", "refused"), [
    (lambda t: t.pop("values"), "lacks values", True),
    (lambda t: t.update(extra=torch.zeros(2)), "holds 'extra' besides", False),
    (lambda t: t.update(keys=t["keys"][:, :-1]), f"keys is of shape [{KV_HEADS}, {TOKENS - 1}, 5], expected", True),
    (lambda t: t.update(keys=t["keys"].half()), "keys is of kind F16, expected F32", False),
    (lambda t: t.update(values=torch.tensor(0.5)), "values is of shape [], expected", True),
    (lambda t: t.update(decode_values=t["decode_values"][..., :-1]), "decode_values is of shape", True),
    (lambda t: t.update(window_queries=t["window_queries"][:2]), f"expected [{QUERY_HEADS}, {WINDOW}, 5]", True),
    (lambda t: t.update(decode_queries=t["decode_queries"][:, :1]), f"expected [{QUERY_HEADS}, {STEPS}, 5]", True),
])  # fmt: skip
def test_tensors_that_do_not_fit_the_manifest(write, change, expected, refused):
    folder = write()
    replace_tensors(folder, 1, change)
    ((layer, text),) = texts(folder)
    assert layer == 1
    assert expected in text
    if refused:
        with pytest.raises(DumpError, match=r"layer 1(:| holds no)"):
            open_dump(folder).layer(1)
    else:
        assert open_dump(folder).layer(1).tokens == TOKENS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_numbers_that_are_not_finite_are_named_by_layer_and_head(write, dtype):
    def spoil(index, found):
        if index == 2:
            found["keys"][1, 4, 2] = torch.nan
            found["window_queries"][5, :2, 0] = -torch.inf
            found["window_queries"][0, 1, 3] = torch.inf
        return found

    folder = write(dtype=dtype, change=spoil)
    edit(folder, lambda data: data.update(stored_dtype=str(dtype).removeprefix("torch.")))
    found = list(faults(folder))
    assert sorted((f.layer, f.head, f.found) for f in found) == [
        (2, 0, "window_queries, query head 0: 1 NaN or infinite numbers"),
        (2, 1, "keys, KV head 1: 1 NaN or infinite numbers"),
        (2, 5, "window_queries, query head 5: 2 NaN or infinite numbers"),
    ]
    assert all(isinstance(f, Fault) and f.file == "layer_002.safetensors" and f.sample == "page" for f in found)


def test_the_largest_and_smallest_numbers_of_each_kind_are_finite(tmp_path):
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        limits = torch.finfo(dtype)
        numbers = torch.tensor([[limits.max, limits.min], [limits.tiny, 0.0], [torch.nan, torch.inf]], dtype=dtype)
        save_file({"x": numbers}, tmp_path / "x.safetensors")
        (tensor,) = read_header(tmp_path / "x.safetensors")
        assert list(nonfinite_by_head(tmp_path / "x.safetensors", tensor)) == [(2, 2)]


@pytest.mark.parametrize("shape", [(), (1,) * 70, (0, 3), (5, 0)])
def test_tensors_of_odd_shapes_are_looked_through(tmp_path, shape):
    count = int(np.prod(shape))
    path = tmp_path / "x.safetensors"
    entry = {"x": {"dtype": "F32", "shape": list(shape), "data_offsets": [0, 4 * count]}}
    path.write_bytes(header(entry, np.full(count, np.nan, np.float32).tobytes()))
    (tensor,) = read_header(path)
    assert list(nonfinite_by_head(path, tensor)) == ([(0, 1)] if count else [])


def test_a_sliding_layer_holds_keys_and_values_of_the_end_of_the_prompt(tmp_path):
    folder, window = tmp_path / "run" / "dump" / "page", 6
    with fresh_folder(folder, force=False) as partial:
        writer = LayerWriter(partial)
        for index in range(LAYERS):
            found = tensors(index)
            if index == 1:
                found = {name: found[name][:, TOKENS - window + 1 :] for name in ("keys", "values")}
            writer.add(index, found, 0.5, window if index == 1 else None)
        writer.finish(manifest(writer.records))
    assert texts(folder) == []
    edit(folder, lambda data: data["layers"][1].update(window=window + 1))
    assert texts(folder) == [(1, f"keys is of shape [{KV_HEADS}, 5, 5], expected [{KV_HEADS}, 6, 5]")]


def test_images_are_looked_at(write):
    folder = write()
    Image.new("RGB", (7, 5)).save(folder / "image_000.png")
    image = {
        "source": "page.png", "file": "image_000.png", "format": "PNG", "sha256": "0" * 64, "original_size": [7, 5],
        "used_size": [7, 5], "notes": [],
    }  # fmt: skip
    edit(folder, lambda data: data.update(images=[image]))
    assert texts(folder) == []
    edit(folder, lambda data: data["images"][0].update(used_size=[11, 5]))
    assert texts(folder) == [(None, "is 7 x 5 pixels, expected 11 x 5")]
    (folder / "image_000.png").write_bytes(b"no image")
    ((_, text),) = texts(folder)
    assert "not an image that can be read" in text
    (folder / "image_000.png").unlink()
    ((_, text),) = texts(folder)
    assert "does not exist" in text


def test_a_manifest_that_cannot_be_read_and_one_of_another_sample(write):
    folder = write()
    (folder / "manifest.json").rename(folder / "kept")
    ((_, text),) = texts(folder)
    assert "no manifest.json" in text
    (folder / "kept").rename(folder / "manifest.json")
    edit(folder, lambda data: data.update(sample="other"))
    assert texts(folder) == [(None, "is of sample 'other', the folder is called 'page'")]
