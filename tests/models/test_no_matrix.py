"""What is allocated while a prompt goes through grows with its length and not with its square."""

import pytest
import torch
from PIL import Image
from tiny_parts import inputs_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ecokv_cli.models.capture import capture

LONG = "the total of the date " * 55
"""Some two hundred tokens for a word-level tokenizer; longer than any tensor of the tiny models is wide."""


class Largest(TorchDispatchMode):
    """Numbers in the largest tensor that any operation gives."""

    numbers = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.numbers = max(self.numbers, *sizes, 0)
        return result


def largest(loaded, inputs, **options):
    with Largest() as seen:
        capture(loaded, inputs, window=5, decode=2, ignore_eos=True, **options)
    return seen.numbers


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3", "shipped"])
def test_twice_the_prompt_takes_twice_the_memory(name, loaded_model):
    loaded = loaded_model(name)
    once, twice = (inputs_of(loaded, prompt=LONG * times) for times in (2, 4))
    n, m = once["input_ids"].shape[1], twice["input_ids"].shape[1]
    heads = loaded.info.query_heads
    assert m > 1.9 * n
    assert largest(loaded, once) * 2.1 > largest(loaded, twice)
    assert largest(loaded, twice) < heads * m * m / 4


def test_four_times_the_image_takes_four_times_the_memory(loaded_model):
    loaded = loaded_model("shipped")
    small, large = (inputs_of(loaded, Image.new("RGB", (28 * side, 28 * side))) for side in (10, 20))
    tokens = loaded.image_token_id
    assert [int((inputs["input_ids"] == tokens).sum()) for inputs in (small, large)] == [100, 400]
    assert largest(loaded, small) * 4.1 > largest(loaded, large)


def test_the_spy_sees_an_eager_model_build_the_matrix(loaded_model):
    loaded = loaded_model("llama", "eager")
    inputs = inputs_of(loaded, prompt=LONG)
    n = inputs["input_ids"].shape[1]
    assert largest(loaded, inputs) >= loaded.info.query_heads * n * n


def test_received_attention_takes_blocks_of_it(loaded_model, monkeypatch):
    loaded = loaded_model("llama")
    inputs = inputs_of(loaded, prompt=LONG * 2)
    n = inputs["input_ids"].shape[1]
    monkeypatch.setattr("ecokv_cli.models.received.BLOCK", 7)
    found = largest(loaded, inputs, received=True)
    assert loaded.info.query_heads * 7 * n <= found < loaded.info.query_heads * n * n / 4
