"""The generated half of docs/methods.md, from what ``ecokv methods`` prints.

``python tests/methods_page.py`` writes it anew below the marker; test_methods_page.py checks that it is up to date.
"""

import json
from pathlib import Path

from typer.testing import CliRunner

from ecokv_cli.cli.main import app
from ecokv_cli.eviction.boosters import BOOSTERS
from ecokv_cli.eviction.hosts import HOSTS

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
MARKER = "<!-- From here on the page is made from `ecokv methods`: python tests/methods_page.py -->\n"


def explained(spec):
    """What ``ecokv methods SPEC --json`` prints."""
    return json.loads(CliRunner().invoke(app, ["methods", spec, "--json"]).stdout)


def generated():
    """Sections of all hosts and boosters."""
    parts = ["\n## Hosts\n"]
    for name in HOSTS:
        found = explained(name)
        parts.append(section(name, found[name], window(found["protected window"])))
    parts.append("\n## Boosters\n")
    for name, kind in BOOSTERS.items():
        own = window(kind.default_window) if kind.default_window else "the host's"
        parts.append(section(f"+{name}", explained(f"snapkv+{name}")[name], own))
    return "".join(parts)


def window(size):
    """A default window in words."""
    return f"{size} by default" if size else "none unless asked for"


def section(name, part, window):
    """One method."""
    needs = "; ".join(f"{need.replace('_', ' ')} ({how})" for need, how in part["needs"].items())
    lines = [
        f"\n### `{name}`\n\n{part['what']}\n\n    {part['formula']}\n\n",
        f"- Needs: {needs}\n- Window: {window}\n- Source: {part['source']}\n- Deviations: {part['deviations']}\n",
    ]
    if part["options"]:
        lines.append("\n| option | values | default | meaning |\n|---|---|---|---|\n")
    for option, about in part["options"].items():
        values = ", ".join(about["choices"]).replace(" | ", ", ")
        lines.append(f"| `{option}` | {values} | {written(about['default'])} | {about['meaning']} |\n")
    return "".join(lines)


def written(value):
    """A default as it is typed."""
    if isinstance(value, list):
        return ":".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page[: page.index(MARKER) + len(MARKER)] + generated(), encoding="utf-8")
