"""Writing a dump: disks that refuse, tensors as models hand them over, the manifest last."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from folders import content, names, put
from safetensors import SafetensorError
from safetensors.torch import load_file
from small_dump import manifest, tensors

from ecokv_cli.dump import writer
from ecokv_cli.dump.writer import LayerWriter, fresh_folder, require_writable
from ecokv_cli.errors import OutputError

# --- a disk that refuses


def test_read_only_places_are_one_line(tmp_path, monkeypatch):
    def refuse(self, *_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    for attempt in (lambda: put(tmp_path / "x", ""), lambda: require_writable(tmp_path / "x", force=False)):
        with pytest.raises(OutputError, match=r"x: cannot be written \(Read-only file system\); choose another"):
            attempt()


LIMITED = """
import sys
import torch
from pathlib import Path
from ecokv_cli.dump.writer import LayerWriter, fresh_folder
from ecokv_cli.errors import OutputError
try:
    with fresh_folder(Path(sys.argv[1]), force=True) as partial:
        LayerWriter(partial).add(0, {"keys": torch.ones(2, 1009, 7)}, 0.5)
except OutputError as error:
    print(error)
    sys.exit(1)
"""


def run_limited(final, **options):
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(final)], capture_output=True, text=True, check=False, timeout=60, **options
    )


def test_a_file_that_may_not_grow_is_one_line_and_the_old_dump_stays(tmp_path):
    put(tmp_path / "x", "old")
    done = run_limited(tmp_path / "x", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == f"{tmp_path / 'x'}: cannot be written (File too large); choose another --output\n"
    assert content(tmp_path / "x") == "old"
    assert names(tmp_path) == ["x"]


def test_a_disk_that_is_really_full(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("small disks cannot be mounted here")
    try:
        put(disk / "x", "old")
        done = run_limited(disk / "x")
        assert (done.returncode, done.stderr) == (1, "")
        assert "the disk is full; nothing was replaced" in done.stdout
        assert content(disk / "x") == "old"
        assert names(disk) == ["x"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_any_other_trouble_of_the_tensor_library_is_one_line(tmp_path, monkeypatch):
    def refuse(*_):
        raise SafetensorError("Error while serializing: something new")

    monkeypatch.setattr("safetensors.torch.save_file", refuse)
    with pytest.raises(OutputError, match=r"layer_000.safetensors: cannot be written \(Error while serializing"):
        LayerWriter(tmp_path).add(0, tensors(0), 0.5)


# --- tensors as models hand them over


def test_views_parts_and_shared_tensors_are_stored_each_for_itself(tmp_path):
    whole = torch.randn(1, 23, 5)
    given = {
        "keys": whole[:, :13], "values": whole, "window_queries": whole, "decode_keys": whole[:, 13:],
        "decode_queries": whole.transpose(1, 2), "decode_values": whole[:, :0],
    }  # fmt: skip
    LayerWriter(tmp_path).add(0, given, 0.5)
    found = load_file(tmp_path / "layer_000.safetensors")
    assert found.keys() == given.keys()
    for name, tensor in given.items():
        assert torch.equal(found[name], tensor)
    numbers = sum(tensor.numel() for tensor in given.values())
    assert 4 * numbers < (tmp_path / "layer_000.safetensors").stat().st_size < 4 * numbers + 1000


def test_the_size_is_logged_before_anything_is_written(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(writer.logger, "info", lambda line, *values: lines.append(line % values))
    writer.require_space(tmp_path / "run" / "dump" / "page", 7_340_000)
    (line,) = lines
    assert "page: about 7.3 MB will be written, " in line
    assert line.endswith(" GB are free")
    assert names(tmp_path) == []


def test_the_manifest_is_the_last_thing_written(tmp_path):
    with fresh_folder(tmp_path / "x", force=False) as partial:
        kept = LayerWriter(partial)
        kept.add(0, tensors(0), 0.5)
        assert names(partial) == ["layer_000.safetensors"]
        kept.finish(manifest(kept.records))
    assert names(tmp_path / "x") == ["layer_000.safetensors", "manifest.json"]
