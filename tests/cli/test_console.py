import io
import sys

import pytest
from rich.console import Console

from ecokv_cli.cli import console


@pytest.mark.parametrize("width", [30, 46, 80, 200])
def test_numbers_are_whole_and_every_column_is_shown_at_every_width(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    columns = ("budget", "method", *(f"number {i}" for i in range(6)))
    rows = [
        [64, "snapkv[kernel=7]", *(i + 0.12345 for i in range(6))],
        [128, "full", None, 1.0, 2.0, 3.0, 4.0, 12345.678],
    ]
    blocks = console.table("A title", columns, rows, keys=2)
    screen = Console(width=width, color_system=None)
    with screen.capture() as captured:
        for block in blocks:
            screen.print(block)
    text = captured.get()
    assert (len(blocks) == 1) == (width >= 100)
    for i in range(6):
        assert f"{i + 0.12345:.3f}" in text
        assert f"number {i}" in text
    assert text.count("A title") == 1
    if width >= 46:
        assert text.count("snapkv[kernel=7]") == len(blocks)


def test_a_pipe_gets_every_column_in_one_table(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    rows = [[i + 0.5 for i in range(8)]]
    assert len(console.table("", tuple("abcdefgh"), rows)) == 1


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("no_color", "styled"), [(None, True), ("", True), ("1", False)])
def test_no_color_leaves_text_alone(monkeypatch, no_color, styled):
    monkeypatch.setenv("TERM", "xterm-256color")
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Terminal())
    screen = console.Screen(quiet=False, verbose=True, as_json=False)
    screen.show(console.table("title", ("number",), [[7.5]]))
    screen.note("yellow")
    screen.detail("dim")
    for stream, words in ((sys.stdout, ("title", "number", "7.500")), (sys.stderr, ("yellow", "dim"))):
        text = stream.getvalue()
        assert ("\x1b" in text) == styled
        assert all(word in text for word in words)


def test_colons_are_no_pictures(capsys):
    screen = console.Screen(quiet=False, verbose=True, as_json=False)
    text = "no Ray at 127.0.0.1:1234: nobody listens :smile:"
    for tell in (screen.say, screen.note, screen.detail):
        tell(text)
    out, err = capsys.readouterr()
    assert out.splitlines() == [text]
    assert err.splitlines() == [text, text]
