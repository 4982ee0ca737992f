"""The same weights and prompt through an installed kvpress and through ecokv: both must keep the same keys.

Optional: skipped where kvpress is missing.
"""

import pytest
import torch

kvpress = pytest.importorskip("kvpress", reason="kvpress is not installed", exc_type=ImportError)

from tokenizers import Tokenizer, models  # noqa: E402 - nothing is worth importing without kvpress
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from ecokv_cli.eviction.layer import Layer  # noqa: E402
from ecokv_cli.eviction.spec import parse_method  # noqa: E402
from ecokv_cli.models.capture import capture  # noqa: E402
from ecokv_cli.models.loading import load_model  # noqa: E402

VOCABULARY, TOKENS, WINDOW = 97, 52, 7
MODELS = {
    "llama, 3 query heads per KV head": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 2}),
    "llama, one KV head": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 1}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"num_key_value_heads": 3}),
}
SNAP = {"window_size": WINDOW, "kernel_size": 5}
PRESSES = {
    "snapkv": (lambda ratio: kvpress.SnapKVPress(ratio, **SNAP), f"snapkv[window={WINDOW}]"),
    "snapkv, kernel 1": (
        lambda ratio: kvpress.SnapKVPress(ratio, window_size=WINDOW, kernel_size=1),
        f"snapkv[window={WINDOW},kernel=1]",
    ),
    "keydiff": (kvpress.KeyDiffPress, "keydiff"),
    "knorm": (kvpress.KnormPress, "knorm"),
    "tova": (kvpress.TOVAPress, "tova"),
    "streaming": (lambda ratio: kvpress.StreamingLLMPress(ratio, n_sink=3), "streaming[sinks=3]"),
    "pyramidkv": (
        lambda ratio: kvpress.PyramidKVPress(ratio, **SNAP, beta=3),
        f"pyramidkv[window={WINDOW},beta=3,compat=kvpress]",
    ),
    "adakv, 0.2 safe": (
        lambda ratio: kvpress.AdaKVPress(kvpress.SnapKVPress(ratio, **SNAP)),
        f"adakv[window={WINDOW},compat=kvpress]",
    ),
    "adakv, nothing safe": (
        lambda ratio: kvpress.AdaKVPress(kvpress.SnapKVPress(ratio, **SNAP), alpha_safeguard=0.0),
        f"adakv[window={WINDOW},floor=0,compat=kvpress]",
    ),
    "adakv on keydiff": (
        lambda ratio: kvpress.AdaKVPress(kvpress.KeyDiffPress(ratio)),
        "adakv[base=keydiff,keep_window=0,compat=kvpress]",
    ),
}
RATIOS = (0.25, 0.5, 0.75)
"""Shares to remove that leave whole tokens: 39, 26 and 13 of 52."""


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """By name: a checkpoint loaded for kvpress, the same captured by ecokv, and the prompt."""
    made = {}

    def get(name):
        if name not in made:
            kind, model, heads = MODELS[name]
            folder = tmp_path_factory.mktemp("model")
            torch.manual_seed(5)
            # Weights ten times the usual size, so that attention is not nearly flat.
            model(
                kind(
                    vocab_size=VOCABULARY, hidden_size=60, intermediate_size=44, num_hidden_layers=3,
                    num_attention_heads=6, initializer_range=0.2, eos_token_id=None, bos_token_id=None, **heads,
                )
            ).save_pretrained(folder)  # fmt: skip
            words = {f"w{i}": i for i in range(VOCABULARY)}
            PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, "w0"))).save_pretrained(folder)
            # No token twice: its key norms would tie.
            inputs = {"input_ids": torch.randperm(VOCABULARY)[None, :TOKENS]}
            captured = capture(load_model(str(folder)), inputs, window=WINDOW, decode=0)
            plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").eval()
            made[name] = plain, captured, inputs["input_ids"]
        return made[name]

    return get


def theirs(model, ids, press, full):
    """Keys that kvpress left, per layer and head, as sets of rows; what AdaKV masks is taken from the full keys."""
    cache = DynamicCache()
    attentions = [layer.self_attn for layer in model.model.layers]
    for attention in attentions:
        attention.masked_key_indices = None
    with torch.no_grad(), press(model):
        model(input_ids=ids, past_key_values=cache, use_cache=True)
    kept = []
    for attention, cached, keys in zip(attentions, cache.layers, full, strict=True):
        rows = [list(head) for head in cached.keys[0].tolist()]
        if attention.masked_key_indices is not None:
            _, heads, positions = attention.masked_key_indices
            gone = set(zip(heads.tolist(), positions.tolist(), strict=True))
            rows = [
                [row for position, row in enumerate(head) if (number, position) not in gone]
                for number, head in enumerate(keys.tolist())
            ]
        kept.append([set(map(tuple, head)) for head in rows])
    return kept


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("name", PRESSES)
@pytest.mark.parametrize("model", MODELS)
def test_the_same_keys_are_kept(model, name, ratio, ready):
    plain, captured, ids = ready(model)
    build, spec = PRESSES[name]
    method, budget = parse_method(spec), int(TOKENS * (1 - ratio))
    layers = []
    for index in captured.records:
        tensors, scaling = captured.layer(index)
        layers.append(Layer(index=index, layers=len(captured.records), scaling=scaling, **tensors))
    found = theirs(plain, ids, build(ratio), [layer.keys for layer in layers])
    for layer, wanted in zip(layers, found, strict=True):
        mask = method.select(layer, budget).mask
        for head, keys in enumerate(wanted):
            assert set(map(tuple, layer.keys[head][mask[head]].tolist())) == keys
            assert len(keys) == int(mask[head].sum()) < TOKENS
