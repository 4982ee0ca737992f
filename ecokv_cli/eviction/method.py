"""The method algebra: ``host[options]+booster[options]``, parsed once, validated at once, printed canonically."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import torch

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.boosters import Boosted, EcoKV, MixKV
from ecokv_cli.eviction.hosts import Full, Host, KeyDiff, Oracle, Random, SnapKV
from ecokv_cli.eviction.selection import Selection, require_finite_scores, top_mask

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ecokv_cli.eviction.layer import Layer

HOSTS: dict[str, type[Host]] = {
    "full": Full,
    "random": Random,
    "snapkv": SnapKV,
    "keydiff": KeyDiff,
    "oracle": Oracle,
}
BOOSTERS: dict[str, type[MixKV | EcoKV]] = {"mixkv": MixKV, "ecokv": EcoKV}
BOOSTER_WINDOWS = {"ecokv": 4}
"""Default windows that a booster brings along; otherwise the host's own holds."""

DEFAULT_METHODS = ("full", "random", "snapkv", "keydiff", "snapkv+mixkv", "snapkv+ecokv", "oracle")

_SPEC = re.compile(r"([a-z0-9_]+)(?:\[([^\[\]]*)\])?(?:\+([a-z0-9_]+)(?:\[([^\[\]]*)\])?)?")
_WINDOW_OPTIONS = ("window", "obs_window", "keep_window")


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
    booster: MixKV | EcoKV | None
    obs_window: int
    keep_window: int

    @property
    def default_window(self) -> int:
        """The window this host and booster use unless told otherwise."""
        return BOOSTER_WINDOWS.get(self.booster_name, self.host.default_window)

    @property
    def name(self) -> str:
        """Canonical form: names, then every option that differs from its default."""
        options: list[str] = []
        if self.obs_window == self.keep_window:
            if self.keep_window != self.default_window:
                options.append(f"window={self.keep_window}")
        else:
            options += [f"obs_window={self.obs_window}", f"keep_window={self.keep_window}"]
        for part in (self.host, self.booster):
            for field in fields(part) if part else ():
                value = getattr(part, field.name)
                if value != field.default:
                    options.append(f"{field.name}={str(value).lower() if isinstance(value, bool) else value}")
        joined = "+".join(n for n in (self.host_name, self.booster_name) if n)
        return f"{joined}[{','.join(options)}]" if options else joined

    def with_window(self, window: int) -> Method:
        """The same method with both windows set to `window`."""
        return self if self.host.keeps_all else replace(self, obs_window=window, keep_window=window)

    def require_budget(self, budget: int) -> None:
        """Refuse a budget that cannot hold the protected window.

        Raises
        ------
        MethodError
            If ``budget < keep_window``.
        """
        if not self.host.keeps_all and budget < self.keep_window:
            raise MethodError(
                f"{self.name}: budget {budget} is smaller than its window of {self.keep_window} protected tokens; "
                f"raise --budget to {self.keep_window} or more, or set --window {budget} or less"
            )

    def boost(self, layer: Layer) -> Boosted:
        """The parts of the boosted score over the candidates of `layer`; only for methods with a booster."""
        if self.booster is None:
            raise MethodError(f"{self.name}: has no booster, so no lambda; name one, such as {self.host_name}+ecokv")
        window, candidates = self._windows(layer)
        return self.booster.mix(self.host.score(layer, window, candidates), layer)

    def scores(self, layer: Layer) -> torch.Tensor:
        """Final scores of the candidates, ``[H, M]`` with ``M = N - keep_window``; higher = keep.

        Raises
        ------
        NonFiniteError
            If a score is NaN or infinite.
        """
        window, candidates = self._windows(layer)
        scores = self.host.score(layer, window, candidates)
        if self.booster:
            scores = self.booster.mix(scores, layer).score
        require_finite_scores(scores, self.name, layer.index)
        return scores

    def select(self, layer: Layer, budget: int, scores: torch.Tensor | None = None) -> Selection:
        """Kept positions of every KV head at `budget` tokens per head, window included.

        Parameters
        ----------
        layer
            The layer's tensors.
        budget
            Tokens per KV head. With ``budget >= N`` everything is kept.
        scores
            From `scores`, where several budgets share them.

        Returns
        -------
        Selection
            Exactly ``min(budget, N)`` positions per head (all of them for ``full``).

        Raises
        ------
        MethodError
            If the budget is smaller than the window.
        NonFiniteError
            If a score is NaN or infinite.
        """
        self.require_budget(budget)
        if self.host.keeps_all or budget >= layer.tokens:
            everything = torch.ones_like(layer.keys[..., 0], dtype=torch.bool)
            note = "" if self.host.keeps_all else "budget covers the prompt: nothing evicted"
            return Selection(everything, min(self.keep_window, layer.tokens), note)
        scores = self.scores(layer) if scores is None else scores
        counts = torch.full((layer.kv_heads,), budget - self.keep_window, device=scores.device)
        window_mask = torch.ones(layer.kv_heads, self.keep_window, dtype=torch.bool, device=scores.device)
        return Selection(torch.cat([top_mask(scores, counts), window_mask], dim=1), self.keep_window)

    def _windows(self, layer: Layer) -> tuple[int, int]:
        """Observation window and number of candidates; the window is clipped to leave one candidate."""
        stored = layer.window_queries.shape[1]
        if self.host.scores_attention and self.obs_window > stored and stored < layer.tokens - 1:
            raise MethodError(
                f"{self.name}: needs the last {self.obs_window} queries and the dump holds {stored}; "
                f"dump again with --window {self.obs_window}, or set --window {stored} or less"
            )
        keep = min(self.keep_window, layer.tokens - 1)
        return min(self.obs_window, max(stored, 1)), layer.tokens - keep


def parse_method(spec: str) -> Method:
    """Read a method such as ``snapkv+ecokv[window=4,alpha=0.8]``.

    Options may stand in either bracket; each goes to the part that knows it.

    Raises
    ------
    MethodError
        For a name or option that is unknown (with the nearest match and the list), a value of the wrong kind, or a
        booster on a host that does not score by attention.
    """
    match = _SPEC.fullmatch(spec.strip().lower().replace(" ", ""))
    if not match:
        raise MethodError(f"method '{spec}' cannot be read; write host[option=value,...]+booster[option=value,...]")
    host_name, host_options, booster_name, booster_options = (part or "" for part in match.groups())
    host_type = _lookup(host_name, HOSTS, "method", spec)
    booster_type = _lookup(booster_name, BOOSTERS, "booster", spec) if booster_name else None
    if booster_type and not host_type.scores_attention:
        attention = ", ".join(name for name, kind in HOSTS.items() if kind.scores_attention)
        raise MethodError(
            f"method '{spec}': {host_name} has no attention scores to boost; hosts that have: {attention}"
        )
    given = _options(spec, host_options, booster_options)
    windows = {key: _number(spec, key, given.pop(key), int) for key in _WINDOW_OPTIONS if key in given}
    parts: list[Any] = []
    for kind in (host_type, booster_type):
        hints = get_type_hints(kind) if kind else {}
        own = {f.name for f in fields(kind)} if kind else set()
        values = {key: _convert(spec, key, given.pop(key), hints[key]) for key in sorted(own & given.keys())}
        parts.append(kind(**values) if kind else None)
    if given:
        known = [*_WINDOW_OPTIONS, *(f.name for kind in (host_type, booster_type) if kind for f in fields(kind))]
        odd = next(iter(given))
        raise MethodError(f"method '{spec}': unknown option '{odd}'{_nearest(odd, known)}; known: {', '.join(known)}")
    default = BOOSTER_WINDOWS.get(booster_name, host_type.default_window)
    window = windows.get("window", default)
    method = Method(
        host_name,
        parts[0],
        booster_name,
        parts[1],
        windows.get("obs_window", window),
        windows.get("keep_window", window),
    )
    if method.keep_window < 0 or method.obs_window < (1 if host_type.scores_attention else 0):
        raise MethodError(
            f"method '{spec}': a window must be positive, found {min(method.keep_window, method.obs_window)}"
        )
    if host_type.keeps_all and windows:
        raise MethodError(f"method '{spec}': {host_name} keeps everything and has no window")
    return method


def parse_methods(specs: Iterable[str], window: int | None = None) -> list[Method]:
    """Methods in order, each once; `window` sets both windows of all of them alike."""
    methods = [parse_method(spec) for spec in specs]
    if window is not None:
        methods = [method.with_window(window) for method in methods]
    return list({method.name: method for method in methods}.values())


def _lookup(name: str, registry: dict[str, Any], what: str, spec: str) -> Any:
    if name not in registry:
        raise MethodError(
            f"method '{spec}': unknown {what} '{name}'{_nearest(name, registry)}; known: {', '.join(registry)}"
        )
    return registry[name]


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def _options(spec: str, *brackets: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for item in (item for bracket in brackets for item in bracket.split(",") if item):
        key, equals, value = item.partition("=")
        key = key.replace("-", "_")
        if not equals or not value or key in options:
            raise MethodError(f"method '{spec}': '{item}' is not one option=value, given once")
        options[key] = value
    return options


def _convert(spec: str, key: str, text: str, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise MethodError(f"method '{spec}': {key}={text} is not one of {', '.join(get_args(kind))}")
        return text
    if kind is bool:
        if text not in ("true", "false"):
            raise MethodError(f"method '{spec}': {key}={text} is neither true nor false")
        return text == "true"
    return _number(spec, key, text, kind)


def _number(spec: str, key: str, text: str, kind: type[int | float]) -> Any:
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise MethodError(f"method '{spec}': {key}={text} is not {wanted}") from None
