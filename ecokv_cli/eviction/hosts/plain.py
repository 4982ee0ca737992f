"""Hosts that look at no score of the prompt: baselines, controls and bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.hosts.base import Candidates, Host

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Full(Host):
    """Keep everything: the baseline that every method is compared with."""

    keeps_all: ClassVar[bool] = True
    formula: ClassVar[str] = "keep all N positions"
    source: ClassVar[str] = "the model itself"

    def score(self, asked: Candidates) -> torch.Tensor:
        """All equal; never used to evict."""
        return asked.layer.keys.new_zeros(asked.layer.kv_heads, asked.count)


@dataclass(frozen=True)
class Random(Host):
    """Keep the window and random candidates, drawn per layer and KV head: the control that shows what chance does.

    Attributes
    ----------
    seed
        Seed of the draw; layers and heads differ, budgets are nested.
    """

    seed: int = 0

    default_window: ClassVar[int] = 32
    formula: ClassVar[str] = "keep the window and a uniform random draw of B - W candidates per head"
    source: ClassVar[str] = "control"

    def score(self, asked: Candidates) -> torch.Tensor:
        """Uniform random numbers ``[H, M]``."""
        import torch

        generator = torch.Generator().manual_seed((self.seed << 16) + asked.layer.index)
        draw = torch.rand(asked.layer.kv_heads, asked.count, generator=generator)
        return draw.to(asked.layer.keys.device)


@dataclass(frozen=True)
class Streaming(Host):
    """StreamingLLM: keep the first positions (attention sinks) and the most recent ones, the same in every head.

    Attributes
    ----------
    sinks
        How many of the first positions.
    """

    sinks: int = 4

    shared: ClassVar[bool] = True
    formula: ClassVar[str] = "keep positions 0..s-1 and the last B - s"
    source: ClassVar[str] = "StreamingLLM, arXiv 2309.17453"
    deviations: ClassVar[str] = "kept keys stay at their original positions; the original moves them to cache positions"

    def __post_init__(self) -> None:
        if self.sinks < 0:
            raise MethodError(f"streaming: sinks={self.sinks} is negative")

    def score(self, asked: Candidates) -> torch.Tensor:
        """Position number; sinks come before everything."""
        import torch

        position = torch.arange(asked.count, dtype=torch.float32, device=asked.layer.keys.device)
        position[: self.sinks] += asked.count
        return position.expand(asked.layer.kv_heads, -1)


@dataclass(frozen=True)
class Oracle(Host):
    """Oracle: keep what held-out queries attend to most; the upper bound of attention mass, not a usable method."""

    formula: ClassVar[str] = "mean_{t, g} P[t, j] over the decoded tokens that later judge the selection"
    needs: ClassVar[tuple[str, ...]] = ("keys", "decode_queries", "decode_keys")
    source: ClassVar[str] = "bound"

    def score(self, asked: Candidates) -> torch.Tensor:
        """See `oracle_score`."""
        from ecokv_cli.eviction.importance import oracle_score

        return oracle_score(asked.layer, asked.count)
