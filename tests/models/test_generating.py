"""`evicted(...)` around plain `generate` calls: equal to decoding on compacted caches, and undone after."""

import threading

import pytest
import torch
from plain_generate import STEPS, generated, held, plain, prompt_of, tokens_of
from tiny_parts import PROMPT as LONG
from tiny_parts import inputs_of
from tiny_text import WINDOW
from transformers import AutoModelForImageTextToText
from transformers.cache_utils import DynamicSlidingWindowLayer
from transformers.generation import BaseStreamer

from ecokv_cli.errors import ModelError, UsageError
from ecokv_cli.eviction.layer import Layer
from ecokv_cli.eviction.spec import parse_method
from ecokv_cli.integrations import evicted
from ecokv_cli.models import attention
from ecokv_cli.models import evicted as evicting
from ecokv_cli.models.capture import capture
from ecokv_cli.models.evicted import compact, decode_evicted, untouched
from ecokv_cli.tiny import SHIPPED_MODEL

SPECS = (
    "snapkv+ecokv", "adakv[window=4,floor=0]", "pyramidkv[window=4]", "sparsemm[window=4]", "streaming",
    "h2o[window=3]", "route[0-0=snapkv[window=4],1-=keydiff]",
)  # fmt: skip


def scores_of(loaded):
    shape = (loaded.info.layers, loaded.info.query_heads)
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def ours(loaded, inputs, spec, budget):
    """What `decode_evicted` gives: tokens, logits from the second on, cache bytes."""
    method = parse_method(spec)
    captured = capture(loaded, inputs, window=40, decode=0, received="h2o" in spec)
    layers = []
    for index in range(loaded.info.layers):
        if index in captured.sliding:
            layers.append(untouched(captured, index))
            continue
        tensors, scaling = captured.layer(index)
        layer = Layer(index=index, layers=loaded.info.layers, scaling=scaling, head_scores=scores_of(loaded), **tensors)
        layers.append(compact(captured, index, method.select(layer, budget)))
    return decode_evicted(loaded, captured, layers, STEPS, ignore_eos=True, keep_logits=True)


@pytest.mark.parametrize("name", ["shipped", "qwen2_vl", "llava_next", "smollm2"])
def test_greedy_tokens_and_logits_are_those_of_decode_evicted(name, loaded_model):
    loaded = loaded_model(name)
    inputs = prompt_of(loaded)
    n = inputs["input_ids"].shape[1]
    specs = SPECS if name != "smollm2" else SPECS[:1]
    wanted = [ours(loaded, inputs, spec, 13) for spec in specs]
    with plain(loaded) as model:
        whole = generated(model, inputs)
        for spec, other in zip(specs, wanted, strict=True):
            with evicted(model, spec, budget=13, head_scores=scores_of(loaded)):
                found = generated(model, inputs)
            assert tokens_of(found) == other.ids, spec
            torch.testing.assert_close(torch.cat(found.logits)[1:], other.logits, atol=1e-4, rtol=0)
            # The prompt's cache is really smaller, and as large as decode_evicted's; decoded tokens came on top.
            tensors = [t for layer in found.past_key_values.layers for t in (layer.keys, layer.values)]
            decoded = sum(t[:, :, : STEPS - 1].nbytes for t in tensors)
            padding = sum(layer.valid.nbytes for layer in found.past_key_values.layers if layer.valid is not None)
            assert sum(t.nbytes for t in tensors) - decoded + padding == other.cache_bytes
            assert found.past_key_values.get_seq_length() == n + STEPS - 1
        assert (torch.cat(whole.logits)[1:] - wanted[0].logits).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["shipped", "qwen2_vl", "llava_next", "gemma3", "paligemma"])
def test_a_budget_of_the_prompt_or_more_is_plain_generate(name, loaded_model, picture):
    loaded = loaded_model(name)
    inputs = inputs_of(loaded, picture)
    with plain(loaded) as model:
        wanted = generated(model, inputs)
        with evicted(model, "snapkv[window=4]", budget=inputs["input_ids"].shape[1]):
            found = generated(model, inputs)
        assert torch.equal(found.sequences, wanted.sequences)
        torch.testing.assert_close(found.logits, wanted.logits, atol=1e-5, rtol=0)


def test_a_model_loaded_by_transformers_alone_and_several_calls_in_one_block(loaded_model, picture):
    loaded = loaded_model("shipped")
    model = AutoModelForImageTextToText.from_pretrained(SHIPPED_MODEL).eval()
    prompts = [prompt_of(loaded), inputs_of(loaded, picture), prompt_of(loaded)]
    wanted = [ours(loaded, inputs, "snapkv+mixkv[window=4]", 11) for inputs in prompts]
    with evicted(model, "snapkv+mixkv[window=4]", budget=11):
        for inputs, other in zip(prompts, wanted, strict=True):
            found = generated(model, inputs)
            assert tokens_of(found) == other.ids
            assert {shape[2] for shape in held(found)} == {11 + STEPS - 1}


def test_a_block_leaves_the_model_as_it_was_and_after_an_exception_too(loaded_model):
    loaded = loaded_model("qwen2_vl")
    inputs = prompt_of(loaded)

    def state(model):
        hooks = [
            (name, len(part._forward_hooks), len(part._forward_pre_hooks), len(part._forward_hooks_always_called))
            for name, part in model.named_modules()
        ]
        texts = [model.config, model.config.text_config, model.config.vision_config]
        contexts = [attention._active.get(), evicting._active.get(None)]
        return hooks, [config._attn_implementation for config in texts], set(vars(model)), contexts

    with plain(loaded) as model:
        before, wanted = state(model), generated(model, inputs)
        with evicted(model, "snapkv[window=4]", budget=11):
            assert state(model) != before
            generated(model, inputs)
        assert state(model) == before
        with pytest.raises(UsageError, match="batch of 2"), evicted(model, "snapkv[window=4]", budget=11):
            generated(model, inputs, num_beams=2)
        assert state(model) == before
        again = generated(model, inputs)
    torch.testing.assert_close(again.logits, wanted.logits, atol=0, rtol=0)


def test_a_refused_call_does_not_spoil_the_next_one_in_the_block(loaded_model):
    loaded = loaded_model("llama")
    inputs = prompt_of(loaded)
    wanted = ours(loaded, inputs, "snapkv[window=4]", 11)
    with plain(loaded) as model, evicted(model, "snapkv[window=4]", budget=11):
        with pytest.raises(UsageError, match="chunks"):
            generated(model, inputs, prefill_chunk_size=17)
        assert tokens_of(generated(model, inputs)) == wanted.ids


class Stream(BaseStreamer):
    """Collects what it is given."""

    def __init__(self):
        self.tokens = []

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.ended = True


def test_sampling_follows_the_seed_and_a_streamer_in_a_thread_works(loaded_model):
    loaded = loaded_model("llama")
    inputs = prompt_of(loaded)
    found, stream = {}, Stream()
    with plain(loaded) as model, evicted(model, "snapkv[window=4]", budget=11):
        for seed in (3, 3, 4):
            torch.manual_seed(seed)
            found.setdefault(seed, []).append(tokens_of(generated(model, inputs, do_sample=True, temperature=5.0)))
        thread = threading.Thread(target=lambda: generated(model, inputs, streamer=stream))
        thread.start()
        thread.join()
        assert stream.tokens == inputs["input_ids"][0].tolist() + tokens_of(generated(model, inputs))
        assert stream.ended
    assert found[3][0] == found[3][1] != found[4][0]


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_ragged_heads_and_memories_in_both_backends(backend, loaded_model):
    loaded = loaded_model("llama", backend)
    inputs = prompt_of(loaded)
    for spec, budget in (("adakv[window=4,floor=0]", 13), ("retentive[window=2]", 17)):
        wanted = ours(loaded, inputs, spec, budget)
        with plain(loaded, backend) as model, evicted(model, spec, budget):
            found = generated(model, inputs)
        assert tokens_of(found) == wanted.ids
        torch.testing.assert_close(torch.cat(found.logits)[1:], wanted.logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["gemma3_text", "gemma3", "qwen2_window", "paligemma"])
def test_sliding_layers_stay_as_they_are_and_masks_are_minded(name, loaded_model, picture):
    loaded = loaded_model(name)
    # PaliGemma's window sees itself in both directions.
    inputs = inputs_of(loaded, picture, prompt=LONG)
    assert inputs["input_ids"].shape[1] > WINDOW
    wanted = ours(loaded, inputs, "snapkv[window=4]", 11)
    with plain(loaded) as model, evicted(model, "snapkv[window=4]", budget=11):
        found = generated(model, inputs)
    assert tokens_of(found) == wanted.ids
    torch.testing.assert_close(torch.cat(found.logits)[1:], wanted.logits, atol=1e-4, rtol=0)
    for layer in found.past_key_values.layers:
        sliding = isinstance(layer, DynamicSlidingWindowLayer)
        assert layer.keys.shape[2] == (WINDOW - 1 if sliding else 11 + STEPS - 1)


def test_a_model_of_nothing_but_windows_goes_as_far_as_they_reach(loaded_model):
    loaded = loaded_model("mistral_window")
    short = inputs_of(loaded, prompt="the total")
    n = short["input_ids"].shape[1]
    with plain(loaded) as model, evicted(model, "streaming[sinks=1]", budget=3):
        found = generated(model, short, max_new_tokens=WINDOW - n)
        assert held(found)[0][2] == 3 + WINDOW - n - 1
        with pytest.raises(ModelError, match=f"every layer is a sliding window of {WINDOW}"):
            generated(model, short, max_new_tokens=WINDOW - n + 1)
        with pytest.raises(ModelError, match="every layer is a sliding window"):
            generated(model, inputs_of(loaded, prompt=LONG))
