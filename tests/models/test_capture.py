"""What is captured equals what transformers itself computes."""

import inspect

import pytest
import torch
from tiny_parts import PROMPT, inputs_of
from tiny_qwen import QWEN
from tiny_text import TEXT
from tiny_vision import VISION
from transformers import DynamicCache

from ecokv_cli.errors import ModelError
from ecokv_cli.eviction.attention import window_attention
from ecokv_cli.models.capture import capture
from ecokv_cli.models.layout import describe_tokens
from ecokv_cli.models.prompting import prepare

MODELS = ("shipped", *sorted((TEXT | QWEN | VISION).keys() - {"mistral_window"}), "smollm2")
"""All but the one that has no layer to analyse on a prompt of this length."""


def stock(loaded, inputs, backend, **options):
    """What the model itself gives with an unwrapped back-end, and the cache it filled."""
    model = loaded.model
    cache = DynamicCache(config=model.config)
    name = "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"
    nested = "text_config" in model.config.sub_configs
    before = model.get_decoder().config._attn_implementation
    model.set_attn_implementation({"text_config": backend} if nested else backend)
    try:
        with torch.inference_mode():
            return model(**inputs, use_cache=True, **{name: cache}, **options), cache
    finally:
        model.set_attn_implementation({"text_config": before} if nested else before)


@pytest.mark.parametrize("name", MODELS)
def test_keys_and_values_equal_the_cache_transformers_returns_bit_for_bit(name, loaded_model, picture):
    loaded = loaded_model(name)
    inputs = inputs_of(loaded, picture)
    output, cache = stock(loaded, inputs, "sdpa")
    captured = capture(loaded, inputs, window=7, decode=1, ignore_eos=True)
    assert captured.answer == [int(output.logits[0, -1].argmax())]
    assert len(captured.records) == loaded.info.layers
    for index in range(loaded.info.layers):
        tensors, _ = captured.layer(index)
        assert torch.equal(tensors["keys"], cache.layers[index].keys[0])
        assert torch.equal(tensors["values"], cache.layers[index].values[0])


@pytest.mark.parametrize("name", MODELS)
def test_window_scores_equal_the_rows_of_an_eager_model(name, loaded_model, picture):
    loaded = loaded_model(name)
    inputs = inputs_of(loaded, picture)
    rows = stock(loaded, inputs, "eager", output_attentions=True)[0].attentions
    captured = capture(loaded, inputs, window=5, decode=0)
    for index in sorted(set(range(loaded.info.layers)) - captured.sliding.keys()):
        tensors, scaling = captured.layer(index)
        n = tensors["keys"].shape[1]
        group = loaded.info.query_heads // loaded.info.kv_heads
        seen = tensors.get("window_mask")
        ours = window_attention(tensors["window_queries"], tensors["keys"], scaling, candidates=n, seen=seen)
        theirs = rows[index][0, :, -5:].mean(1).view(-1, group, n).mean(1)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_answer_equals_generate(name, loaded_model, picture):
    loaded = loaded_model(name)
    inputs = inputs_of(loaded, picture)
    captured = capture(loaded, inputs, window=3, decode=11)
    with torch.inference_mode():
        generated = loaded.model.generate(**inputs, max_new_tokens=11, do_sample=False)
    assert captured.answer == generated[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("name", ["shipped", "llava_next", "llama"])
def test_held_out_tensors_are_those_of_one_longer_prefill(name, loaded_model, picture):
    """Decoded tokens appended to the prompt and run in one go give the same queries, keys and values."""
    loaded = loaded_model(name)
    inputs = inputs_of(loaded, picture)
    first = capture(loaded, inputs, window=3, decode=5, ignore_eos=True)
    n = inputs["input_ids"].shape[1]
    longer = dict(inputs)
    extra = torch.tensor([first.answer])
    longer["input_ids"] = torch.cat([inputs["input_ids"], extra], dim=1)
    longer["attention_mask"] = torch.ones_like(longer["input_ids"])
    if "mm_token_type_ids" in inputs:
        longer["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(extra)], dim=1)
    again = capture(loaded, longer, window=5, decode=0)
    for index in range(loaded.info.layers):
        held, _ = first.layer(index)
        whole, _ = again.layer(index)
        torch.testing.assert_close(held["decode_queries"], whole["window_queries"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(held["decode_keys"], whole["keys"][:, n:], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(held["decode_values"], whole["values"][:, n:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["shipped", "llama"])
def test_received_attention_is_the_column_sum_of_the_eager_matrix(name, loaded_model, picture, monkeypatch):
    monkeypatch.setattr("ecokv_cli.models.received.BLOCK", 7)
    loaded = loaded_model(name)
    inputs = inputs_of(loaded, picture)
    rows = stock(loaded, inputs, "eager", output_attentions=True)[0].attentions
    captured = capture(loaded, inputs, window=3, decode=0, received=True)
    for index in range(loaded.info.layers):
        tensors, _ = captured.layer(index)
        torch.testing.assert_close(tensors["received_attention"], rows[index][0].sum(1), rtol=1e-4, atol=1e-4)


def test_prerope_keys_become_the_cached_keys_when_rotated(loaded_model, picture):
    loaded = loaded_model("llama")
    captured = capture(loaded, inputs_of(loaded, picture), window=3, decode=0, prerope=True)
    cos, sin = loaded.model.get_decoder().rotary_emb(torch.zeros(1), captured.positions)
    for index in range(loaded.info.layers):
        tensors, _ = captured.layer(index)
        before = tensors["prerope_keys"]
        left, right = before.chunk(2, dim=-1)
        rotated = before * cos[0] + torch.cat([-right, left], dim=-1) * sin[0]
        torch.testing.assert_close(rotated, tensors["keys"], rtol=1e-5, atol=1e-6)


def test_prerope_keys_of_m_rope_keep_their_norm(loaded_model, picture):
    loaded = loaded_model("shipped")
    captured = capture(loaded, inputs_of(loaded, picture), window=3, decode=0, prerope=True)
    tensors, _ = captured.layer(2)
    assert not torch.allclose(tensors["prerope_keys"], tensors["keys"])
    torch.testing.assert_close(tensors["prerope_keys"].norm(dim=-1), tensors["keys"].norm(dim=-1), rtol=1e-5, atol=1e-5)


def test_eager_and_sdpa_agree(loaded_model, picture):
    sdpa, eager = loaded_model("llava_next"), loaded_model("llava_next", "eager")
    inputs = inputs_of(sdpa, picture)
    one, two = (capture(m, inputs, window=3, decode=3, ignore_eos=True) for m in (sdpa, eager))
    assert one.answer == two.answer
    for index in range(sdpa.info.layers):
        torch.testing.assert_close(one.layer(index)[0]["keys"], two.layer(index)[0]["keys"], rtol=1e-4, atol=1e-5)


def test_a_short_prompt_stores_all_its_queries(loaded_model):
    loaded = loaded_model("llama")
    inputs = prepare(loaded, [], "total", template=False).inputs
    captured = capture(loaded, inputs, window=32, decode=2, ignore_eos=True)
    tensors, _ = captured.layer(0)
    assert inputs["input_ids"].shape[1] == 1
    assert tensors["window_queries"].shape == (6, 1, 10)
    assert tensors["decode_queries"].shape == (6, 2, 10)


def test_end_of_sequence_is_not_fed_back_unless_ignored(loaded_model, picture):
    loaded = loaded_model("llama")
    inputs = inputs_of(loaded, picture)
    free = capture(loaded, inputs, window=3, decode=6, ignore_eos=True)
    assert (free.steps, free.ended, len(free.answer)) == (6, False, 6)
    config = loaded.model.generation_config
    before, config.eos_token_id = config.eos_token_id, [free.answer[2]]
    try:
        stopped = capture(loaded, inputs, window=3, decode=6)
    finally:
        config.eos_token_id = before
    end = free.answer.index(free.answer[2])
    assert (stopped.answer, stopped.ended, stopped.steps) == (free.answer[: end + 1], True, end)


def test_a_text_prompt_after_an_image_is_not_moved_by_the_image(loaded_model, picture):
    loaded = loaded_model("shipped")
    text = prepare(loaded, [], PROMPT).inputs
    fresh = capture(loaded, text, window=3, decode=2, ignore_eos=True)
    capture(loaded, inputs_of(loaded, picture), window=3, decode=1)
    again = capture(loaded, text, window=3, decode=2, ignore_eos=True)
    assert torch.equal(fresh.positions, again.positions)
    assert torch.equal(fresh.layer(1)[0]["decode_keys"], again.layer(1)[0]["decode_keys"])


def test_positions_have_three_axes_where_the_model_has_them(loaded_model, picture):
    shipped = loaded_model("shipped")
    positions = capture(shipped, inputs_of(shipped, picture), window=3, decode=0).positions
    assert positions.shape[0] == 3
    # 140 x 84 pixels are 5 x 3 tiles after three text tokens.
    assert positions[:, 3:18].tolist() == [[3] * 15, [3 + i // 5 for i in range(15)], [3 + i % 5 for i in range(15)]]
    llama = loaded_model("llama")
    assert capture(llama, inputs_of(llama, picture), window=3, decode=0).positions.shape[0] == 1


@pytest.mark.parametrize("name", ["shipped", "qwen2_5_vl", "qwen3_vl"])
def test_images_have_rows_and_columns_among_the_positions_without_a_template_too(name, loaded_model, picture):
    loaded = loaded_model(name)
    inputs = prepare(loaded, [picture, picture], "the total", template=False).inputs
    tokens, grids = describe_tokens(loaded, inputs, [picture.size] * 2)
    positions = capture(loaded, inputs, window=3, decode=0).positions
    assert [tokens.strings[grid.start - 1] for grid in grids] == ["<|vision_start|>"] * 2
    for grid in grids:
        first = positions[0, grid.start]
        cells = [(first, first + r, first + c) for r in range(grid.rows) for c in range(grid.cols)]
        assert positions[:, grid.start : grid.start + len(cells)].T.tolist() == torch.tensor(cells).tolist()


def test_an_image_with_the_positions_of_a_text_is_refused(loaded_model, picture):
    """Which is what older versions of transformers do where no token marks the start of an image."""
    loaded = loaded_model("qwen2_vl")
    inputs = dict(inputs_of(loaded, picture))
    config = loaded.model.config
    inputs["input_ids"] = inputs["input_ids"].where(inputs["input_ids"] != config.vision_start_token_id, 5)
    if "mm_token_type_ids" in inputs:
        inputs["mm_token_type_ids"] = torch.zeros_like(inputs["mm_token_type_ids"])
    with pytest.raises(ModelError, match=r"have the positions of a text, because .* another --chat-template"):
        capture(loaded, inputs, window=3, decode=0)
