"""A GGUF file is read once, quietly, and gives what transformers by itself would."""

import contextlib

import pytest
import torch
from tiny_model import build

from ecokv_cli.models import loading
from ecokv_cli.models.loading import load_model
from ecokv_cli.tiny import checkpoint

gguf = pytest.importorskip("gguf")

NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A llama of two layers in GGUF, with a byte-level vocabulary and merges."""
    from transformers import LlamaForCausalLM

    folder = tmp_path_factory.mktemp("gguf")
    model = LlamaForCausalLM.from_pretrained(build(folder / "model"))
    known, bits = [*checkpoint.vocabulary()], [*"abcdefghijklmnopqrstuvwxyzĠ", "to", "tot", "éü", "é", "ü"]
    tokens = [*known[:8], *bits, *known[8:]][: len(known)]
    path = folder / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_context_length(211)
    writer.add_embedding_length(24)
    writer.add_feed_forward_length(28)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(6)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<") else 1 for token in tokens])
    writer.add_token_merges(["t o", "to t", "é ü"])
    writer.add_eos_token_id(3)
    writer.add_bos_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    for name, tensor in model.state_dict().items():
        stem = name.removeprefix("model.").removesuffix(".weight")
        if stem.startswith("layers."):
            _, layer, part = stem.split(".", 2)
            stem = f"blk.{layer}.{NAMES[part]}"
        stem = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}.get(stem, stem)
        writer.add_tensor(f"{stem}.weight", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_same_model_as_without_the_short_cuts(file, monkeypatch):
    quick = load_model(str(file))
    monkeypatch.setattr(loading, "parsed_once", contextlib.nullcontext)
    plain = load_model(str(file))
    assert quick.info == plain.info
    assert quick.model.config.to_dict() == plain.model.config.to_dict()
    found, expected = quick.model.state_dict(), plain.model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert quick.tokenizer.get_vocab() == plain.tokenizer.get_vocab()
    assert quick.tokenizer.chat_template == plain.tokenizer.chat_template
    text = "the total of today"
    assert quick.tokenizer(text).input_ids == plain.tokenizer(text).input_ids
    assert "tot" in quick.tokenizer.tokenize(text)


def test_the_file_is_parsed_once_and_everything_is_as_before_afterwards(file, monkeypatch):
    from transformers import modeling_gguf_pytorch_utils as reading

    count = 0

    class Counted(gguf.GGUFReader):
        def __init__(self, *arguments, **options):
            nonlocal count
            count += 1
            super().__init__(*arguments, **options)

    monkeypatch.setattr(gguf, "GGUFReader", Counted)
    names = ("load_gguf_checkpoint", "_gguf_parse_value", "tqdm")
    before = [getattr(reading, name) for name in names]
    load_model(str(file))
    assert count == 1
    assert gguf.GGUFReader is Counted
    assert [getattr(reading, name) for name in names] == before


def test_a_file_that_changes_between_two_loads_is_read_again(file, tmp_path):
    other = tmp_path / "tiny.gguf"
    content = bytearray(file.read_bytes())
    other.write_bytes(content)
    one = load_model(str(other)).model.get_input_embeddings().weight.detach().clone()
    place = content.index(one[5].numpy().tobytes())
    content[place : place + 4] = b"\0\0\0\0"
    other.write_bytes(content)
    two = load_model(str(other)).model.get_input_embeddings().weight.detach()
    assert float(one[5, 0]) != 0.0 == float(two[5, 0])
    assert torch.equal(one[5, 1:], two[5, 1:])


def test_nothing_is_said_on_the_way(file, ecokv_process):
    done = ecokv_process("dump", "-m", file, "-p", "total", "--decode", "1", "-o", "r", "-q", "--no-chat-template")
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("change", [lambda c: c[:40], lambda c: b"", lambda c: b"GGUX" + c[4:], lambda c: c[:-40]])
def test_a_damaged_file_is_one_line(file, ecokv, tmp_path, change):
    (tmp_path / "bad.gguf").write_bytes(change(file.read_bytes()))
    status, out, err = ecokv("dump", "-m", "bad.gguf", "-p", "total")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "bad.gguf: " in err
