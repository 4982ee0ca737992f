"""What to analyse and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.boosters import EcoKV

if TYPE_CHECKING:
    from ecokv_cli.eviction.method import Method


@dataclass(frozen=True)
class AnalyzeSettings:
    """What to analyse and how.

    Attributes
    ----------
    layers, heads
        Layer and KV head numbers.
    method
        The boosted method whose importance, diversity and lambda are analysed.
    pairs
        Pairs of vectors sampled for cosine quantiles and histograms where a prompt is too long to count all.
    seed
        Seed of that sample.
    pca
        (layer, KV head) pairs to project.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    method: Method
    pairs: int
    seed: int
    pca: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.method.booster, EcoKV):
            raise MethodError(f"--booster {self.method.name}: analysis needs an ecokv method, such as snapkv+ecokv")

    @property
    def booster(self) -> EcoKV:
        """The method's booster."""
        assert isinstance(self.method.booster, EcoKV)
        return self.method.booster
