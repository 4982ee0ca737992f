"""Hosts that score by attention and give every head the same budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.hosts.base import Candidates, Host

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class AttentionHost(Host):
    """Base of hosts whose scores are attention: boosters go on top of these."""

    @property
    def scores_attention(self) -> bool:
        """Always."""
        return True


@dataclass(frozen=True)
class SnapKV(AttentionHost):
    """SnapKV: keep the window and the candidates it attends to most.

    Attributes
    ----------
    kernel
        Odd pooling width; 1 turns pooling off.
    pooling
        ``avg`` or ``max``.
    gqa
        How the query heads of a group are merged, before pooling: ``mean``, ``max``, or ``sum``, which ranks as the
        mean does.
    """

    kernel: int = 5
    pooling: Literal["avg", "max"] = "avg"
    gqa: Literal["mean", "max", "sum"] = "mean"

    default_window: ClassVar[int] = 32
    formula: ClassVar[str] = "A[h, j] = pool_kernel(mean_g mean_t softmax(q_t k_j)); keep the window and the top B - W"
    needs: ClassVar[tuple[str, ...]] = ("keys", "window_queries")
    source: ClassVar[str] = "SnapKV, arXiv 2404.14469"
    deviations: ClassVar[str] = (
        "selects per KV head, the original per query head; averages over the window, the original sums (same ranking)"
    )

    def __post_init__(self) -> None:
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise MethodError(f"kernel={self.kernel} must be odd and positive")

    def score(self, asked: Candidates) -> torch.Tensor:
        """See `snapkv_importance`."""
        from ecokv_cli.eviction.importance import snapkv_importance

        return snapkv_importance(
            asked.layer, window=asked.window, candidates=asked.count,
            kernel=self.kernel, pooling=self.pooling, gqa=self.gqa,
        )  # fmt: skip


@dataclass(frozen=True)
class Tova(AttentionHost):
    """TOVA: keep what the last query attends to most, the same positions in all heads of a layer."""

    default_window: ClassVar[int] = 1
    shared: ClassVar[bool] = True
    formula: ClassVar[str] = (
        "s[j] = mean over all query heads of softmax(q_{N-1} k_j); keep the last position and top B - 1"
    )
    needs: ClassVar[tuple[str, ...]] = ("keys", "window_queries")
    source: ClassVar[str] = "TOVA, arXiv 2401.06104"
    deviations: ClassVar[str] = (
        "the last position is always kept; the original lets it compete (keep_window=0). With a booster, boosted "
        "scores are averaged over the heads so that they still share one set"
    )

    def score(self, asked: Candidates) -> torch.Tensor:
        """See `tova_importance`."""
        from ecokv_cli.eviction.importance import tova_importance

        return tova_importance(asked.layer, window=asked.window, candidates=asked.count)


@dataclass(frozen=True)
class H2O(AttentionHost):
    """H2O: keep the heavy hitters, which all prompt queries together attended to most, and the recent positions.

    Attributes
    ----------
    gqa
        How the query heads of a group are merged: ``mean``, ``max``, or ``sum``, which ranks as the mean does.
    """

    gqa: Literal["mean", "max", "sum"] = "mean"

    default_window: ClassVar[int] = 32
    formula: ClassVar[str] = (
        "h[j] = reduce_g sum_{t >= j} P[t, j] over all prompt queries; keep the last W and the top B - W"
    )
    needs: ClassVar[tuple[str, ...]] = ("keys", "received_attention")
    source: ClassVar[str] = "H2O, arXiv 2306.14048"
    deviations: ClassVar[str] = "one selection after the prefill; the original evicts one position per decoded token"

    def score(self, asked: Candidates) -> torch.Tensor:
        """See `received_importance`."""
        from ecokv_cli.eviction.importance import received_importance

        return received_importance(asked.layer, candidates=asked.count, average=False, gqa=self.gqa, method="h2o")


@dataclass(frozen=True)
class Observed(AttentionHost):
    """Observed attention: mean attention over the queries that see a position; no protected window.

    Attributes
    ----------
    gqa
        How the query heads of a group are merged: ``mean``, ``max``, or ``sum``, which ranks as the mean does.
    """

    gqa: Literal["mean", "max", "sum"] = "mean"

    formula: ClassVar[str] = "s[j] = reduce_g (1 / (N - j)) sum_{t >= j} P[t, j]; keep the top B"
    needs: ClassVar[tuple[str, ...]] = ("keys", "received_attention")
    source: ClassVar[str] = "the observed-attention rule of the kvpress library, a relative of H2O"
    deviations: ClassVar[str] = "none known; note that the last positions are means over very few queries"

    def score(self, asked: Candidates) -> torch.Tensor:
        """See `received_importance`."""
        from ecokv_cli.eviction.importance import received_importance

        return received_importance(asked.layer, candidates=asked.count, average=True, gqa=self.gqa, method="observed")
