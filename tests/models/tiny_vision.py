"""Tiny random multimodal models, one function per architecture that writes a checkpoint folder.

Image processors and processors are the real ones, read back from the folder as for any checkpoint.
"""

import json

from tiny_parts import IMAGE, image_processor, save, template, text, tokenizer
from tiny_text import KINDS, WINDOW
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3Processor,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
    InternVLConfig,
    InternVLForConditionalGeneration,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextProcessor,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaProcessor,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PaliGemmaProcessor,
    PreTrainedTokenizerFast,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

SIDE, PATCH = 28, 7
"""Pixels of a tile and of a patch: 4 x 4 patches."""
PINPOINTS = [[56, 28], [28, 56], [56, 56], [84, 28], [28, 84]]
TOWER = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": SIDE,
    "patch_size": PATCH,
}  # fmt: skip
CLIP = TOWER | {"model_type": "clip_vision_model", "projection_dim": 24}
SIGLIP = TOWER | {"model_type": "siglip_vision_model", "vision_use_head": False}


class Parts:
    """An image processor and a tokenizer as a checkpoint has them, for processors that cannot be made without video."""

    def __init__(self, kind, images, tokens, **settings):
        self.kind, self.images, self.tokens, self.settings = kind, images, tokens, settings

    def save_pretrained(self, folder):
        self.images.save_pretrained(folder)
        self.tokens.save_pretrained(folder)
        (folder / "processor_config.json").write_text(json.dumps({"processor_class": self.kind} | self.settings))


def llava(folder):
    """CLIP with centre crop, Llama."""
    tokens = tokenizer(image_token=IMAGE)
    config = LlavaConfig(
        text_config={"model_type": "llama"} | text(tokens), vision_config=CLIP, image_token_index=tokens.image_token_id,
        vision_feature_layer=-1, image_seq_length=16,
    )  # fmt: skip
    images = image_processor("CLIPImageProcessor")(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}
    )
    processor = LlavaProcessor(
        images, tokens, patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=template(),
    )  # fmt: skip
    save(folder, 21, LlavaForConditionalGeneration, config, processor)


def _llava_next(folder, seed, decoder):
    tokens = tokenizer(image_token=IMAGE)
    config = LlavaNextConfig(
        text_config=text(tokens) | decoder, vision_config=CLIP, image_token_index=tokens.image_token_id,
        image_grid_pinpoints=PINPOINTS, vision_feature_layer=-1,
    )  # fmt: skip
    images = image_processor("LlavaNextImageProcessor")(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}, image_grid_pinpoints=PINPOINTS
    )
    processor = LlavaNextProcessor(
        images, tokens, patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=template(),
    )  # fmt: skip
    save(folder, seed, LlavaNextForConditionalGeneration, config, processor)


def llava_next(folder):
    """LLaVA-NeXT on Mistral."""
    _llava_next(folder, 3, {"model_type": "mistral", "sliding_window": None})


def llava_next_vicuna(folder):
    """LLaVA-NeXT on Llama."""
    _llava_next(folder, 22, {"model_type": "llama"})


def llava_onevision(folder):
    """SigLIP, anyres up to two tiles' worth of tokens, Qwen2."""
    tokens = tokenizer(image_token=IMAGE, video_token="<video>")
    config = LlavaOnevisionConfig(
        text_config={"model_type": "qwen2"} | text(tokens), vision_config=SIGLIP, vision_aspect_ratio="anyres_max_2",
        image_token_index=tokens.image_token_id, video_token_index=tokens.video_token_id,
        image_grid_pinpoints=PINPOINTS,
    )  # fmt: skip
    images = image_processor("LlavaOnevisionImageProcessor")(
        size={"height": SIDE, "width": SIDE}, image_grid_pinpoints=PINPOINTS, do_pad=True
    )
    processor = Parts(
        "LlavaOnevisionProcessor", images, tokens, num_image_tokens=16, vision_feature_select_strategy="full",
        vision_aspect_ratio="anyres_max_2",
    )  # fmt: skip
    save(folder, 23, LlavaOnevisionForConditionalGeneration, config, processor)


def internvl(folder):
    """Up to six tiles and a thumbnail, 2 x 2 patches merged, Qwen2."""
    tokens = tokenizer(
        image="<context>", context_image_token="<context>", start_image_token="<img>", end_image_token="</img>",
        video_token="<video>",
    )  # fmt: skip
    vision = TOWER | {"image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH]}
    config = InternVLConfig(
        text_config={"model_type": "qwen2"} | text(tokens), vision_config=vision, image_seq_length=4,
        image_token_id=tokens.context_image_token_id,
    )  # fmt: skip
    images = image_processor("GotOcr2ImageProcessor")(
        size={"height": SIDE, "width": SIDE}, crop_to_patches=True, min_patches=1, max_patches=6
    )
    save(
        folder, 24, InternVLForConditionalGeneration, config,
        Parts("InternVLProcessor", images, tokens, image_seq_length=4),
    )  # fmt: skip


def _tags():
    return {f"tag_{r}_{c}": f"<row_{r}_col_{c}>" for r in range(1, 7) for c in range(1, 7)}


def _split(tokens, kind):
    images = kind(size={"longest_edge": 3 * SIDE}, max_image_size={"longest_edge": SIDE})
    config = {
        "text_config": {"model_type": "llama"} | text(tokens), "vision_config": TOWER, "scale_factor": 2,
        "image_token_id": tokens.convert_tokens_to_ids(IMAGE),
    }  # fmt: skip
    return images, config


def idefics3(folder):
    """Tiles of 28 pixels, each with its own run of 4 tokens, then the whole image; Llama."""
    tokens = tokenizer(fake="<fake_token_around_image>", image_token=IMAGE, end="<end_of_utterance>",
                       whole="<global-img>", **_tags())  # fmt: skip
    images, config = _split(tokens, image_processor("Idefics3ImageProcessor"))
    processor = Idefics3Processor(images, tokens, image_seq_len=4, chat_template=template())
    save(folder, 25, Idefics3ForConditionalGeneration, Idefics3Config(**config), processor)


def smolvlm(folder):
    """As Idefics3."""
    tokens = tokenizer(
        fake_image_token="<fake_token_around_image>", image_token=IMAGE, global_image_token="<global-img>",
        end_of_utterance_token="<end_of_utterance>", video_token="<video>", **_tags(),
    )  # fmt: skip
    images, config = _split(tokens, image_processor("SmolVLMImageProcessor"))
    save(
        folder, 26, SmolVLMForConditionalGeneration, SmolVLMConfig(**config),
        Parts("SmolVLMProcessor", images, tokens, image_seq_len=4),
    )  # fmt: skip


def idefics3_processor(folder, *_, **__):
    """Idefics3's processor on the files of a SmolVLM."""
    images = image_processor("SmolVLMImageProcessor").from_pretrained(folder)
    tokens = PreTrainedTokenizerFast.from_pretrained(folder)
    return Idefics3Processor(images, tokens, image_seq_len=4, chat_template=tokens.chat_template)


def gemma3(folder):
    """SigLIP pooled to 2 x 2 tokens; two sliding-window layers, two full ones."""
    tokens = tokenizer(image="<boi>", image_token=IMAGE, boi_token="<boi>", eoi_token="<eoi>")
    decoder = text(tokens, num_hidden_layers=4, head_dim=14, sliding_window=WINDOW, layer_types=KINDS)
    config = Gemma3Config(
        text_config=decoder, vision_config=SIGLIP, mm_tokens_per_image=4, image_token_index=tokens.image_token_id,
        boi_token_index=tokens.boi_token_id, eoi_token_index=tokens.eoi_token_id,
    )  # fmt: skip
    images = image_processor("Gemma3ImageProcessor")(size={"height": SIDE, "width": SIDE})
    processor = Gemma3Processor(images, tokens, image_seq_length=4, chat_template=template("<boi>"))

    def open_projector(model):
        """It is made with zeros, which would let nothing of an image through."""
        model.model.multi_modal_projector.mm_input_projection_weight.data.normal_(std=0.3)

    save(folder, 27, Gemma3ForConditionalGeneration, config, processor, open_projector)


def paligemma(folder):
    """SigLIP, Gemma; the whole prompt is a prefix that sees itself in both directions."""
    tokens = tokenizer(image_token=IMAGE)
    tokens.bos_token = "<|im_start|>"
    images = image_processor("SiglipImageProcessor")(size={"height": SIDE, "width": SIDE})
    images.image_seq_length = 16
    processor = PaliGemmaProcessor(images, tokens)
    processor.chat_template = tokens.chat_template = None
    config = PaliGemmaConfig(
        text_config={"model_type": "gemma"} | text(tokens, head_dim=14, vocab_size=len(tokens)),
        vision_config=SIGLIP, image_token_index=tokens.image_token_id, projection_dim=60, hidden_size=60,
        vocab_size=len(tokens),
    )  # fmt: skip
    save(folder, 28, PaliGemmaForConditionalGeneration, config, processor)


VISION = {
    made.__name__: made
    for made in (
        gemma3, llava, llava_next, llava_next_vicuna, llava_onevision, internvl, idefics3, smolvlm, paligemma,
    )
}  # fmt: skip
