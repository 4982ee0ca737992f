"""Tiny random models of the Qwen-VL family: M-RoPE, images at their own size."""

from tiny_parts import image_processor, save, text
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from ecokv_cli.tiny import checkpoint


class Parts:
    """The shipped model's tokenizer with an image processor."""

    def __init__(self, tokens, patch=14):
        side = 2 * patch
        size = {"shortest_edge": 4 * side**2, "longest_edge": 400 * side**2}
        self.parts = tokens, image_processor("Qwen2VLImageProcessor")(size=size, patch_size=patch, merge_size=2)

    def save_pretrained(self, folder):
        for part in self.parts:
            part.save_pretrained(folder)


def _config(tokens, sections, **rope):
    decoder = text(tokens, num_attention_heads=4, num_key_value_heads=1, hidden_size=64)
    names = ("image_pad", "video_pad", "vision_start", "vision_end")
    ids = dict(zip(names, tokens.convert_tokens_to_ids([f"<|{name}|>" for name in names]), strict=True))
    return {
        "text_config": decoder | {
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections} | rope,
        },
        "image_token_id": ids["image_pad"], "video_token_id": ids["video_pad"],
        "vision_start_token_id": ids["vision_start"], "vision_end_token_id": ids["vision_end"],
    }  # fmt: skip


def qwen2_vl(folder):
    """One KV head of dimension 16."""
    tokens = checkpoint.build_tokenizer()
    config = _config(tokens, [2, 3, 3])
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2}
    save(folder, 2, Qwen2VLForConditionalGeneration, Qwen2VLConfig(**config, vision_config=vision), Parts(tokens))


def qwen2_5_vl(folder):
    """A vision tower with windows of its own."""
    tokens = checkpoint.build_tokenizer()
    config = _config(tokens, [2, 3, 3])
    vision = {
        "depth": 2, "hidden_size": 32, "out_hidden_size": 64, "num_heads": 2, "intermediate_size": 40,
        "fullatt_block_indexes": [1], "window_size": 56,
    }  # fmt: skip
    save(
        folder, 31, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLConfig(**config, vision_config=vision), Parts(tokens)
    )


def qwen3_vl(folder):
    """Interleaved M-RoPE, vision features added to the first decoder layers; patches of 16 pixels."""
    tokens = checkpoint.build_tokenizer()
    config = _config(tokens, [4, 2, 2], mrope_interleaved=True)
    config["text_config"]["head_dim"] = 16
    vision = {
        "depth": 2, "hidden_size": 32, "out_hidden_size": 64, "num_heads": 2, "intermediate_size": 40,
        "num_position_embeddings": 64, "deepstack_visual_indexes": [0], "patch_size": 16,
    }  # fmt: skip
    save(folder, 32, Qwen3VLForConditionalGeneration, Qwen3VLConfig(**config, vision_config=vision), Parts(tokens, 16))


QWEN = {made.__name__: made for made in (qwen2_vl, qwen2_5_vl, qwen3_vl)}
