"""What tiny random models of every architecture share: vocabulary, template, text settings."""

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from ecokv_cli.models.prompting import prepare
from ecokv_cli.tiny import checkpoint

PROMPT = "what is the total of 61543? give the date 2026-07-31 23:59."
"""Longer than the windows of the sliding-window models, for a tokenizer that knows digits only as well."""
LAYERS, QUERY_HEADS, KV_HEADS = 3, 6, 2
IMAGE = "<image>"


def template(image=IMAGE):
    """A chat template with `image` where an image stands."""
    return (
        "{% for m in messages %}<|im_start|>{{ m['role'] }} "
        "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
        "{% for p in m['content'] %}{% if p['type'] == 'image' %}" + image + "{% else %}{{ p['text'] }}{% endif %}"
        "{% endfor %}"
        "{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
    )


def tokenizer(*, image=IMAGE, **named):
    """The shipped word-level tokenizer with further special tokens, by the attribute processors look for."""
    return PreTrainedTokenizerFast(
        tokenizer_object=checkpoint.build_tokenizer().backend_tokenizer, pad_token="<pad>", unk_token="<unk>",
        eos_token="<|im_end|>", model_input_names=["input_ids", "attention_mask"], extra_special_tokens=named,
        chat_template=template(image),
    )  # fmt: skip


def image_processor(name):
    """The class of an image processor that needs only Pillow; older transformers 5 have no other name for it."""
    return getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)


def text(tokens, **changes):
    """Settings of a decoder: 3 layers, 6 query heads on 2 KV heads of dimension 10."""
    return {
        "vocab_size": len(tokens), "hidden_size": 60, "intermediate_size": 44, "num_hidden_layers": LAYERS,
        "num_attention_heads": QUERY_HEADS, "num_key_value_heads": KV_HEADS, "eos_token_id": tokens.eos_token_id,
        "pad_token_id": 0, "bos_token_id": None,
    } | changes  # fmt: skip


def save(folder, seed, kind, config, processor, change=lambda _: None):
    """Write a randomly initialised model with its processor or tokenizer."""
    torch.manual_seed(seed)
    model = kind(config)
    change(model)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def has_template(loaded):
    """PaliGemma has none."""
    return bool(getattr(loaded.processor, "chat_template", None) or getattr(loaded.tokenizer, "chat_template", None))


def inputs_of(loaded, *images, prompt=PROMPT):
    """Inputs of one prompt, with the images where the model takes any."""
    return prepare(loaded, images if loaded.multimodal else [], prompt, template=has_template(loaded)).inputs
