"""The tensors of one decoder layer that eviction rules look at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ecokv_cli.errors import DumpError, NonFiniteError
from ecokv_cli.eviction.attention import held_out_logits, window_attention
from ecokv_cli.eviction.directions import Directions, directions_of
from ecokv_cli.geometry.spread import centroid_distances

if TYPE_CHECKING:
    import torch


WAYS_OUT = {
    "received_attention": "dump again with --received-attention",
    "prerope_keys": "dump again with --prerope-keys",
}
"""How to get an optional tensor."""


@dataclass(frozen=True)
class Layer:
    """One layer of one prompt, as the model cached it.

    Attributes
    ----------
    index, layers
        Layer number, counted from 0, and how many the model has.
    keys, values
        ``[H, N, D]`` and ``[H, N, Dv]`` over the N prompt positions, H = KV heads; keys after RoPE.
    window_queries
        ``[H_q, W, D]`` queries of the last W prompt positions; query head h reads KV head ``h // (H_q / H)``.
    scaling
        Factor on query-key products before the softmax, as the model applies it.
    decode_queries, decode_keys, decode_values
        ``[H_q, T, D]``, ``[H, T, D]``, ``[H, T, Dv]`` of T greedily decoded tokens. Held out: they judge a
        selection and never make one (the oracle apart).
    window_mask
        ``[W, W]``, not 0 where one of the last W positions sees another; None where each sees itself and earlier ones
        only. Image tokens, or all tokens of a prompt, see each other in some models.
    received_attention
        ``[H_q, N]`` attention that each position received from all causal queries, summed; None if not dumped.
    prerope_keys
        ``[H, N, D]`` keys before RoPE; None if not dumped.
    head_scores
        ``[L, H_q]`` visual-head scores of the model, the same for all its layers; None if no table was given.
    full
        Numbers of the full-attention layers, where the model has sliding windows too; None if it has none.
    """

    index: int
    layers: int
    keys: torch.Tensor
    values: torch.Tensor
    window_queries: torch.Tensor
    scaling: float
    decode_queries: torch.Tensor
    decode_keys: torch.Tensor
    decode_values: torch.Tensor
    window_mask: torch.Tensor | None = None
    received_attention: torch.Tensor | None = None
    prerope_keys: torch.Tensor | None = None
    head_scores: torch.Tensor | None = None
    full: tuple[int, ...] | None = None

    @property
    def evicting(self) -> tuple[int, ...]:
        """Numbers of the layers that a budget can be spread over: all, but for sliding windows."""
        return tuple(range(self.layers)) if self.full is None else self.full

    @property
    def tokens(self) -> int:
        """N, the number of prompt positions."""
        return self.keys.shape[1]

    @property
    def kv_heads(self) -> int:
        """H, the number of KV heads."""
        return self.keys.shape[0]

    @cached_property
    def directions(self) -> Directions:
        """How the keys point with their mean, computed once for all methods."""
        return directions_of(self.keys)

    @cached_property
    def key_distances(self) -> torch.Tensor:
        """Distances to the centroid of all N keys ``[H, N]``, computed once for all methods."""
        return centroid_distances(self.keys)

    @cached_property
    def unrotated(self) -> Layer:
        """The same layer with keys before rotary embedding; refused where they were not dumped."""
        return replace(self, keys=self.require("prerope_keys", "ecokv[rope=pre]"))

    def last_queries(self, window: int) -> torch.Tensor:
        """Queries of the last `window` prompt positions, ``[H_q, window, D]``."""
        return self.window_queries[:, self.window_queries.shape[1] - window :]

    def last_seen(self, window: int) -> torch.Tensor | None:
        """Which of the last `window` positions sees which, ``[window, window]``; None where no later one is seen."""
        if self.window_mask is None:
            return None
        first = len(self.window_mask) - window
        return self.window_mask[first:, first:]

    def attention(self, window: int, gqa: str = "mean") -> torch.Tensor:
        """Mean attention from the last `window` queries ``[H, N]``, computed once for all methods. Not to be changed.

        See `window_attention`, also for `gqa`.
        """
        if (window, gqa) not in self._attention:
            self._attention[window, gqa] = window_attention(
                self.last_queries(window), self.keys, self.scaling,
                candidates=self.tokens, gqa=gqa, seen=self.last_seen(window),
            )  # fmt: skip
        return self._attention[window, gqa]

    @cached_property
    def _attention(self) -> dict[tuple[int, str], torch.Tensor]:
        return {}

    @cached_property
    def held_out_logits(self) -> torch.Tensor:
        """Attention logits of the decoded tokens, ``[H, G * T, N + T]``; see `attention.held_out_logits`.

        Raises
        ------
        DumpError
            If there are no decoded tokens.
        """
        if self.decode_queries.shape[1] == 0:
            raise DumpError(
                "this dump holds no decode queries, so nothing can judge a selection; dump again with --decode 32, "
                "and with --ignore-eos if the model stops at once"
            )
        return held_out_logits(self.decode_queries, self.keys, self.decode_keys, self.scaling)

    def require(self, name: str, method: str) -> torch.Tensor:
        """An optional tensor that `method` cannot do without.

        Raises
        ------
        DumpError
            If it is missing, saying how to get it.
        """
        tensor: torch.Tensor | None = getattr(self, name)
        if tensor is None:
            raise DumpError(f"{method} needs {name.replace('_', ' ')}, which this dump does not hold; {WAYS_OUT[name]}")
        return tensor

    def require_head_scores(self, method: str) -> torch.Tensor:
        """The table of visual-head scores, which `method` cannot do without.

        Raises
        ------
        DumpError
            If there is none or it is of another shape, naming the shape it must have and how to make it.
        """
        table, wanted = self.head_scores, [self.layers, self.window_queries.shape[0]]
        if table is None or list(table.shape) != wanted:
            found = "no table was given" if table is None else f"the table given is {list(table.shape)}"
            raise DumpError(
                f"{method} needs head scores, [layers, query heads] {wanted} of this very model, and {found}; "
                f"make them with `ecokv headscores RUN` and give them with --head-scores FILE"
            )
        return table

    def require_finite(self) -> Layer:
        """Return the layer, or refuse it.

        Raises
        ------
        NonFiniteError
            If a tensor holds NaN or infinity, naming tensor, layer, head and count. Sorting ranks NaN first, so
            an unguarded selection would prefer broken positions.
        """
        names = ("keys", "values", "window_queries", "decode_queries", "decode_keys", "decode_values")
        optional = [name for name in ("received_attention", "prerope_keys") if getattr(self, name) is not None]
        for name in (*names, *optional):
            tensor = getattr(self, name)
            # A sum is finite only if every entry is, and takes a tenth of the time; it may overflow without reason.
            if tensor.sum().isfinite():
                continue
            bad = (~tensor.isfinite()).flatten(1).sum(dim=1)
            if bad.any():
                head = int(bad.argmax())
                kind = "query head" if name.endswith(("queries", "attention")) else "KV head"
                raise NonFiniteError(
                    f"layer {self.index}, {kind} {head}: {name} holds {int(bad[head])} NaN or infinite numbers; "
                    f"dump again with --dtype float32, or leave the layer out with --layers"
                )
        return self
