"""Hosts: the rules that score candidates on their own, one small class each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.importance import keydiff_score, oracle_score, snapkv_importance

if TYPE_CHECKING:
    from ecokv_cli.eviction.layer import Layer


@dataclass(frozen=True)
class Full:
    """Keep everything: the baseline that every method is compared with."""

    default_window: ClassVar[int] = 0
    scores_attention: ClassVar[bool] = False
    keeps_all: ClassVar[bool] = True

    def score(self, layer: Layer, window: int, candidates: int) -> torch.Tensor:  # noqa: ARG002
        """All equal; never used to evict."""
        return layer.keys.new_zeros(layer.kv_heads, candidates)


@dataclass(frozen=True)
class Random:
    """Keep the window and random candidates, drawn per layer and KV head: the control that shows what chance does.

    Attributes
    ----------
    seed
        Seed of the draw; layers and heads differ, budgets are nested.
    """

    seed: int = 0

    default_window: ClassVar[int] = 32
    scores_attention: ClassVar[bool] = False
    keeps_all: ClassVar[bool] = False

    def score(self, layer: Layer, window: int, candidates: int) -> torch.Tensor:  # noqa: ARG002
        """Uniform random numbers ``[H, candidates]``."""
        generator = torch.Generator().manual_seed((self.seed << 16) + layer.index)
        return torch.rand(layer.kv_heads, candidates, generator=generator).to(layer.keys.device)


@dataclass(frozen=True)
class SnapKV:
    """SnapKV: keep the window and the candidates it attends to most.

    ``A[h, j] = pool_kernel( mean_g mean_t softmax(q_t k_j) )``; keep the top B - W and the window.

    Source: SnapKV, arXiv 2404.14469. Deviations: selection per KV head instead of per query head; mean instead of
    sum over the window (same ranking).

    Attributes
    ----------
    kernel
        Odd pooling width; 1 turns pooling off.
    pooling
        ``avg`` or ``max``.
    gqa
        How the query heads of a group are merged: ``mean`` or ``max``, before pooling.
    """

    kernel: int = 5
    pooling: Literal["avg", "max"] = "avg"
    gqa: Literal["mean", "max"] = "mean"

    default_window: ClassVar[int] = 32
    scores_attention: ClassVar[bool] = True
    keeps_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise MethodError(f"snapkv: kernel={self.kernel} must be odd and positive")

    def score(self, layer: Layer, window: int, candidates: int) -> torch.Tensor:
        """See `snapkv_importance`."""
        return snapkv_importance(
            layer, window=window, candidates=candidates, kernel=self.kernel, pooling=self.pooling, gqa=self.gqa
        )


@dataclass(frozen=True)
class KeyDiff:
    """KeyDiff: keep the keys that are least like the mean unit key, ``-cos(k_j, mean u)``; no protected window.

    Source: KeyDiff, arXiv 2504.15364. Deviation: scored once over the whole prompt, not block by block.
    """

    default_window: ClassVar[int] = 0
    scores_attention: ClassVar[bool] = False
    keeps_all: ClassVar[bool] = False

    def score(self, layer: Layer, window: int, candidates: int) -> torch.Tensor:  # noqa: ARG002
        """See `keydiff_score`."""
        return keydiff_score(layer, candidates)


@dataclass(frozen=True)
class Oracle:
    """Oracle: keep what held-out queries attend to most; the upper bound of attention mass, not a usable method.

    ``mean_{t, g} P[t, j]`` over the decoded tokens that later judge the selection.
    """

    default_window: ClassVar[int] = 0
    scores_attention: ClassVar[bool] = False
    keeps_all: ClassVar[bool] = False

    def score(self, layer: Layer, window: int, candidates: int) -> torch.Tensor:  # noqa: ARG002
        """See `oracle_score`."""
        return oracle_score(layer, candidates)


Host = Full | Random | SnapKV | KeyDiff | Oracle
