"""Prompts that need more positions than the model was made for."""

import pytest
from tiny_parts import save, text, tokenizer
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig

from ecokv_cli.dump.reader import open_dump
from ecokv_cli.errors import InputError
from ecokv_cli.models import dumping
from ecokv_cli.models.dumping import write_dump
from ecokv_cli.models.limits import position_limit
from ecokv_cli.models.loading import load_model
from ecokv_cli.models.prompting import prepare
from ecokv_cli.models.settings import DumpSettings
from ecokv_cli.sample.images import load_image
from ecokv_cli.sample.samples import Sample

PROMPT = "the total of the date"


@pytest.fixture
def notes(monkeypatch):
    lines = []
    monkeypatch.setattr(dumping.logger, "warning", lambda line, *values: lines.append(line % values))
    return lines


def dump(loaded, folder, *, prompt=PROMPT, images=(), decode=3):
    return write_dump(loaded, Sample("s", (), prompt), images, DumpSettings(5, decode, ignore_eos=True), folder / "s")


def test_learned_positions_end_where_they_end(tmp_path):
    tokens = tokenizer()
    config = GPT2Config(
        vocab_size=len(tokens), n_positions=29, n_embd=60, n_layer=3, n_head=6, bos_token_id=None,
        eos_token_id=tokens.eos_token_id,
    )  # fmt: skip
    save(tmp_path, 5, GPT2LMHeadModel, config, tokens)
    loaded = load_model(str(tmp_path))
    n = prepare(loaded, [], PROMPT).inputs["input_ids"].shape[1]
    manifest = dump(loaded, tmp_path / "fits", decode=29 - n)
    assert (len(manifest.tokens.ids), manifest.decoded.fed_back) == (n, 29 - n)
    assert open_dump(tmp_path / "fits" / "s").layer(2).keys.shape == (6, n, 10)
    with pytest.raises(InputError, match=rf"the prompt is {n} tokens \(0 of images\) and up to {30 - n} are decoded, "
                                         r"the model has 29 positions; .*\(--max-pixels\)"):  # fmt: skip
        dump(loaded, tmp_path / "too-long", decode=30 - n)
    assert not (tmp_path / "too-long").exists()


def test_rotary_positions_beyond_those_trained_are_said(loaded_model, tmp_path, notes, monkeypatch):
    loaded = loaded_model("llama")
    n = prepare(loaded, [], PROMPT).inputs["input_ids"].shape[1]
    monkeypatch.setattr(loaded.model.config, "max_position_embeddings", n + 3)
    dump(loaded, tmp_path / "fits")
    assert notes == []
    dump(loaded, tmp_path / "beyond", decode=4)
    (line,) = notes
    assert f"positions go up to {n + 4} and the model was made for {n + 3}" in line
    assert "--max-pixels" in line


def test_an_image_takes_as_many_positions_as_its_longer_side_has_cells(
    loaded_model, tmp_path, notes, monkeypatch, picture
):
    """With M-RoPE 15 image tokens are 5 positions."""
    loaded = loaded_model("shipped")
    picture.save(tmp_path / "page.png")
    images = [load_image(tmp_path / "page.png")]
    n = prepare(loaded, [picture], PROMPT).inputs["input_ids"].shape[1]
    text_config = loaded.model.config.text_config
    monkeypatch.setattr(text_config, "max_position_embeddings", n - 10 + 3)
    dump(loaded, tmp_path / "fits", images=images)
    assert notes == []
    monkeypatch.setattr(text_config, "max_position_embeddings", n - 10 + 2)
    dump(loaded, tmp_path / "beyond", images=images)
    assert len(notes) == 1


def test_scaled_rotary_embeddings_reach_further():
    tokens = tokenizer()
    plain = LlamaConfig(**text(tokens, max_position_embeddings=101))
    scaled = LlamaConfig(**text(tokens, max_position_embeddings=101, rope_parameters={
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 101,
    }))  # fmt: skip
    assert (position_limit(plain), position_limit(scaled)) == (101, 404)
