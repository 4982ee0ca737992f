"""Small layers and what the checks of the rules have in common."""

from dataclasses import replace

import reference
import torch
from builders import random_layer

from ecokv_cli.eviction.spec import parse_method

W, BUDGET = 3, 11
NEAR = {"rtol": 1e-9, "atol": 1e-12}


def layer_with_received(seed=0, shift=0.3):
    layer = random_layer(seed, shift=shift)
    generator = torch.Generator().manual_seed(seed + 1)
    queries = torch.randn(6, 29, 5, generator=generator, dtype=torch.float64)
    received = reference.received_attention(queries.numpy(), layer.keys.numpy(), layer.scaling)
    return replace(layer, received_attention=torch.from_numpy(received))


def window_rows(layer, window=W):
    """Naive attention of the window, mean over the group: [H, W, N]."""
    queries = layer.window_queries[:, -window:].numpy()
    return reference.window_attention(queries, layer.keys.numpy(), layer.scaling).reshape(2, 3, window, 29).mean(1)


def scores_of(spec, layer):
    return parse_method(spec).scores(layer).final.numpy()


def attention_of(layer, window=W, **options):
    queries = layer.window_queries[:, -window:].numpy()
    return reference.snapkv_importance(queries, layer.keys.numpy(), layer.scaling, **options)
