"""Hosts from recent abstracts: greedy selection with a redundancy term, and a memory of what was evicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.hosts.base import Candidates, Host

if TYPE_CHECKING:
    import torch

    from ecokv_cli.eviction.layer import Layer
    from ecokv_cli.eviction.memory import Memory


@dataclass(frozen=True)
class Mmr(Host):
    """Unified score with greedy selection: attention, its dispersion, and likeness to what was already chosen.

    Attributes
    ----------
    l1
        Weight of the dispersion, one value or three (``0.5:0.2:0.1``), by the profile.
    l2
        Weight of the likeness, in units of the head's mean attention (see unit); negative avoids likeness.
    aggregate
        Likeness to the chosen set: ``max`` (marginal relevance) or ``mean``.
    profile
        How l1 and l2 change with depth: ``constant``, ``segments`` (thirds of the model), or ``quadratic``
        (``a:b:c`` of ``a + b x + c x^2``, x = 0 at the first layer and 1 at the last).
    unit
        Unit of l2: the head's ``mean`` attention, or ``raw`` for none.
    """

    l1: tuple[float, ...] = (0.5,)
    l2: tuple[float, ...] = (-0.5,)
    aggregate: Literal["max", "mean"] = "max"
    profile: Literal["constant", "segments", "quadratic"] = "constant"
    unit: Literal["mean", "raw"] = "mean"

    default_window: ClassVar[int] = 32
    formula: ClassVar[str] = "keep the window; then greedily, B - W times: argmax_i mu_i + l1 sigma_i + l2 u corr(i, S)"
    needs: ClassVar[tuple[str, ...]] = ("keys", "window_queries")
    source: ClassVar[str] = "the unified score mu + l1 sigma + l2 corr of Xie and Zhu, known from its abstract only"
    deviations: ClassVar[str] = (
        "corr is the Pearson correlation of attention columns over window rows, rows are averaged over the group "
        "first, no pooling, dispersion is the population standard deviation; the default "
        "weights are ours"
    )

    def __post_init__(self) -> None:
        wanted = 1 if self.profile == "constant" else 3
        for name in ("l1", "l2"):
            values = getattr(self, name)
            if len(values) != wanted:
                raise MethodError(
                    f"mmr: {name} has {len(values)} values, profile={self.profile} takes {wanted}, "
                    f"such as {name}={':'.join(['0.5'] * wanted)}"
                )

    def score(self, asked: Candidates) -> torch.Tensor:
        """Ranks of the greedy choices; see `greedy_order`."""
        from ecokv_cli.eviction.greedy import at_depth, greedy_order

        layer = asked.layer
        rows = _window_rows(asked)
        l1, l2 = (at_depth(values, self.profile, layer.index, layer.layers) for values in (self.l1, self.l2))
        return greedy_order(rows, asked.picks, l1, l2, aggregate=self.aggregate, unit=self.unit)


@dataclass(frozen=True)
class Retentive(Host):
    """A state-space memory of the evicted, inspired by RetentiveKV; the state is paid for out of the budget.

    Attributes
    ----------
    mix
        Weight of attention against entropy in the order of eviction, in [0, 1].
    """

    mix: float = 0.5

    default_window: ClassVar[int] = 32
    formula: ClassVar[str] = (
        "keep the window and the top of R = mix minmax(A) + (1 - mix) minmax(H), H the entropy of the attention "
        "received; evicted pairs: S <- h S + (1 - h) phi(k)^T v; output (1 - g) exact + g phi(q) S / phi(q) z"
    )
    needs: ClassVar[tuple[str, ...]] = ("keys", "values", "window_queries")
    source: ClassVar[str] = "inspired by RetentiveKV, arXiv 2605.04075, of which no reproducible description is public"
    deviations: ClassVar[str] = (
        "one state per head with scalar gates and fixed features elu + 1; entropy over the window rows; g is the "
        "window's attention on what was evicted; nothing is learned"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.mix <= 1:
            raise MethodError(f"retentive: mix={self.mix} is outside 0..1")

    def score(self, asked: Candidates) -> torch.Tensor:
        """See `retention`."""
        from ecokv_cli.eviction.memory import retention

        return retention(_window_rows(asked), self.mix)

    def reserve(self, layer: Layer) -> int:
        """What the state costs, in tokens."""
        from ecokv_cli.eviction.memory import state_tokens

        return state_tokens(layer.keys.shape[-1], layer.values.shape[-1])

    def memory(self, asked: Candidates, kept: torch.Tensor) -> Memory:
        """The evicted candidates folded into the state."""
        from ecokv_cli.eviction.memory import remember

        layer, m = asked.layer, asked.count
        return remember(layer.keys[:, :m], layer.values[:, :m], _window_rows(asked), ~kept)


def _window_rows(asked: Candidates) -> torch.Tensor:
    """Attention of every window row on every candidate."""
    from ecokv_cli.eviction.attention import window_rows

    layer, window = asked.layer, asked.window
    return window_rows(
        layer.last_queries(window), layer.keys, layer.scaling, candidates=asked.count, seen=layer.last_seen(window)
    )
