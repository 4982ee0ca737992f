"""Boosters: how diversity enters the final score of a host that scores by attention. No torch at import."""

from __future__ import annotations

from ecokv_cli.eviction.boosters.base import Booster
from ecokv_cli.eviction.boosters.ecokv import EcoKV
from ecokv_cli.eviction.boosters.mixkv import MixKV
from ecokv_cli.eviction.boosters.pure import CosineOnly, EuclidOnly

BOOSTERS: dict[str, type[Booster]] = {
    "mixkv": MixKV,
    "ecokv": EcoKV,
    "keydiff": CosineOnly,
    "manifold": EuclidOnly,
}
"""Every booster by name, in the order of tables."""

__all__ = ["BOOSTERS", "Booster", "EcoKV", "MixKV"]
