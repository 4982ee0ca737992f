"""Decoding on evicted caches: exact against generate() and against the full cache with everything evicted masked."""

from functools import cache

import pytest
import torch
from PIL import Image

from ecokv_cli.eviction.layer import Layer
from ecokv_cli.eviction.spec import parse_method
from ecokv_cli.models.capture import capture
from ecokv_cli.models.evicted import compact, decode_evicted, masked
from ecokv_cli.models.prompting import prepare

MODELS = ("shipped", "qwen2_vl", "llava_next", "llama", "smollm2")
STEPS = 6
PROMPT = "what is the total? " * 4


@cache
def captured_of(loaded):
    images = [Image.linear_gradient("L").resize((140, 84)).convert("RGB")] if loaded.multimodal else []
    inputs = prepare(loaded, images, PROMPT).inputs
    return inputs, capture(loaded, inputs, window=8, decode=STEPS, ignore_eos=True, received=True)


def layers_of(loaded, captured):
    info = loaded.info
    scores = torch.rand(info.layers, info.query_heads, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for index in range(info.layers):
        tensors, scaling = captured.layer(index)
        tensors = {name: tensor.float() for name, tensor in tensors.items()}
        yield Layer(index=index, layers=info.layers, scaling=scaling, head_scores=scores, **tensors)


def evicted(loaded, captured, spec, budget, how):
    method = parse_method(spec)
    return [how(captured, layer.index, method.select(layer, budget)) for layer in layers_of(loaded, captured)]


@pytest.mark.parametrize("name", MODELS)
def test_a_budget_of_n_or_more_decodes_what_generate_does(name, loaded_model):
    loaded = loaded_model(name)
    inputs, captured = captured_of(loaded)
    layers = evicted(loaded, captured, "snapkv[window=4]", captured.prompt_tokens, compact)
    found = decode_evicted(loaded, captured, layers, STEPS, ignore_eos=True)
    stock = loaded.model.generate(
        **inputs, max_new_tokens=STEPS, min_new_tokens=STEPS, do_sample=False, eos_token_id=-1, pad_token_id=0,
        repetition_penalty=1.0,
    )  # fmt: skip
    assert found.ids == stock[0, -STEPS:].tolist() == captured.answer
    full = sum(c.keys[:, :, : captured.prompt_tokens].nbytes * 2 for c in captured.cache.layers)
    assert found.cache_bytes == full


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("spec", [
    "snapkv[window=4]", "pyramidkv[window=4]", "adakv[window=4]", "sparsemm[window=4]", "snapkv+ecokv[window=4]",
    "streaming", "retentive[window=2]",
])  # fmt: skip
def test_an_evicted_cache_decodes_like_the_full_one_with_the_evicted_masked(name, spec, loaded_model):
    loaded = loaded_model(name)
    _, captured = captured_of(loaded)
    budget = 13 if not spec.startswith("retentive") else 40
    if budget >= captured.prompt_tokens:
        pytest.skip("the prompt is shorter than the budget")
    forced = captured.answer
    small = evicted(loaded, captured, spec, budget, compact)
    large = evicted(loaded, captured, spec, budget, masked)
    found = decode_evicted(loaded, captured, small, STEPS, ignore_eos=True, keep_logits=True, forced=forced)
    wanted = decode_evicted(loaded, captured, large, STEPS, ignore_eos=True, keep_logits=True, forced=forced)
    torch.testing.assert_close(found.logits, wanted.logits, atol=1e-4, rtol=0)
    assert found.ids == wanted.ids
    if not spec.startswith("retentive"):
        assert found.cache_bytes < wanted.cache_bytes * 0.6


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_both_backends_mask_ragged_heads(backend, loaded_model):
    loaded = loaded_model("llama", backend)
    _, captured = captured_of(loaded)
    layers = evicted(loaded, captured, "adakv[window=4,floor=0]", 13, compact)
    assert any(layer.valid is not None for layer in layers)
    found = decode_evicted(loaded, captured, layers, STEPS, ignore_eos=True, keep_logits=True, forced=captured.answer)
    other = loaded_model("llama", "eager" if backend == "sdpa" else "sdpa")
    _, again = captured_of(other)
    wanted = decode_evicted(
        other, again, evicted(other, again, "adakv[window=4,floor=0]", 13, compact), STEPS, ignore_eos=True,
        keep_logits=True, forced=captured.answer,
    )  # fmt: skip
    torch.testing.assert_close(found.logits, wanted.logits, atol=1e-4, rtol=0)


def test_evicting_changes_the_logits_and_leaves_the_capture_as_it_was(loaded_model):
    loaded = loaded_model("shipped")
    _, captured = captured_of(loaded)
    before = [layer.keys.clone() for layer in captured.cache.layers]
    whole = evicted(loaded, captured, "full", 1, compact)
    little = evicted(loaded, captured, "streaming", 8, compact)
    options = {"ignore_eos": True, "keep_logits": True, "forced": captured.answer}
    full, less = (decode_evicted(loaded, captured, layers, STEPS, **options).logits for layers in (whole, little))
    assert (full - less).abs().max() > 0.1
    for layer, keys in zip(captured.cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys)
