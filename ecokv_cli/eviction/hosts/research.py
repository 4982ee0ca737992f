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
        Weight of the likeness, in the unit below; negative avoids likeness.
    aggregate
        Likeness to the chosen set: ``max`` (marginal relevance) or ``mean``.
    profile
        How l1 and l2 change with depth: ``constant``, ``segments`` (thirds of the model), or ``quadratic``
        (``a:b:c`` of ``a + b x + c x^2``, x = 0 at the first layer and 1 at the last).
    unit
        Unit of l2: the head's ``mean`` attention, its ``range`` over the candidates, or ``raw`` for none.
    start
        What is chosen before the first choice: nothing, ``empty``, or the protected ``window``.
    corr
        Likeness of two positions: Pearson correlation of their ``attention`` over the window rows, or cosine of their
        ``keys``.
    sigma
        Dispersion over the window rows: of the ``group``'s mean attention, or the mean of that of its ``heads``.
    kernel
        Odd width of the average pooling of mu; 1 turns it off.
    """

    l1: tuple[float, ...] = (0.5,)
    l2: tuple[float, ...] = (-0.5,)
    aggregate: Literal["max", "mean"] = "max"
    profile: Literal["constant", "segments", "quadratic"] = "constant"
    unit: Literal["mean", "range", "raw"] = "mean"
    start: Literal["empty", "window"] = "empty"
    corr: Literal["attention", "keys"] = "attention"
    sigma: Literal["group", "heads"] = "group"
    kernel: int = 1

    default_window: ClassVar[int] = 32
    formula: ClassVar[str] = "keep the window; then greedily, B - W times: argmax_i mu_i + l1 sigma_i + l2 u corr(i, S)"
    needs: ClassVar[tuple[str, ...]] = ("keys", "window_queries")
    source: ClassVar[str] = "the unified score mu + l1 sigma + l2 corr of Xie and Zhu, known from its abstract only"
    deviations: ClassVar[str] = (
        "by default corr is the Pearson correlation of attention columns over window rows, rows are averaged over the "
        "group first, without pooling; dispersion is the population standard deviation; the default weights are ours"
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
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise MethodError(f"mmr: kernel={self.kernel} must be odd and positive")

    def score(self, asked: Candidates) -> torch.Tensor:
        """Ranks of the greedy choices; see `greedy_order`."""
        from ecokv_cli.eviction.directions import unit_vectors
        from ecokv_cli.eviction.greedy import at_depth, greedy_order, standardised, unit_of
        from ecokv_cli.eviction.importance import pool

        layer, m = asked.layer, asked.count
        positions = m if self.start == "empty" else layer.tokens
        rows = _window_rows(asked, positions)
        mean = rows[..., :m].mean(dim=1)
        l1, l2 = (at_depth(values, self.profile, layer.index, layer.layers) for values in (self.l1, self.l2))
        values = pool(mean, self.kernel, "avg") + l1 * self._deviation(asked, rows[..., :m])
        weight = l2 * unit_of(mean, self.unit)
        vectors = standardised(rows) if self.corr == "attention" else unit_vectors(layer.keys[:, :positions]).mT
        return greedy_order(values, vectors, asked.picks, weight, self.aggregate)

    def _deviation(self, asked: Candidates, rows: torch.Tensor) -> torch.Tensor:
        from ecokv_cli.eviction.attention import window_deviation

        layer, window = asked.layer, asked.window
        if self.sigma == "group":
            return rows.std(dim=1, correction=0)
        return window_deviation(
            layer.last_queries(window), layer.keys, layer.scaling, candidates=asked.count, seen=layer.last_seen(window)
        )


@dataclass(frozen=True)
class Retentive(Host):
    """A state-space memory of the evicted, inspired by RetentiveKV; the state is paid for out of the budget.

    Attributes
    ----------
    mix
        Weight of attention against entropy in the order of eviction, in [0, 1].
    entropy
        Of the attention that a position ``received``, over the window rows; or of the attention that each row has
        ``given``, over the candidates, averaged by how much each looks at the position.
    order
        In which the evicted enter the state: by ``position``, or by ``retention``, the least first. Later ones fade
        less.
    """

    mix: float = 0.5
    entropy: Literal["received", "given"] = "received"
    order: Literal["position", "retention"] = "position"

    default_window: ClassVar[int] = 32
    formula: ClassVar[str] = (
        "keep the window and the top of R = mix minmax(A) + (1 - mix) minmax(H), H the entropy of the attention "
        "received; evicted pairs: S <- h S + (1 - h) phi(k)^T v; output (1 - g) exact + g phi(q) S / phi(q) z"
    )
    needs: ClassVar[tuple[str, ...]] = ("keys", "values", "window_queries")
    source: ClassVar[str] = "inspired by RetentiveKV, arXiv 2605.04075, of which no reproducible description is public"
    deviations: ClassVar[str] = (
        "one state per head with scalar gates and fixed features elu + 1, where the source learns gates for every "
        "coordinate; the queries are those of the observation window, text or not; entropies are divided by their "
        "largest value, so that no base of the logarithm enters; g is the window's attention on what was evicted"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.mix <= 1:
            raise MethodError(f"retentive: mix={self.mix} is outside 0..1")

    def score(self, asked: Candidates) -> torch.Tensor:
        """See `retention`."""
        from ecokv_cli.eviction.memory import retention

        rows = _window_rows(asked, asked.count)
        return retention(rows, self._entropy(rows), self.mix)

    def _entropy(self, rows: torch.Tensor) -> torch.Tensor:
        from ecokv_cli.eviction.memory import given_entropy, received_entropy

        return received_entropy(rows) if self.entropy == "received" else given_entropy(rows)

    def reserve(self, layer: Layer) -> int:
        """What the state costs, in tokens."""
        from ecokv_cli.eviction.memory import state_tokens

        return state_tokens(layer.keys.shape[-1], layer.values.shape[-1])

    def memory(self, asked: Candidates, kept: torch.Tensor) -> Memory:
        """The evicted candidates folded into the state."""
        from ecokv_cli.eviction.memory import remember, retention

        layer, m = asked.layer, asked.count
        rows = _window_rows(asked, m)
        entropy, attention = self._entropy(rows), rows.mean(dim=1)
        order = retention(rows, entropy, self.mix).argsort(dim=-1, stable=True) if self.order == "retention" else None
        return remember(layer.keys[:, :m], layer.values[:, :m], attention, entropy, ~kept, order)


def _window_rows(asked: Candidates, positions: int) -> torch.Tensor:
    """Attention of every window row on the first `positions`."""
    from ecokv_cli.eviction.attention import window_rows

    layer, window = asked.layer, asked.window
    return window_rows(
        layer.last_queries(window), layer.keys, layer.scaling, candidates=positions, seen=layer.last_seen(window)
    )
