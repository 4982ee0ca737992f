"""Tiny configurations of models that cannot be analysed; those refused by the configuration have no weights at all."""

from tiny_parts import save, text, tokenizer
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    DeepseekV2Config,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3nTextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    JambaConfig,
    Llama4TextConfig,
    MambaConfig,
    MambaForCausalLM,
    MllamaConfig,
    PaliGemmaConfig,
    Qwen3NextConfig,
    T5Config,
)


def _bare(config, architecture):
    """A checkpoint without weights."""

    def write(folder):
        config.architectures = [architecture]
        config.save_pretrained(folder)
        tokenizer().save_pretrained(folder)

    return write


def mamba(folder):
    tokens = tokenizer()
    config = MambaConfig(vocab_size=len(tokens), hidden_size=60, num_hidden_layers=3, state_size=4)
    save(folder, 41, MambaForCausalLM, config, tokens)


def gpt_oss(folder):
    tokens = tokenizer()
    config = GptOssConfig(**text(tokens, head_dim=10, num_local_experts=2, num_experts_per_tok=1))
    save(folder, 42, GptOssForCausalLM, config, tokens)


def bloom(folder):
    tokens = tokenizer()
    config = BloomConfig(vocab_size=len(tokens), hidden_size=60, n_layer=3, n_head=6)
    save(folder, 43, BloomForCausalLM, config, tokens)


_MLA = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 10}
REFUSED = {
    "T5": (
        _bare(T5Config(d_model=60, num_layers=3, num_heads=6), "T5ForConditionalGeneration"),
        "T5ForConditionalGeneration: it is an encoder-decoder",
    ),
    "DeepSeek-V2": (
        _bare(DeepseekV2Config(**_MLA), "DeepseekV2ForCausalLM"),
        "DeepseekV2ForCausalLM: it caches a compressed latent",
    ),
    "DeepSeek-V3": (
        _bare(DeepseekV3Config(**_MLA), "DeepseekV3ForCausalLM"),
        "DeepseekV3ForCausalLM: it caches a compressed latent",
    ),
    "Mllama": (
        _bare(MllamaConfig(text_config={"num_hidden_layers": 5, "cross_attention_layers": [1, 3]}),
              "MllamaForConditionalGeneration"),
        r"MllamaForConditionalGeneration: layers 1, 3 attend to the image by cross-attention",
    ),
    "Qwen3-Next": (
        _bare(Qwen3NextConfig(num_hidden_layers=4), "Qwen3NextForCausalLM"),
        r"Qwen3NextForCausalLM: layers 0, 1, 2 are linear_attention",
    ),
    "Jamba": (
        _bare(JambaConfig(num_hidden_layers=5, attn_layer_period=2, attn_layer_offset=1), "JambaForCausalLM"),
        r"JambaForCausalLM: layers 0, 2, 4 are \w+, which cache no keys",
    ),
    "Llama 4": (
        _bare(Llama4TextConfig(num_hidden_layers=4), "Llama4ForCausalLM"),
        "Llama4ForCausalLM: it attends within chunks of the prompt",
    ),
    "Gemma 3n": (
        _bare(Gemma3nTextConfig(num_hidden_layers=10, num_kv_shared_layers=5), "Gemma3nForCausalLM"),
        "Gemma3nForCausalLM: some of its layers use the keys of others",
    ),
    "Gemma 2": (
        _bare(Gemma2Config(num_hidden_layers=4), "Gemma2ForCausalLM"), "Gemma2ForCausalLM: it caps its attention",
    ),
    "PaliGemma 2": (
        _bare(PaliGemmaConfig(text_config={"model_type": "gemma2"}), "PaliGemmaForConditionalGeneration"),
        "PaliGemmaForConditionalGeneration: it caps its attention",
    ),
    "Mamba": (mamba, "MambaForCausalLM: (it keeps a state instead of keys|layers 0, 1, 2 are linear_attention)"),
    "GPT-OSS": (gpt_oss, "GptOssForCausalLM: its attention is more than scaled dot products"),
    "BLOOM": (bloom, "BloomForCausalLM: its attention does not use transformers' attention interface"),
}  # fmt: skip
"""Name of the architecture: how to write a checkpoint of it, and how the refusal begins."""
