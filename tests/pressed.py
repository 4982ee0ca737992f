"""Small models that kvpress and ecokv both run, and the cache that a press of kvpress leaves."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from ecokv_cli.eviction.layer import Layer
from ecokv_cli.models.capture import capture
from ecokv_cli.models.loading import load_model

VOCABULARY = 97
MODELS = {
    "llama, 3 query heads per KV head": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 2}),
    "llama, one KV head": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 1}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"num_key_value_heads": 3}),
}


def made(name, folder, tokens, window):
    """A checkpoint loaded by transformers, its tokenizer, and a prompt with its layers as ecokv captures them."""
    kind, model, heads = MODELS[name]
    torch.manual_seed(5)
    # Weights ten times the usual size, so that attention is not nearly flat.
    model(
        kind(
            vocab_size=VOCABULARY, hidden_size=60, intermediate_size=44, num_hidden_layers=3, num_attention_heads=6,
            initializer_range=0.2, eos_token_id=None, bos_token_id=None, **heads,
        )
    ).save_pretrained(folder)  # fmt: skip
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, "w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="w1")
    tokenizer.save_pretrained(folder)
    # No token twice: its key norms would tie.
    ids = torch.randperm(VOCABULARY)[None, :tokens]
    captured = capture(load_model(str(folder)), {"input_ids": ids}, window=window, decode=0)
    layers = []
    for index in captured.records:
        tensors, scaling = captured.layer(index)
        layers.append(Layer(index=index, layers=len(captured.records), scaling=scaling, **tensors))
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").eval()
    return plain, tokenizer, ids, layers


def pressed(model, ids, press):
    """The cache that kvpress left, and what AdaKV masks of each layer."""
    cache = DynamicCache()
    attentions = [layer.self_attn for layer in model.model.layers]
    for attention in attentions:
        attention.masked_key_indices = None
    with torch.no_grad(), press(model):
        model(input_ids=ids, past_key_values=cache, use_cache=True)
    masked = [attention.masked_key_indices for attention in attentions]
    for attention in attentions:
        attention.masked_key_indices = None
    return cache, masked
