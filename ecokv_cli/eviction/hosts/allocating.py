"""Hosts that score like SnapKV and spread the budget unevenly over layers or heads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.hosts.attention import SnapKV
from ecokv_cli.eviction.hosts.keys import KeyDiff, KeyNorm, ManifoldKV, ValueNorm

if TYPE_CHECKING:
    import torch

    from ecokv_cli.eviction.hosts.base import Candidates, Host

_BASES: dict[str, Host] = {"keydiff": KeyDiff(), "manifoldkv": ManifoldKV(), "knorm": KeyNorm(), "vnorm": ValueNorm()}


@dataclass(frozen=True)
class Allocating(SnapKV):
    """Base: SnapKV scores with a budget of its own per layer or head.

    Attributes
    ----------
    compat
        ``exact`` totals, or the rounding of the ``reference`` code, of ``kvcache_factory`` or of ``kvpress``.
    """

    compat: Literal["exact", "reference", "kvcache_factory", "kvpress"] = "exact"

    @property
    def exact(self) -> Allocating:
        """The same host with exact totals."""
        return self if self.compat == "exact" else replace(self, compat="exact")


@dataclass(frozen=True)
class PyramidKV(Allocating):
    """PyramidKV: SnapKV scores, with budgets that fall linearly from the first layer to the last.

    Attributes
    ----------
    beta
        Steepness: the last layer keeps about ``C / beta`` candidates.
    compat
        ``exact`` totals, or the rounding of the ``reference`` code, of ``kvcache_factory`` (which has no ramp where
        the prompt is shorter than 2C) or of ``kvpress``; see `pyramid_counts`.
    kernel, pooling, gqa
        As in snapkv.
    """

    beta: int = 20
    moves_layers: ClassVar[bool] = True
    formula: ClassVar[str] = (
        "snapkv scores; layer l keeps the window and hi - l (hi - lo) / (L - 1), "
        "hi = min(2C - C / beta, M), lo = 2C - hi"
    )
    source: ClassVar[str] = "PyramidKV, arXiv 2406.02069"
    deviations: ClassVar[str] = (
        "the total is exact where published code overspends by its floored step (compat=reference); the schedule is "
        "made for each prompt, published code keeps the first one it sees"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta < 1:
            raise MethodError(f"pyramidkv: beta={self.beta} must be 1 or more")

    def counts(self, asked: Candidates, budget: int, keep: int, scores: torch.Tensor) -> torch.Tensor:
        """The layer's entry of `pyramid_counts`, the same for all its heads."""
        from ecokv_cli.eviction.allocation import pyramid_counts

        layer = asked.layer
        schedule = pyramid_counts(len(layer.evicting), budget, keep, layer.tokens, self.beta, self.compat)
        return schedule[layer.evicting.index(layer.index)].expand(len(scores)).to(scores.device)


@dataclass(frozen=True)
class AdaKV(Allocating):
    """AdaKV: the heads of a layer share its budget by where the layer's highest scores are.

    Attributes
    ----------
    floor
        Share of the budget that every head gets in any case.
    base
        The scores: ``snapkv``, or those of a host without queries, which no booster goes with.
    normalise
        Weigh each head by the share of its attention that its top C hold, before heads are compared.
    compat
        ``exact`` totals, the rounding of the ``reference`` code (``kvcache_factory`` has the same), or the safeguard
        rule of ``kvpress``; see `ada_counts`.
    kernel, pooling, gqa
        As in snapkv.
    """

    floor: float = 0.2
    base: Literal["snapkv", "keydiff", "manifoldkv", "knorm", "vnorm"] = "snapkv"
    normalise: bool = False

    shares_by_score: ClassVar[bool] = True
    formula: ClassVar[str] = (
        "raw_h = how many of the layer's H C highest scores are in head h; head h keeps the window and "
        "floor C + (1 - floor) raw_h"
    )
    source: ClassVar[str] = "AdaKV, arXiv 2407.11550"
    deviations: ClassVar[str] = (
        "the layer's total is exact where published code loses slots by rounding (compat=reference); heads are "
        "compared without normalisation as in the authors' code, while MixKV's and SparseMM's copies normalise. "
        "With a booster, heads are budgeted by attention and filled by the boosted score, as in MixKV's code; "
        "+ecokv[allocate=boosted] does both by the boosted score"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_share("adakv", self.floor)
        if self.normalise and self.base != "snapkv":
            raise MethodError(f"adakv: normalise=true needs attention scores, base={self.base} has none")

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]  # here an option decides
        """What its base needs."""
        return super().needs if self.base == "snapkv" else _BASES[self.base].needs

    @property
    def idle(self) -> tuple[str, ...]:
        """What is of attention alone, with another base than snapkv."""
        return () if self.base == "snapkv" else ("kernel", "pooling", "gqa", "normalise")

    @property
    def scores_attention(self) -> bool:
        """Only with snapkv as its base."""
        return self.base == "snapkv"

    def score(self, asked: Candidates) -> torch.Tensor:
        """Scores of the base."""
        return super().score(asked) if self.base == "snapkv" else _BASES[self.base].score(asked)

    def counts(self, asked: Candidates, budget: int, keep: int, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """See `ada_counts`."""
        from ecokv_cli.eviction.allocation import ada_counts

        return ada_counts(scores, budget, keep, self.floor, self.normalise, self.compat)


@dataclass(frozen=True)
class SparseMM(Allocating):
    """SparseMM: heads that look at the right place in images get the larger part of the model's budget.

    Attributes
    ----------
    floor
        Share of the budget that every head gets in any case.
    compat
        ``exact`` totals or the rounding of the ``reference`` code; kvcache_factory and kvpress have no such rule; see
        `sparse_counts`.
    kernel, pooling, gqa
        As in snapkv.
    """

    floor: float = 0.1

    moves_layers: ClassVar[bool] = True
    formula: ClassVar[str] = "snapkv scores; head (l, g) keeps the window and floor C + p[l, g] (1 - floor) C L H"
    needs: ClassVar[tuple[str, ...]] = ("keys", "window_queries", "head_scores")
    source: ClassVar[str] = "SparseMM, arXiv 2506.05344"
    deviations: ClassVar[str] = (
        "head scores are those of this very model or the method is refused; what a head cannot hold goes to the "
        "others, where published code drops it (compat=reference)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_share("sparsemm", self.floor)
        if self.compat in ("kvcache_factory", "kvpress"):
            raise MethodError(
                f"sparsemm: compat={self.compat} does not exist, {self.compat} has no such rule; exact or reference"
            )

    def counts(self, asked: Candidates, budget: int, keep: int, scores: torch.Tensor) -> torch.Tensor:
        """The layer's row of `sparse_counts`."""
        from ecokv_cli.eviction.allocation import sparse_counts

        layer = asked.layer
        table = layer.require_head_scores("sparsemm")[list(layer.evicting)]
        counts = sparse_counts(table, layer.kv_heads, budget, keep, layer.tokens, self.floor, self.compat)
        return counts[layer.evicting.index(layer.index)].to(scores.device)


def _require_share(name: str, floor: float) -> None:
    if not 0 <= floor <= 1:
        raise MethodError(f"{name}: floor={floor} is outside 0..1")
