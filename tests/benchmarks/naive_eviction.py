"""Eviction rules as one would write them down at first: plain torch, a loop over heads, repeated keys.

What `eviction_speed.py` compares with. Not a reference: `tests/reference` is that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from collections.abc import Callable

    from ecokv_cli.eviction.layer import Layer


def window_attention(layer: Layer, window: int) -> list[torch.Tensor]:
    heads = len(layer.window_queries)
    group = heads // layer.kv_heads
    keys = layer.keys.repeat_interleave(group, 0)
    rows = []
    for head in range(heads):
        logits = layer.window_queries[head, -window:] @ keys[head].T * layer.scaling
        logits += torch.full_like(logits, -torch.inf).triu(layer.tokens - window + 1)
        rows.append(logits.softmax(-1)[:, :-window].mean(0))
    return [torch.stack(rows[start : start + group]).mean(0) for start in range(0, heads, group)]


def snapkv(layer: Layer, window: int) -> list[torch.Tensor]:
    return [F.avg_pool1d(row[None], 5, 1, 2)[0] for row in window_attention(layer, window)]


def tova(layer: Layer, window: int) -> list[torch.Tensor]:
    return [torch.stack(window_attention(layer, window)).mean(0)] * layer.kv_heads


def keydiff(layer: Layer, _: int) -> list[torch.Tensor]:
    return [-F.cosine_similarity(keys, F.normalize(keys, dim=-1).mean(0, keepdim=True)) for keys in layer.keys]


def manifoldkv(layer: Layer, _: int) -> list[torch.Tensor]:
    return [(keys - keys.mean(0)).norm(dim=-1) for keys in layer.keys]


def knorm(layer: Layer, _: int) -> list[torch.Tensor]:
    return [-keys.norm(dim=-1) for keys in layer.keys]


def vnorm(layer: Layer, _: int) -> list[torch.Tensor]:
    return [values.norm(dim=-1) for values in layer.values]


def mixkv(layer: Layer, window: int) -> list[torch.Tensor]:
    return ecokv(layer, window, alpha=0.0, beta=0.0)


def ecokv(layer: Layer, window: int, alpha: float = 0.8, beta: float = 0.6) -> list[torch.Tensor]:
    scores, m, dim = [], layer.tokens - window, layer.keys.shape[-1]
    for head, attention in enumerate(snapkv(layer, window)):
        keys = layer.keys[head]
        units = F.normalize(keys, dim=-1)
        distances, mean = (keys - keys.mean(0)).norm(dim=-1), units.mean(0)
        cosine = (layer.tokens * mean @ mean - 1) / (layer.tokens - 1)
        weight = beta * (1 - torch.sigmoid(distances.mean() / dim**0.5)) + (1 - beta) * cosine.clamp(0, 1)
        diversity = alpha * minmax(distances[:m]) + (1 - alpha) * minmax(-(units[:m] @ mean))
        importance = attention + scaled(minmax(layer.values[head, :m].norm(dim=-1)), attention)
        scores.append(weight * scaled(diversity, attention) + (1 - weight) * importance)
    return scores


def minmax(row: torch.Tensor) -> torch.Tensor:
    return (row - row.min()) / (row.max() - row.min())


def scaled(row: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return row * (target.mean() / row.mean())


NAIVE: dict[str, tuple[Callable[[Layer, int], list[torch.Tensor]], int]] = {
    "snapkv": (snapkv, 32),
    "tova": (tova, 1),
    "keydiff": (keydiff, 0),
    "knorm": (knorm, 0),
    "vnorm": (vnorm, 0),
    "manifoldkv": (manifoldkv, 0),
    "snapkv+mixkv": (mixkv, 32),
    "snapkv+ecokv": (ecokv, 4),
}
"""Rules by method, with the window that each protects."""


def select(name: str, layer: Layer, budget: int) -> list[torch.Tensor]:
    """Kept positions per head, ascending."""
    score, window = NAIVE[name]
    kept = (row.topk(budget - window).indices.sort().values for row in score(layer, window))
    recent = torch.arange(layer.tokens - window, layer.tokens)
    return [torch.cat([row, recent]) for row in kept]
