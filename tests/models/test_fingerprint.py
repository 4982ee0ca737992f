"""Digests of a model: the same from anywhere and in any dtype, another as soon as it has learned."""

import json
import shutil

import pytest
import torch

from ecokv_cli.models.fingerprint import config_digest, weights_digest
from ecokv_cli.models.loading import load_model


def test_folder_dtype_and_version_make_no_other_model(model_folder, tmp_path):
    first = load_model(str(model_folder("llama"))).info
    copy = tmp_path / "elsewhere"
    shutil.copytree(model_folder("llama"), copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"transformers_version": "5.0.0"}))
    second = load_model(str(copy), dtype="bfloat16").info
    assert first.id != second.id
    assert (first.config_sha256, first.weights_sha256) == (second.config_sha256, second.weights_sha256)
    assert first.identity.told_apart(second.identity) is None


def test_every_parameter_counts(loaded_model):
    model = loaded_model("llama").model
    before = weights_digest(model)
    for parameter in model.parameters():
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.mul_(1.01)
        assert weights_digest(model) != before
        with torch.no_grad():
            parameter.copy_(kept)
    assert weights_digest(model) == before


def test_what_is_not_in_memory_is_left_out():
    with torch.device("meta"):
        model = torch.nn.Linear(3, 5)
    assert weights_digest(model) == ""


@pytest.mark.parametrize("changed", [{"layers": 3}, {"text_config": {"heads": 5, "dtype": "x"}}, {"rope": 1e6}])
def test_the_configuration_counts_but_for_how_it_was_loaded(changed):
    config = {"layers": 2, "text_config": {"heads": 3, "dtype": "float32"}, "_name_or_path": "/a", "dtype": "float32"}
    moved = {"layers": 2, "text_config": {"heads": 3, "dtype": None}, "_name_or_path": "/b", "torch_dtype": "float16"}
    assert config_digest(config) == config_digest(moved)
    assert config_digest(config) != config_digest(config | changed)
