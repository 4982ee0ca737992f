"""What `evicted(...)` refuses: other ways to generate, caches and masks it cannot know, settings that do not fit."""

from copy import deepcopy
from inspect import signature

import pytest
import torch
from plain_generate import STEPS, generated, held, plain, prompt_of
from transformers import DynamicCache

from ecokv_cli.errors import MethodError, ModelError, UsageError
from ecokv_cli.integrations import evicted
from ecokv_cli.models.attention import switch_attention


@pytest.mark.parametrize(("options", "words"), [
    ({"num_beams": 2}, "batch of 2 sequences"),
    ({"num_return_sequences": 2, "do_sample": True}, "batch of 2 sequences"),
    ({"prefill_chunk_size": 17}, "more tokens on a cache of 17; .*no chunks"),
    ({"prompt_lookup_num_tokens": 3, "max_new_tokens": 40}, "no assistant"),
    ({"cache_implementation": "static"}, "StaticCache"),
    ({"use_cache": False}, "no cache"),
])  # fmt: skip
def test_what_generate_may_not_do(options, words, loaded_model):
    loaded = loaded_model("llama")
    with plain(loaded) as model, evicted(model, "snapkv[window=4]", budget=11):
        with pytest.raises(UsageError, match=words) as error:
            generated(model, prompt_of(loaded), **options)
        assert "\n" not in str(error.value)


def test_padding_and_filled_caches_are_refused(loaded_model):
    loaded = loaded_model("llama")
    inputs = prompt_of(loaded)
    ids = inputs["input_ids"]
    # transformers 5.24 renamed it.
    name = "cache" if "cache" in signature(type(loaded.model).forward).parameters else "past_key_values"
    hidden = torch.ones_like(ids)
    hidden[:, :3] = 0
    with plain(loaded) as model:
        filled = generated(model, inputs).past_key_values
        with evicted(model, "snapkv[window=4]", budget=11):
            with pytest.raises(UsageError, match="hides 3 positions"):
                generated(model, {"input_ids": ids, "attention_mask": hidden})
            longer = torch.cat([ids, ids], dim=1)
            with pytest.raises(UsageError, match="on a cache of"):
                generated(model, {"input_ids": longer, name: filled})
            elsewhere = DynamicCache()
            elsewhere.offloading = True
            with pytest.raises(UsageError, match="an offloaded or other cache"):
                generated(model, {**inputs, name: elsewhere})
            # An empty one of one's own is as good as generate's.
            own = DynamicCache()
            found = generated(model, {**inputs, name: own})
            assert found.past_key_values is own
            assert held(found)[0][2] == 11 + STEPS - 1


def test_what_a_block_refuses_at_once(loaded_model, model_folder):
    loaded = loaded_model("llama")
    with plain(loaded) as model:
        for spec, budget, kind, words in (
            ("snapkv[window=4]", 3, MethodError, "smaller than its window"),
            ("keydiff", 0, UsageError, "must be 1 or more"),
            ("oracle", 11, MethodError, "sees the queries of the answer"),
            ("snapkv+ecokv[rope=pre]", 11, MethodError, "keys before rotary embedding, .* write rope=post"),
            ("sparsemm", 40, MethodError, r"needs head_scores=\[3, 6\]"),
            ("nonsense", 11, MethodError, "unknown method"),
        ):
            with pytest.raises(kind, match=words), evicted(model, spec, budget):
                pass
        with pytest.raises(UsageError, match=r"found \[2, 6\]"), evicted(model, "sparsemm", 40, torch.ones(2, 6)):
            pass
        with evicted(model, "keydiff", 11), pytest.raises(UsageError, match="inside"), evicted(model, "keydiff", 11):
            pass
        with pytest.raises(UsageError, match="is no transformers model"), evicted(loaded, "keydiff", 11):
            pass
        switch_attention(model, "flex_attention")
        with pytest.raises(UsageError, match="attends with flex_attention"), evicted(model, "keydiff", 11):
            pass


def test_a_part_that_runs_past_the_watched_model_is_noticed(loaded_model):
    loaded = loaded_model("llava_next")
    with plain(loaded) as model, evicted(model, "keydiff", 11), pytest.raises(ModelError, match="without its own"):
        model.get_decoder()(input_ids=torch.tensor([[5, 6, 7]]))


def test_a_layer_that_attends_in_its_own_way_is_noticed(loaded_model, monkeypatch):
    loaded = loaded_model("llama")
    with plain(loaded) as model:
        monkeypatch.setattr(model.model.layers[1].self_attn, "config", deepcopy(model.config))
        with evicted(model, "keydiff", 11), pytest.raises(ModelError, match=r"layers \[1\] do not use"):
            generated(model, prompt_of(loaded))
