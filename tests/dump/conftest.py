import pytest
import torch
from small_dump import LAYERS, manifest, tensors

from ecokv_cli.dump.writer import LayerWriter, fresh_folder


@pytest.fixture
def write(tmp_path):
    """Write a small dump and return its folder."""

    def make(sample="page", dtype=torch.float32, change=lambda index, found: found):
        folder = tmp_path / "run" / "dump" / sample
        with fresh_folder(folder, force=True) as partial:
            writer = LayerWriter(partial)
            for index in range(LAYERS):
                writer.add(index, change(index, tensors(index, dtype)), 0.25 + index)
            writer.finish(manifest(writer.records, sample))
        return folder

    return make
