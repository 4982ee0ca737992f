"""The method algebra: ``host[options]+booster[options]`` and ``route[layers=method,...]``, read and checked at once."""

from __future__ import annotations

import difflib
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.boosters import BOOSTERS
from ecokv_cli.eviction.hosts import HOSTS
from ecokv_cli.eviction.method import Method
from ecokv_cli.eviction.route import Route, Span

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULT_METHODS = ("full", "random", "snapkv", "keydiff", "snapkv+mixkv", "snapkv+ecokv", "oracle")
WINDOW_OPTIONS = ("window", "obs_window", "keep_window")

_SPEC = re.compile(r"([a-z0-9_]+)(?:\[([^\[\]]*)\])?(?:\+([a-z0-9_]+)(?:\[([^\[\]]*)\])?)?")
_ROUTE = re.compile(r"route\[(.*)\]")
_LEG = re.compile(r"(\d+)(?:(-)(\d+)?)?=(.+)")


def parse_method(spec: str) -> Method | Route:
    """Read a method such as ``snapkv+ecokv[window=4,alpha=0.8]`` or ``route[0-5=snapkv,6-=keydiff]``.

    Options may stand in either bracket; each goes to the part that knows it, and one that both know to the part
    whose bracket it stands in.

    Raises
    ------
    MethodError
        For a name or option that is unknown (with the nearest match and the list), a value of the wrong kind, a
        booster on a host that does not score by attention, or a route with gaps or overlaps.
    """
    text = spec.strip().lower().replace(" ", "")
    route = _ROUTE.fullmatch(text)
    return _parse_route(spec, route[1]) if route else parse_single(spec)


def parse_methods(specs: Iterable[str], window: int | None = None) -> list[Method | Route]:
    """Methods in order, each once; `window` sets both windows of all of them alike."""
    methods = [parse_method(spec) for spec in specs]
    if window is not None:
        methods = [method.with_window(window) for method in methods]
    return list({method.name: method for method in methods}.values())


def parse_single(spec: str) -> Method:
    """As `parse_method`, for one host with at most one booster."""
    match = _SPEC.fullmatch(spec.strip().lower().replace(" ", ""))
    if not match:
        raise MethodError(f"method '{spec}' cannot be read; write host[option=value,...]+booster[option=value,...]")
    host_name, host_options, booster_name, booster_options = (part or "" for part in match.groups())
    kinds = [_lookup(host_name, HOSTS, "method", spec)]
    if booster_name:
        kinds.append(_lookup(booster_name, BOOSTERS, "booster", spec))
    own = [{f.name for f in fields(kind)} for kind in kinds]
    shared = set.intersection(*own) if booster_name else set()
    brackets = [_options(spec, text) for text in (host_options, booster_options)]
    twice = min((brackets[0].keys() & brackets[1].keys()) - shared, default="")
    if twice:
        raise MethodError(f"method '{spec}': '{twice}={brackets[1][twice]}' is not one option=value, given once")
    ambiguous = [{key: bracket.pop(key) for key in shared & bracket.keys()} for bracket in brackets]
    given = brackets[0] | brackets[1]
    given_any = bool(given)
    windows = {key: _number(spec, key, given.pop(key), int) for key in WINDOW_OPTIONS if key in given}
    parts: list[Any] = []
    for kind, names, mine in zip(kinds, own, ambiguous, strict=False):
        hints = get_type_hints(kind)
        taken = mine | {key: given.pop(key) for key in sorted(names & given.keys())}
        values = {key: _convert(spec, key, text, hints[key]) for key, text in taken.items()}
        parts.append(_build(kind, values, spec))
    if given:
        known = [*WINDOW_OPTIONS, *(f.name for kind in kinds for f in fields(kind))]
        unknown = min(given)
        raise MethodError(
            f"method '{spec}': unknown option '{unknown}'{_nearest(unknown, known)}; known: {', '.join(known)}"
        )
    host, booster = parts[0], parts[1] if booster_name else None
    if booster and not host.scores_attention:
        attention = ", ".join(name for name, kind in HOSTS.items() if kind().scores_attention)
        raise MethodError(
            f"method '{spec}': {host_name}{' with these options' * bool(given_any)} has no attention scores to boost; "
            f"hosts that have: {attention}"
        )
    if host.keeps_all and windows:
        raise MethodError(f"method '{spec}': {host_name} keeps everything and has no window")
    default = (booster and booster.default_window) or host.default_window
    both = windows.get("window", default)
    return Method(
        host_name, host, booster_name, booster, windows.get("obs_window", both), windows.get("keep_window", both)
    )


def _parse_route(spec: str, inside: str) -> Route:
    legs: list[Span] = []
    # A comma inside a nested bracket separates options, not legs.
    for leg in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", inside):
        match = _LEG.fullmatch(leg)
        if not match:
            raise MethodError(f"method '{spec}': '{leg}' is not layers=method, such as 0-5=snapkv or 6-=keydiff")
        first, dash, last, method = match.groups()
        end = int(last) if last else None if dash else int(first)
        legs.append(Span(int(first), end, parse_single(method)))
    try:
        return Route(tuple(legs))
    except MethodError as error:
        raise MethodError(f"method '{spec}': {error}") from None


def _build(kind: Any, values: dict[str, Any], spec: str) -> Any:
    try:
        return kind(**values)
    except MethodError as error:
        raise MethodError(f"method '{spec}': {error}") from None


def _lookup(name: str, registry: dict[str, Any], what: str, spec: str) -> Any:
    if name not in registry:
        raise MethodError(
            f"method '{spec}': unknown {what} '{name}'{_nearest(name, registry)}; known: {', '.join(registry)}"
        )
    return registry[name]


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def _options(spec: str, bracket: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for item in filter(None, bracket.split(",")):
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
    if get_origin(kind) is tuple:
        return tuple(_number(spec, key, part, float) for part in text.split(":"))
    if kind is bool:
        if text not in ("true", "false"):
            raise MethodError(f"method '{spec}': {key}={text} is neither true nor false")
        return text == "true"
    return _number(spec, key, text, kind)


def _number(spec: str, key: str, text: str, kind: type[int | float]) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN
        wanted = "a whole number" if kind is int else "a number"
        raise MethodError(f"method '{spec}': {key}={text} is not {wanted}")
    return value
