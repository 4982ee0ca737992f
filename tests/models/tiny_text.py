"""Tiny random text models, one function per architecture that writes a checkpoint folder."""

from tiny_parts import save, text, tokenizer
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

WINDOW = 16
KINDS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]


def llama(folder):
    tokens = tokenizer()
    save(folder, 1, LlamaForCausalLM, LlamaConfig(**text(tokens)), tokens)


def mistral(folder):
    tokens = tokenizer()
    save(folder, 11, MistralForCausalLM, MistralConfig(**text(tokens, sliding_window=None)), tokens)


def mistral_window(folder):
    """All layers have the same window, as in Mistral 7B v0.1."""
    tokens = tokenizer()
    save(folder, 12, MistralForCausalLM, MistralConfig(**text(tokens, sliding_window=WINDOW)), tokens)


def qwen2(folder):
    tokens = tokenizer()
    save(folder, 13, Qwen2ForCausalLM, Qwen2Config(**text(tokens)), tokens)


def qwen2_window(folder):
    """The first layer is full, the others have a window."""
    tokens = tokenizer()
    config = Qwen2Config(**text(tokens, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1))
    save(folder, 14, Qwen2ForCausalLM, config, tokens)


def qwen3(folder):
    tokens = tokenizer()
    save(folder, 15, Qwen3ForCausalLM, Qwen3Config(**text(tokens, head_dim=14)), tokens)


def phi3(folder):
    tokens = tokenizer()
    save(folder, 16, Phi3ForCausalLM, Phi3Config(**text(tokens)), tokens)


def gemma3_text(folder):
    """Two sliding-window layers, two full ones."""
    tokens = tokenizer()
    config = Gemma3TextConfig(
        **text(tokens, num_hidden_layers=4, head_dim=14, sliding_window=WINDOW, layer_types=KINDS)
    )
    save(folder, 17, Gemma3ForCausalLM, config, tokens)


TEXT = {
    made.__name__: made
    for made in (llama, mistral, mistral_window, qwen2, qwen2_window, qwen3, phi3, gemma3_text)
}  # fmt: skip
