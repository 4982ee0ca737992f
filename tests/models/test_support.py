"""What cannot be analysed is refused by name and reason, most of it before any weights are read."""

import json
from dataclasses import replace

import pytest
import transformers
from tiny_parts import inputs_of, tokenizer
from tiny_refused import REFUSED
from transformers import LlamaConfig

from ecokv_cli.errors import ModelError
from ecokv_cli.models.capture import capture
from ecokv_cli.models.loading import load_model


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_analysed_is_refused_by_name_and_reason(name, tmp_path):
    write, message = REFUSED[name]
    write(tmp_path)
    with pytest.raises(ModelError, match=f"^{message}") as caught:
        load_model(str(tmp_path))
    assert "\n" not in str(caught.value)
    assert "choose another model" in str(caught.value)


@pytest.mark.parametrize(("heads", "message"), [
    ({"num_attention_heads": 6, "num_key_value_heads": 4}, "its 6 query heads cannot be shared out evenly among 4 KV"),
    ({"num_attention_heads": 5, "num_key_value_heads": 3}, "its 5 query heads cannot be shared out evenly among 3 KV"),
    # Newer versions of transformers refuse a list themselves.
    ({"num_key_value_heads": [2, 3, 2]}, "(its layers have different|cannot be loaded .*'num_key_value_heads')"),
])  # fmt: skip
def test_heads_that_do_not_add_up_are_refused(heads, message, tmp_path):
    LlamaConfig(architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_size": 60, "num_attention_heads": 6} | heads))
    tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"(LlamaForCausalLM|{tmp_path}): {message}") as caught:
        load_model(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_layers_with_heads_of_different_sizes_are_refused(tmp_path):
    """Gemma 4: its full-attention layers have larger heads, and fewer, than its sliding-window ones."""
    if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 24):
        pytest.skip("older versions do not know Gemma 4, or do not say it in the configuration")
    shape = {"num_hidden_layers": 3, "num_kv_shared_layers": 0, "head_dim": 14, "global_head_dim": 20}
    transformers.Gemma4TextConfig(architectures=["Gemma4ForCausalLM"], **shape).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="Gemma4ForCausalLM: its layers have different numbers or sizes of heads"):
        load_model(str(tmp_path))


def test_a_cache_of_another_shape_than_the_configuration_says_is_refused_by_layer(loaded_model):
    loaded = loaded_model("llama")
    for change in ({"kv_heads": 3}, {"head_dim": 11}):
        other = replace(loaded, info=replace(loaded.info, **change))
        with pytest.raises(ModelError, match=r"\(LlamaForCausalLM\): layer 0 caches keys of shape \(1, 2, .* expected"):
            capture(other, inputs_of(loaded), window=3, decode=0)
