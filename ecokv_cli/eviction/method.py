"""A method: a host that scores and spends the budget, and perhaps a booster that mixes diversity in."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.budget import named, raised, tokens_of
from ecokv_cli.eviction.hosts import Candidates, Host

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from ecokv_cli.eviction.boosters import Booster
    from ecokv_cli.eviction.budget import Budget
    from ecokv_cli.eviction.diversity import Boosted
    from ecokv_cli.eviction.layer import Layer
    from ecokv_cli.eviction.selection import Selection


@dataclass(frozen=True)
class Scores:
    """Scores of the candidates of one layer, ``[H, M]`` each; higher = keep.

    Attributes
    ----------
    host
        What budgets are shared out by: of the host alone, unless the booster has it otherwise.
    final
        With the booster's diversity: what fills them. The same tensor without a booster.
    """

    host: torch.Tensor
    final: torch.Tensor


@dataclass(frozen=True)
class Method:
    """One eviction rule with all its settings.

    Attributes
    ----------
    host, booster
        The scoring rule and the optional diversity mix on top of it.
    host_name, booster_name
        Their registered names; the booster's is empty if there is none.
    obs_window
        How many of the last queries score.
    keep_window
        How many of the last positions are protected; part of the budget.
    """

    host_name: str
    host: Host
    booster_name: str
    booster: Booster | None
    obs_window: int
    keep_window: int

    def __post_init__(self) -> None:
        if self.keep_window < 0 or self.obs_window < self.host.observes:
            raise MethodError(
                f"{self.name}: obs_window={self.obs_window}, keep_window={self.keep_window}: a window cannot be "
                f"negative, and {self.host_name} needs {int(self.host.observes)} query or more to score with"
            )
        if self.booster and self.booster.allocates and not self.host.shares_by_score:
            raise MethodError(
                f"{self.name}: allocate=boosted needs a host whose heads share the budget by their scores, which "
                f"{self.host_name} is not; take adakv, or leave it out"
            )

    @property
    def default_window(self) -> int:
        """The window this host and booster use unless told otherwise."""
        return (self.booster and self.booster.default_window) or self.host.default_window

    @property
    def name(self) -> str:
        """Canonical form: names, then every option that differs from its default."""
        options: list[str] = []
        if self.obs_window == self.keep_window:
            if self.keep_window != self.default_window:
                options.append(f"window={self.keep_window}")
        else:
            options += [
                f"{name}={value}"
                for name, value in (("obs_window", self.obs_window), ("keep_window", self.keep_window))
                if value != self.default_window
            ]
        host, booster = _changed(self.host), _changed(self.booster) if self.booster else {}
        # An option that both parts know stands with its own part; all others stand together at the end.
        shared = {f.name for f in fields(self.host)} & {f.name for f in fields(self.booster)} if self.booster else set()
        first = [f"{key}={host.pop(key)}" for key in sorted(shared & host.keys())]
        options += [f"{key}={value}" for key, value in (host | booster).items()]
        names = [self.host_name + (f"[{','.join(first)}]" if first else ""), self.booster_name]
        joined = "+".join(filter(None, names))
        return f"{joined}[{','.join(options)}]" if options else joined

    @property
    def keeps_all(self) -> bool:
        """Whether it never evicts."""
        return self.host.keeps_all

    @property
    def needs(self) -> frozenset[str]:
        """The tensors of a dump that host and booster need."""
        return frozenset(self.host.needs) | frozenset(self.booster.needs if self.booster else ())

    def with_window(self, window: int) -> Method:
        """The same method with both windows set to `window`."""
        return self if self.keeps_all else replace(self, obs_window=window, keep_window=window)

    def require_budget(self, budget: Budget, tokens: int | None = None) -> None:
        """Refuse a budget that cannot hold the protected window (and sinks), unless it holds the whole prompt.

        Parameters
        ----------
        budget
            Tokens, or a share of the prompt.
        tokens
            N, the prompt's tokens. A share is let pass as long as they are not known.

        Raises
        ------
        MethodError
            If the budget is too small.
        """
        if isinstance(budget, float) and tokens is None:
            return
        size, sinks = tokens_of(budget, tokens or 1), getattr(self.host, "sinks", 0)
        if tokens is not None and size >= tokens:
            return
        if not self.keeps_all and size < self.keep_window:
            raise MethodError(
                f"{self.name}: {named(budget, tokens)} is smaller than its window of {self.keep_window} protected "
                f"tokens; {raised(budget, tokens, self.keep_window)}, or set --window {size} or less"
            )
        least = sinks + self.keep_window
        if size < least:
            raise MethodError(
                f"{self.name}: {named(budget, tokens)} cannot hold {sinks} sinks and a window of {self.keep_window}; "
                f"{raised(budget, tokens, least)}, or write streaming[sinks={size - self.keep_window}]"
            )

    def boost(self, layer: Layer) -> Boosted:
        """The parts of the boosted score over the candidates of `layer`; only for methods with a booster."""
        if self.booster is None:
            raise MethodError(f"{self.name}: has no booster, so no lambda; name one, such as {self.host_name}+ecokv")
        return self.booster.mix(self.host.score(self._asked(layer, layer.tokens)), layer)

    def shared_scores(self, layer: Layer, budgets: Iterable[Budget]) -> Scores | None:
        """Scores that serve several budgets; None, and nothing of the layer asked for, if none of them evicts."""
        sizes = [tokens_of(budget, layer.tokens) for budget in budgets]
        evicting = [] if self.keeps_all else [size for size in sizes if size < layer.tokens]
        return self.scores(layer, max(evicting)) if evicting else None

    def scores(self, layer: Layer, budget: int | None = None) -> Scores:
        """Scores of the candidates, ``[H, M]`` with ``M = N - keep_window``.

        Parameters
        ----------
        layer
            The layer's tensors.
        budget
            The largest budget that will be selected with these scores, where greedy choice may stop.

        Raises
        ------
        NonFiniteError
            If a score is NaN or infinite.
        """
        return self._scores(self._asked(layer, budget or layer.tokens))

    def _scores(self, asked: Candidates) -> Scores:
        from ecokv_cli.eviction.selection import require_finite_scores

        layer = asked.layer
        host = self.host.score(asked)
        final = self.booster.mix(host, layer).score if self.booster else host
        if self.host.shared and self.booster:
            final = final.mean(dim=0).expand(layer.kv_heads, -1)
        require_finite_scores(final, self, layer.index)
        return Scores(final if self.booster and self.booster.allocates else host, final)

    def select(self, layer: Layer, budget: Budget, scores: Scores | None = None) -> Selection:
        """Kept positions of every KV head at `budget` tokens per head, window included.

        Parameters
        ----------
        layer
            The layer's tensors.
        budget
            Tokens per KV head, or a share of the layer's N, on average over the heads and layers that the method
            shares it among. With ``budget >= N`` everything is kept.
        scores
            From `shared_scores`, where several budgets share them.

        Returns
        -------
        Selection
            Kept positions; their number is exact over what the method shares the budget among, unless another
            rounding was asked for.

        Raises
        ------
        DumpError
            If a tensor the method needs is not in the dump.
        MethodError
            If the budget cannot hold what the method protects.
        NonFiniteError
            If a score is NaN or infinite.
        """
        from ecokv_cli.eviction.selection import Selection, keep_everything, top_mask, with_window

        self.require_budget(budget, layer.tokens)
        size = tokens_of(budget, layer.tokens)
        if self.keeps_all or size >= layer.tokens:
            note = "" if self.keeps_all else "budget covers the prompt: nothing evicted"
            return keep_everything(layer.kv_heads, layer.tokens, self.keep_window, layer.keys.device, note)
        reserve = self.host.reserve(layer)
        if size < self.keep_window + reserve:
            raise MethodError(
                f"{self.name}: {named(budget, layer.tokens)} cannot hold a window of {self.keep_window} and a state "
                f"worth {reserve} tokens at head dimension {layer.keys.shape[-1]}; "
                f"{raised(budget, layer.tokens, self.keep_window + reserve)}"
            )
        asked = self._asked(layer, size)
        scores = self._scores(asked) if scores is None else scores
        counts = self.host.counts(asked, size, self.keep_window, scores.host)
        ideal = self.host.exact
        exact = counts if ideal is self.host else ideal.counts(asked, size, self.keep_window, scores.host)
        kept = top_mask(scores.final, counts)
        return Selection(
            with_window(kept, self.keep_window),
            self.keep_window,
            note=f"{self.name}: {reserve} tokens of the budget pay for its state" if reserve else "",
            state=reserve,
            memory=self.host.memory(asked, kept),
            exact=None if exact is counts or exact.equal(counts) else exact + self.keep_window,
        )

    def _asked(self, layer: Layer, budget: int) -> Candidates:
        """What the host is asked; the window is clipped to leave one candidate."""
        stored, tokens = layer.window_queries.shape[1], layer.tokens
        if self.host.observes and self.obs_window > stored and stored < tokens - 1:
            raise MethodError(
                f"{self.name}: needs the last {self.obs_window} queries and the dump holds {stored}; "
                f"dump again with --window {self.obs_window}, or set --window {stored} or less"
            )
        count = tokens - min(self.keep_window, tokens - 1)
        picks = max(min(budget - self.keep_window, count), 0)
        return Candidates(layer, count, min(self.obs_window, max(stored, 1)), picks)


def _changed(part: Host | Booster) -> dict[str, str]:
    """Options of a part that differ from their defaults, as they are written."""
    values = {field.name: (getattr(part, field.name), field.default) for field in fields(part)}
    return {name: _written(value) for name, (value, default) in values.items() if value != default}


def _written(value: object) -> str:
    """An option's value as it is written in a method."""
    if isinstance(value, bool):
        return str(value).lower()
    return ":".join(map(str, value)) if isinstance(value, tuple) else str(value)
