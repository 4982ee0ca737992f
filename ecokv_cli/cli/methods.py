"""``ecokv methods``: what can be simulated, and what each method computes."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from ecokv_cli.cli import options as o
from ecokv_cli.cli.console import Screen, guarded, table
from ecokv_cli.eviction.hosts import Host

if TYPE_CHECKING:
    from ecokv_cli.eviction.method import Method

EXAMPLES = """Examples:

ecokv methods                        all hosts and boosters

ecokv methods snapkv+ecokv           formula, inputs, options, source, deviations

ecokv methods "pyramidkv[compat=reference]" --json
"""

Spec = Annotated[
    str | None, typer.Argument(help="A method such as snapkv+ecokv; all are listed if left out.", show_default=False)
]
HOW = {
    "keys": "always dumped",
    "values": "always dumped",
    "window_queries": "always dumped, as many as --window says",
    "received_attention": "ecokv dump --received-attention",
    "prerope_keys": "ecokv dump --prerope-keys",
    "decode_queries": "dumped, or with ecokv dump --ignore-eos where the model stops at once",
    "decode_keys": "as decode_queries",
    "head_scores": "ecokv headscores RUN, then ecokv evict --head-scores FILE",
}
KINDS = {int: "whole number", float: "number", bool: "true | false"}


@guarded
def command(
    spec: Spec = None,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001 - read by guarded
) -> None:
    """List all methods, or explain one: formula, inputs needed, options with defaults, source, deviations."""
    from ecokv_cli.eviction.boosters import BOOSTERS
    from ecokv_cli.eviction.hosts import HOSTS
    from ecokv_cli.eviction.route import Route
    from ecokv_cli.eviction.spec import parse_method

    screen = Screen(quiet=True, verbose=False, as_json=json)
    if spec is None:
        listed = [
            {"kind": what, "name": name, "window": kind.default_window or None, "summary": _summary(kind)}
            for what, known in (("host", HOSTS), ("booster", BOOSTERS))
            for name, kind in known.items()
        ]
        screen.show(table("", ("kind", "name", "window", "summary"), [list(row.values()) for row in listed], keys=2))
        if not json:
            typer.echo(
                "\nA method is host or host+booster, with options in brackets: snapkv+ecokv[window=4,alpha=0.8]."
            )
            boosted = ", ".join(name for name, kind in HOSTS.items() if kind().scores_attention)
            typer.echo(f"Boosters go on {boosted}. By layer: route[0-5=snapkv,6-=keydiff].")
        screen.finish({"methods": listed}, "")
        return
    method = parse_method(spec)
    if isinstance(method, Route):
        shown = [{"layers": span.text.partition("=")[0], **_explain(span.method)} for span in method.spans]
        explained = {"method": method.name, "legs": shown}
    else:
        explained = _explain(method)
        shown = [explained]
    screen.show(table("", ("", ""), [row for each in shown for row in (*_flat(each), ("", ""))][:-1]))
    screen.finish(explained, "")


def _explain(method: Method) -> dict[str, Any]:
    parts = {method.host_name: method.host, method.booster_name: method.booster}
    described: dict[str, Any] = {
        "method": method.name,
        "observation window": method.obs_window if method.host.observes else None,
        "protected window": method.keep_window,
    }
    for name, part in parts.items():
        if part is None:
            continue
        described[name] = {
            "what": _summary(type(part)),
            "formula": part.formula,
            "needs": {need: HOW[need] for need in part.needs},
            "options": _options(part),
            "source": part.source,
            "deviations": part.deviations,
        }
    return described


def _options(part: Any) -> dict[str, dict[str, Any]]:
    """Value, default, choices and meaning of every option of a host or booster that has an effect."""
    hints, meanings = get_type_hints(type(part)), _meanings(type(part))
    idle = part.idle if isinstance(part, Host) else ()
    return {
        f.name: {
            "value": getattr(part, f.name),
            "default": f.default,
            "choices": _choices(hints[f.name]),
            "meaning": meanings[f.name],
        }
        for f in fields(part)
        if f.name not in idle
    }


def _choices(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return ["numbers"] if get_origin(kind) is tuple else [KINDS[kind]]


def _meanings(kind: type) -> dict[str, str]:
    """What the class says about each of its attributes, from its docstring."""
    _, _, listed = (inspect.getdoc(kind) or "").partition("Attributes\n----------\n")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in listed.partition("\n\n")[0].splitlines():
        if line.startswith(" "):
            for name in names:
                found[name] = f"{found[name]} {line.strip()}".strip()
        else:
            names = line.split(", ")
            found |= dict.fromkeys(names, "")
    # Marks and pointers into the code are for its readers.
    return {name: re.sub(r"; see `\w+`|`", "", text) for name, text in found.items()}


def _flat(explained: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows of two texts for the screen."""
    rows: list[tuple[str, str]] = []
    for key, value in explained.items():
        if not isinstance(value, dict):
            rows.append((key, "-" if value is None else str(value)))
            continue
        rows.append(("", ""))
        rows.append((key, value["what"]))
        rows.append(("  formula", value["formula"]))
        rows += [("  needs", f"{need} ({how})") for need, how in value["needs"].items()]
        for name, option in value["options"].items():
            changed = "" if option["value"] == option["default"] else f"; here {_text(option['value'])}"
            kind = f"{' | '.join(option['choices'])}, default {_text(option['default'])}{changed}"
            rows.append((f"  {name}", f"{option['meaning']} ({kind})"))
        rows += [("  source", value["source"]), ("  deviations", value["deviations"])]
    return rows


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ":".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _summary(kind: type) -> str:
    return (inspect.getdoc(kind) or "").split("\n", 1)[0]
