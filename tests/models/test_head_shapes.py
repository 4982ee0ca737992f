"""Heads of any size and grouping, from the model to the tables."""

import math

import pytest
import torch
from tiny_parts import save, text, tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from ecokv_cli.dump.reader import open_dump
from ecokv_cli.dump.validation import faults
from ecokv_cli.eviction.spec import parse_method, parse_methods
from ecokv_cli.models.dumping import write_dump
from ecokv_cli.models.loading import load_model
from ecokv_cli.models.settings import DumpSettings
from ecokv_cli.sample.samples import Sample
from ecokv_cli.studies.analyze import AnalyzeSettings, analyze
from ecokv_cli.studies.evict import EvictSettings, evict

METHODS = ("snapkv", "snapkv+mixkv", "snapkv+ecokv", "adakv", "pyramidkv", "keydiff", "manifoldkv", "vnorm", "oracle")


@pytest.mark.parametrize(("dim", "query_heads", "kv_heads"), [
    (72, 7, 1), (80, 8, 2), (96, 3, 3), (100, 8, 1), (256, 4, 1), (6, 14, 2),
])  # fmt: skip
def test_heads_of_any_size_and_grouping(tmp_path, dim, query_heads, kv_heads):
    tokens = tokenizer()
    shape = {"num_attention_heads": query_heads, "num_key_value_heads": kv_heads, "head_dim": dim}
    config = LlamaConfig(**text(tokens, hidden_size=28 * query_heads, num_hidden_layers=2, **shape))
    save(tmp_path, 3, LlamaForCausalLM, config, tokens)
    loaded = load_model(str(tmp_path))
    settings = DumpSettings(window=5, decode=3, ignore_eos=True)
    write_dump(loaded, Sample("s", (), "what is the total of the date?"), [], settings, tmp_path / "s")
    dump, heads = open_dump(tmp_path / "s"), tuple(range(kv_heads))
    assert list(faults(dump.folder)) == []
    assert dump.layer(1).keys.shape == (kv_heads, len(dump.manifest.tokens.ids), dim)
    boosted = parse_method("snapkv+ecokv").with_window(4)
    geometry = analyze([dump], AnalyzeSettings((0, 1), heads, boosted, 97, 0, ((0, 0),))).geometry
    assert all(math.isfinite(row["effective_rank"]) for row in geometry)
    methods = tuple(parse_methods(METHODS, 4))
    ledger = evict([dump], EvictSettings(methods, (7,), (0, 1), heads, (0, 0))).ledger
    for method in methods:
        assert sum(row["kept"] for row in ledger.where(method=method.name)) == 2 * kv_heads * 7


def test_half_precision_keys_whose_squares_are_beyond_it(tmp_path):
    """Squares of some 1e9 in a type that ends at 65,504: computed in single precision, stored as they are."""
    tokens = tokenizer()

    def swell(model):
        for layer in model.model.layers:
            layer.self_attn.k_proj.weight.data *= 1e5
            layer.self_attn.q_proj.weight.data /= 1e5

    save(tmp_path, 4, LlamaForCausalLM, LlamaConfig(**text(tokens)), tokens, swell)
    loaded = load_model(str(tmp_path))
    settings = DumpSettings(window=5, decode=3, ignore_eos=True, store_dtype="float16")
    write_dump(loaded, Sample("s", (), "what is the total of the date?"), [], settings, tmp_path / "s")
    dump = open_dump(tmp_path / "s")
    keys = dump.layer(0).keys
    assert (dump.manifest.stored_dtype, keys.dtype, dump.manifest.nonfinite()) == ("float16", torch.float32, [])
    assert keys.half().square().isinf().any()
    geometry = analyze(
        [dump], AnalyzeSettings((0, 1), (0, 1), parse_method("snapkv+ecokv").with_window(4), 97, 0, ((0, 0),))
    ).geometry
    rows = geometry.where(tensor="keys", layer=0, kv_head=0)
    wanted = keys[0].double().norm(dim=-1).mean()
    assert rows.numbers("norm_mean") == [pytest.approx(float(wanted), rel=1e-5)]
    assert all(math.isfinite(row["cos_mean"]) for row in geometry)
    methods = tuple(parse_methods(METHODS, 4))
    fidelity = evict([dump], EvictSettings(methods, (7,), (0, 1), (0, 1), (0, 0))).fidelity
    assert all(math.isfinite(row["output_error"]) and 0 < row["mass"] <= 1 for row in fidelity)
