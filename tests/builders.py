"""Small layers with prime-number shapes, so that no two axes can be confused."""

import torch

from ecokv_cli.eviction.layer import Layer

KV_HEADS, GROUP, TOKENS, DIM, VALUE_DIM, STORED, STEPS, LAYERS = 2, 3, 29, 5, 7, 11, 4, 5


def random_layer(
    seed=0, *, kv_heads=KV_HEADS, group=GROUP, tokens=TOKENS, dim=DIM, value_dim=VALUE_DIM, stored=STORED, steps=STEPS,
    dtype=torch.float64, shift=0.0,
):  # fmt: skip
    """A layer of Gaussian tensors; `shift` moves all keys, which makes them redundant."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return Layer(
        index=3,
        layers=LAYERS,
        keys=draw(kv_heads, tokens, dim) + shift,
        values=draw(kv_heads, tokens, value_dim),
        window_queries=draw(kv_heads * group, min(stored, tokens), dim),
        scaling=0.37,
        decode_queries=draw(kv_heads * group, steps, dim),
        decode_keys=draw(kv_heads, steps, dim) + shift,
        decode_values=draw(kv_heads, steps, value_dim),
    )
