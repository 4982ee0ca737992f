"""Hosts that score keys or values without any query; no protected window unless one is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.hosts.base import Candidates, Host

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class KeyNorm(Host):
    """Key norm: keep the keys with the smallest Euclidean norm."""

    formula: ClassVar[str] = "s[j] = -||k_j||; keep the top B"
    source: ClassVar[str] = "L2-norm eviction, arXiv 2406.11430"
    deviations: ClassVar[str] = (
        "every layer is compressed; the authors leave the first two alone, as route[0-1=full,2-=knorm] does"
    )

    def score(self, asked: Candidates) -> torch.Tensor:
        """Minus `key_norms`."""
        from ecokv_cli.eviction.keyscores import key_norms

        return key_norms(asked.layer, asked.count).neg_()


@dataclass(frozen=True)
class ValueNorm(Host):
    """Value norm: keep the values with the largest Euclidean norm; sinks, whose values are tiny, go first."""

    formula: ClassVar[str] = "s[j] = ||v_j||; keep the top B"
    needs: ClassVar[tuple[str, ...]] = ("values",)
    source: ClassVar[str] = "the intrinsic importance of MixKV, arXiv 2510.20707, alone"

    def score(self, asked: Candidates) -> torch.Tensor:
        """See `value_norms`."""
        from ecokv_cli.eviction.keyscores import value_norms

        return value_norms(asked.layer, asked.count)


@dataclass(frozen=True)
class KeyDiff(Host):
    """KeyDiff: keep the keys that are least like the mean unit key."""

    formula: ClassVar[str] = "s[j] = -cos(k_j, mean_N u); keep the top B"
    source: ClassVar[str] = "KeyDiff, arXiv 2504.15364"
    deviations: ClassVar[str] = "scored once over the whole prompt; the paper applies it block by block"

    def score(self, asked: Candidates) -> torch.Tensor:
        """See `keydiff_score`."""
        from ecokv_cli.eviction.keyscores import keydiff_score

        return keydiff_score(asked.layer, asked.count)


@dataclass(frozen=True)
class ManifoldKV(Host):
    """ManifoldKV: keep the keys that are farthest from the centroid.

    Attributes
    ----------
    block
        0: one centroid for the whole prompt. Otherwise one per run of `block` positions (the paper: 4096), with
        one selection over all of them.
    """

    block: int = 0

    formula: ClassVar[str] = "s[j] = ||k_j - c||, c the centroid of the head (of the block); keep the top B"
    source: ClassVar[str] = "ManifoldKV, arXiv 2602.08343"

    def __post_init__(self) -> None:
        if self.block < 0:
            raise MethodError(f"manifoldkv: block={self.block} is negative; 0 means one centroid for the whole prompt")

    def score(self, asked: Candidates) -> torch.Tensor:
        """See `manifold_score`."""
        from ecokv_cli.eviction.keyscores import manifold_score

        return manifold_score(asked.layer, asked.count, self.block)
