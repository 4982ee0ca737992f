"""A route: another method in another layer, every layer with the same budget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ecokv_cli.errors import MethodError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ecokv_cli.eviction.budget import Budget
    from ecokv_cli.eviction.diversity import Boosted
    from ecokv_cli.eviction.layer import Layer
    from ecokv_cli.eviction.method import Method, Scores
    from ecokv_cli.eviction.selection import Selection


@dataclass(frozen=True)
class Span:
    """Layers `first` to `last` (None: to the end) and their method."""

    first: int
    last: int | None
    method: Method

    @property
    def text(self) -> str:
        """As written in a route."""
        layers = f"{self.first}-" if self.last is None else f"{self.first}-{self.last}"
        return f"{self.first if self.first == self.last else layers}={self.method.name}"

    @property
    def to_the_end(self) -> str:
        """The same with an open end."""
        return replace(self, last=None).text


@dataclass(frozen=True)
class Route:
    """Methods by layer; behaves like the method of the layer it is asked about.

    Attributes
    ----------
    spans
        Consecutive spans of layers, from layer 0 on.

    Raises
    ------
    MethodError
        If the spans leave a gap, overlap, or hold a method that moves budget between layers.

    Notes
    -----
    Layer-wise method routing, arXiv 2606.15157 (abstract): the same budget in each layer, the method by layer.
    """

    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        if not self.spans:
            raise MethodError("a route needs at least one layers=method")
        expected: int | None = 0
        for span in self.spans:
            if expected is None or span.first != expected or (span.last is not None and span.last < span.first):
                raise MethodError(
                    f"'{span.text}' does not follow on: layers must run on from 0 without gap or overlap, "
                    f"the next is {'none, the last span was open' if expected is None else expected}"
                )
            if span.method.host.moves_layers:
                raise MethodError(
                    f"'{span.text}': {span.method.host_name} moves budget between layers, a route gives each the same"
                )
            expected = None if span.last is None else span.last + 1

    @classmethod
    def of(cls, methods: Sequence[Method]) -> Route:
        """The route with ``methods[l]`` in layer l, equal neighbours joined."""
        spans: list[Span] = []
        for layer, method in enumerate(methods):
            if spans and spans[-1].method == method:
                spans[-1] = replace(spans[-1], last=layer)
            else:
                spans.append(Span(layer, layer, method))
        return cls(tuple(spans))

    @property
    def name(self) -> str:
        """Canonical form."""
        return f"route[{','.join(span.text for span in self.spans)}]"

    @property
    def keeps_all(self) -> bool:
        """Whether it never evicts."""
        return all(span.method.keeps_all for span in self.spans)

    @property
    def booster(self) -> None:
        """A route as a whole has none."""
        return

    @property
    def keep_window(self) -> int:
        """The largest protected window of its methods."""
        return max(span.method.keep_window for span in self.spans)

    def with_window(self, window: int) -> Route:
        """The same route with the windows of all its methods set to `window`."""
        return Route(tuple(replace(span, method=span.method.with_window(window)) for span in self.spans))

    def require_budget(self, budget: Budget, tokens: int | None = None) -> None:
        """Refuse a budget that one of its methods refuses."""
        for span in self.spans:
            span.method.require_budget(budget, tokens)

    def require_layers(self, layers: int) -> None:
        """Refuse a model of `layers` layers, unless the legs cover each of them and nothing beyond.

        Raises
        ------
        MethodError
            Naming the leg that does not fit, the model's layers and what to write instead.
        """
        model = f"the model has {layers} layer{'s' * (layers > 1)}, 0 to {layers - 1}"
        for span in self.spans:
            if span.first >= layers:
                raise MethodError(f"{self.name}: '{span.text}' covers no layer, {model}; leave it out")
            if span.last is not None and span.last >= layers:
                raise MethodError(
                    f"{self.name}: '{span.text}' goes past the last layer, {model}; write {span.to_the_end}"
                    f"{', with no leg after it' * (span is not self.spans[-1])}"
                )
        end = self.spans[-1].last
        if end is not None and end < layers - 1:
            raise MethodError(
                f"{self.name}: '{self.spans[-1].text}' ends before the last layer, {model}; "
                f"write {self.spans[-1].to_the_end}, or add a leg {end + 1}-=method"
            )

    def at(self, layer: Layer) -> Method:
        """The method of one layer; raises as `require_layers` does."""
        self.require_layers(layer.layers)
        return next(s.method for s in self.spans if s.last is None or layer.index <= s.last)

    def boost(self, layer: Layer) -> Boosted:
        """As the method of that layer."""
        return self.at(layer).boost(layer)

    def shared_scores(self, layer: Layer, budgets: Iterable[Budget]) -> Scores | None:
        """As the method of that layer."""
        return self.at(layer).shared_scores(layer, budgets)

    def scores(self, layer: Layer, budget: int | None = None) -> Scores:
        """As the method of that layer."""
        return self.at(layer).scores(layer, budget)

    def select(self, layer: Layer, budget: Budget, scores: Scores | None = None) -> Selection:
        """As the method of that layer."""
        return self.at(layer).select(layer, budget, scores)
