"""What every host shares: the candidates it is asked about, and how it spends a budget unless it knows better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import torch

    from ecokv_cli.eviction.layer import Layer
    from ecokv_cli.eviction.memory import Memory


@dataclass(frozen=True)
class Candidates:
    """The positions of one layer that compete for the free slots.

    Attributes
    ----------
    layer
        The layer.
    count
        M, how many leading positions compete.
    window
        How many of the last queries may score them.
    picks
        At most so many will be kept per head; greedy hosts stop there.
    """

    layer: Layer
    count: int
    window: int
    picks: int


@dataclass(frozen=True)
class Host:
    """Base of all hosts: options are the fields of a subclass, facts about the method its class variables.

    Attributes
    ----------
    default_window
        Protected window, and observation window of hosts that observe.
    keeps_all
        Whether it never evicts.
    shared
        Whether all KV heads of a layer keep the same positions.
    moves_layers
        Whether layers get different budgets.
    shares_by_score
        Whether the heads of a layer share its budget by their scores.
    formula, needs, source, deviations
        For people: what is computed, from which tensors of a dump, where it comes from, and where it differs. Where
        options decide what is needed, `needs` is a property.
    """

    default_window: ClassVar[int] = 0
    keeps_all: ClassVar[bool] = False
    shared: ClassVar[bool] = False
    moves_layers: ClassVar[bool] = False
    shares_by_score: ClassVar[bool] = False
    formula: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ("keys",)
    source: ClassVar[str]
    deviations: ClassVar[str] = "none known"

    @property
    def observes(self) -> bool:
        """Whether it scores with the queries of the observation window."""
        return "window_queries" in self.needs

    @property
    def idle(self) -> tuple[str, ...]:
        """Options that have no effect beside the others."""
        return ()

    @property
    def scores_attention(self) -> bool:
        """Whether the scores are attention, so that a booster can mix diversity into them."""
        return False

    def score(self, asked: Candidates) -> torch.Tensor:
        """Scores ``[H, M]``; higher = keep."""
        raise NotImplementedError

    def counts(self, asked: Candidates, budget: int, keep: int, scores: torch.Tensor) -> torch.Tensor:
        """Free slots per KV head, ``[H]``, when `budget` tokens per head include `keep` protected ones."""
        import torch

        return torch.full(scores.shape[:1], budget - keep - self.reserve(asked.layer), device=scores.device)

    @property
    def exact(self) -> Host:
        """The same host, spending every slot of the nominal budget; another one where published rounding is asked."""
        return self

    def reserve(self, layer: Layer) -> int:  # noqa: ARG002
        """Tokens of the budget that go into something else than kept positions."""
        return 0

    def memory(self, asked: Candidates, kept: torch.Tensor) -> Memory | None:  # noqa: ARG002
        """What remembers the evicted, given the ``[H, M]`` mask of kept candidates."""
        return None
