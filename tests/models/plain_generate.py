"""Plain `generate` calls on the small models: greedy, and as transformers alone would make them."""

from contextlib import contextmanager
from functools import cache

from PIL import Image

from ecokv_cli.models.attention import switch_attention, use_backend
from ecokv_cli.models.prompting import prepare

STEPS = 7
PROMPT = "what is the total? " * 4


@contextmanager
def plain(loaded, backend="sdpa"):
    """The transformers model alone, with its stock attention."""
    switch_attention(loaded.model, backend)
    try:
        yield loaded.model
    finally:
        use_backend(loaded.model, loaded.backend)


@cache
def prompt_of(loaded, text=PROMPT):
    images = [Image.linear_gradient("L").resize((140, 84)).convert("RGB")] if loaded.multimodal else []
    return prepare(loaded, images, text).inputs


def generated(model, inputs, **options):
    """Greedy, nothing in the way, no end of sequence."""
    options = {"max_new_tokens": STEPS, "do_sample": False, "repetition_penalty": 1.0} | options
    return model.generate(
        **inputs, eos_token_id=-1, pad_token_id=0, return_dict_in_generate=True, output_logits=True, **options
    )


def tokens_of(found):
    return found.sequences[0, -len(found.logits) :].tolist()


def held(found):
    return [tuple(layer.keys.shape) for layer in found.past_key_values.layers]
