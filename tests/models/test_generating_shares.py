"""`evicted(...)` with a share: every prompt has a cache of its own size."""

import pytest
from PIL import Image

from ecokv_cli.errors import MethodError, UsageError
from ecokv_cli.models.generating import evicted
from ecokv_cli.models.prompting import prepare


def test_every_prompt_is_cut_to_its_own_share(loaded_model):
    loaded = loaded_model("shipped")
    sizes = []
    with evicted(loaded.model, "snapkv+ecokv", budget=0.25):
        for width in (84, 140):
            image = Image.linear_gradient("L").resize((width, 84)).convert("RGB")
            inputs = prepare(loaded, [image], "what is the total?").inputs
            found = loaded.model.generate(**inputs, max_new_tokens=1, do_sample=False, return_dict_in_generate=True)
            sizes.append((inputs["input_ids"].shape[1], found.past_key_values.layers[0].keys.shape[2]))
    # A quarter, halves up.
    assert [kept for _, kept in sizes] == [(n + 2) // 4 for n, _ in sizes]
    assert sizes[0] != sizes[1]


def test_a_share_that_is_too_small_is_said_when_the_prompt_is_there(loaded_model):
    loaded = loaded_model("shipped")
    inputs = prepare(loaded, [], "what is the total?").inputs
    n = inputs["input_ids"].shape[1]
    told = rf"snapkv: budget 0\.25, which is \d+ of the prompt's {n} tokens, is smaller than its window of 32"
    with evicted(loaded.model, "snapkv", budget=0.25), pytest.raises(MethodError, match=told):
        loaded.model.generate(**inputs, max_new_tokens=1, do_sample=False)
    with pytest.raises(UsageError, match=r"budget 1\.5: a share of the prompt lies between 0 and 1"):
        evicted(loaded.model, "snapkv", budget=1.5).__enter__()
