"""How well a kept set answers queries that did not choose it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from ecokv_cli.errors import UsageError

if TYPE_CHECKING:
    from ecokv_cli.eviction.layer import Layer
    from ecokv_cli.eviction.selection import Selection


@dataclass(frozen=True)
class Fidelity:
    """Agreement with the full cache on held-out queries, per KV head (mean over its query heads and steps).

    Attributes
    ----------
    mass
        ``[H]`` in [0, 1]: attention that falls on what is left (kept prompt positions and decoded tokens);
        1 = nothing that the queries look at was evicted.
    error
        ``[H]`` >= 0: ``||o - o'|| / ||o||`` of the attention outputs; 0 = equal.
    cosine
        ``[H]`` in [-1, 1]: cosine of o and o'; 1 = same direction.
    """

    mass: torch.Tensor
    error: torch.Tensor
    cosine: torch.Tensor


class HeldOut:
    """Held-out attention of one layer: computed once, asked for every method and budget.

    With P the attention of a decoded token over prompt and decoded tokens on the full cache, a kept set leaves
    ``mass = sum P_kept`` and the output ``o' = sum P_kept v / mass``: the softmax over what is left, since evicting
    a key only changes the denominator. A memory of the evicted, if the method has one, is blended into o'.

    Parameters
    ----------
    layer
        Needs at least one decoded token.

    Raises
    ------
    DumpError
        If the dump holds no decode queries.
    """

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.queries = layer.decode_queries.reshape(layer.kv_heads, -1, layer.keys.shape[-1])
        self.logits = layer.held_out_logits[..., : layer.tokens]
        self.decoded = layer.held_out_logits[..., layer.tokens :]
        self.everything = layer.held_out_logits.logsumexp(-1).double()
        values = torch.cat([layer.values, layer.decode_values], dim=1)
        self.output = (layer.held_out_logits.softmax(dim=-1) @ values).double()

    def judge(self, selection: Selection) -> Fidelity:
        """Compare the outputs on the kept set with those on the full cache.

        Raises
        ------
        UsageError
            If the selection is of another layer's shape.
        """
        _require_shape(selection, self.layer.keys.shape[:2])
        positions, valid = selection.indices()
        layer = self.layer
        kept = self.logits.gather(2, positions[:, None].expand(-1, self.logits.shape[1], -1))
        logits = torch.cat([kept.masked_fill(~valid[:, None], -torch.inf), self.decoded], dim=-1)
        values = layer.values.gather(1, positions[..., None].expand(-1, -1, layer.values.shape[-1]))
        mass = (logits.logsumexp(-1).double() - self.everything).exp()
        left = (logits.softmax(dim=-1) @ torch.cat([values, layer.decode_values], dim=1)).double()
        if selection.memory:
            left = selection.memory.blend(self.queries, left)
        full = self.output
        norm = full.norm(dim=-1)
        error = (full - left).norm(dim=-1) / torch.where(norm > 0, norm, 1.0)
        cosine = F.cosine_similarity(full, left, dim=-1)
        return Fidelity(mass.mean(1).clamp(0, 1), error.mean(1), cosine.mean(1))


def jaccard(first: Selection, second: Selection) -> torch.Tensor:
    """Overlap of two kept sets, ``|A and B| / |A or B|`` per head, on positions outside both windows.

    Returns
    -------
    torch.Tensor
        ``[H]`` fp64 in [0, 1]; 1 if both keep no candidate at all. Windows are left out because all methods share
        them, which would make different choices look alike.

    Raises
    ------
    UsageError
        If they are of different shapes.
    """
    _require_shape(second, first.mask.shape)
    candidates = first.mask.shape[1] - max(first.window, second.window)
    a, b = first.mask[:, :candidates], second.mask[:, :candidates]
    union = (a | b).sum(-1)
    both = (a & b).sum(-1).double()
    return torch.where(union > 0, both / union.clamp_min(1), 1.0)


def _require_shape(selection: Selection, shape: torch.Size) -> None:
    if selection.mask.shape != shape:
        found, wanted = ("{} KV heads and {} tokens".format(*size) for size in (selection.mask.shape, shape))
        raise UsageError(f"a selection of {found} does not belong to {wanted}; select from the same layer and sample")
