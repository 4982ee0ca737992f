"""The shipped model's configuration, tokenizer and processor, as an ordinary checkpoint folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2VLConfig, Qwen2VLForConditionalGeneration

from ecokv_cli.tiny.documents import TILE, WORDS

try:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
except ImportError:  # older transformers 5 have one class, which needs only Pillow
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import (
        Qwen2VLImageProcessor as Qwen2VLImageProcessorPil,
    )

if TYPE_CHECKING:
    from transformers import Qwen2VLForConditionalGeneration as Model

SPECIAL = (
    "<pad>",
    "<unk>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
SPACE = "\u2581"
FILLERS = "user assistant what is the value of read give please".split()
MARKS = "? . : , -".split()
TEMPLATES = ("what is the {}?", "what is the value of {}?", "{}?", "read the {}.", "give the {}.", "the {} please.")
"""Question forms used in training; `{}` is the key word."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}"
    "{% if message['content'] is string %}{{ message['content'] if message['role'] == 'assistant' else ' ' + message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'text' %}{{ ' ' if loop.first else '' }}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)


EMBEDDING_SCALE = 4.0


def vocabulary() -> dict[str, int]:
    """Token to id: specials, the bare space, filler and key words with their leading space, digits, marks."""
    words = [SPACE, *(SPACE + w for w in FILLERS), *(SPACE + w for w in WORDS)]
    tokens = [*SPECIAL, *words, *"0123456789", *MARKS]
    return {token: i for i, token in enumerate(tokens)}


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer: lower case, single digits, anything else is ``<unk>``."""
    core = Tokenizer(models.WordLevel(vocabulary(), unk_token="<unk>"))
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    core.normalizer = normalizers.Sequence([normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always"),
            pre_tokenizers.Split(Regex(f"{SPACE}?[a-z]+|."), behavior="isolated"),
        ]
    )
    core.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|im_end|>",
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=4096,
        extra_special_tokens={
            "image_token": "<|image_pad|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
        },
        chat_template=CHAT_TEMPLATE,
    )


def build_image_processor() -> Qwen2VLImageProcessorPil:
    """Patches of 14 pixels, merged 2 x 2; larger images are scaled to at most 400 image tokens."""
    size = {"shortest_edge": 4 * TILE * TILE, "longest_edge": 400 * TILE * TILE}
    half = [0.5, 0.5, 0.5]
    return Qwen2VLImageProcessorPil(size=size, image_mean=half, image_std=half, patch_size=14, merge_size=2)


def build_model(seed: int) -> Model:
    """Randomly initialised model of the shipped shape, fp32."""
    ids = vocabulary()
    hidden = 192
    config = Qwen2VLConfig(
        text_config={
            "vocab_size": len(ids),
            "hidden_size": hidden,
            "intermediate_size": 512,
            "num_hidden_layers": 6,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<pad>"],
        },
        vision_config={
            "depth": 3,
            "embed_dim": 128,
            "hidden_size": hidden,
            "num_heads": 4,
            "mlp_ratio": 3,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "in_channels": 3,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    model = Qwen2VLForConditionalGeneration(config).float()
    # Attention writes image content of this size into the states of text; at the usual 0.02 a word is lost in it after
    # one layer. The last norm undoes the scale for the tied output layer.
    model.get_input_embeddings().weight.data.normal_(std=EMBEDDING_SCALE)
    model.get_decoder().norm.weight.data.fill_(0.05 / EMBEDDING_SCALE)
    model.generation_config.eos_token_id = ids["<|im_end|>"]
    model.generation_config.pad_token_id = ids["<pad>"]
    return model


def save(model: Model, folder: Path, dtype: torch.dtype = torch.float16) -> None:
    """Write `model` with tokenizer and processor files; half precision keeps the folder under 10 MB."""
    weights: dict[str, Any] = {name: value.to(dtype) for name, value in model.state_dict().items()}
    config = model.config
    config.dtype = dtype
    model.save_pretrained(folder, state_dict=weights)
    config.dtype = torch.float32
    build_tokenizer().save_pretrained(folder)
    build_image_processor().save_pretrained(folder)
