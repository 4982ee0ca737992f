"""Which layers of a dump a study looks at: full-attention ones, never sliding windows."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from ecokv_cli.dump.runs import parse_range
from ecokv_cli.errors import DumpError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ecokv_cli.dump.reader import Dump


def choose_layers(text: str, dump: Dump) -> list[int]:
    """Layer numbers from ``--layers``: ``all`` full-attention layers, or a list such as ``0-3,7,-1``.

    Numbers are those of the model, sliding-window layers counted.

    Raises
    ------
    UsageError
        If the text is no list of layers, or names a sliding-window layer.
    DumpError
        If there is no full-attention layer.
    """
    full, windows = dump.full_layers, dump.windows
    if not full:
        raise DumpError(f"{dump.folder}: all its layers are sliding windows, so there is none to analyse")
    if text.strip().lower() == "all":
        return list(full)
    chosen = parse_range(text, dump.manifest.model.layers, "layers")
    named = {layer: windows[layer] for layer in chosen if layer in windows}
    if named:
        raise UsageError(
            f"--layers {text}: {_described(named)}, which keep no whole prompt; write all, or {ranges(full)}"
        )
    return chosen


def left_out(dump: Dump) -> str:
    """One line on the sliding-window layers that studies leave out; empty where there are none."""
    return f"{_described(dump.windows)}: left out" if dump.windows else ""


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in rising order as ``0-3,7``."""
    runs = [list(group) for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0][1]}-{run[-1][1]}" if len(run) > 1 else str(run[0][1]) for run in runs)


def _described(windows: dict[int, int]) -> str:
    """``layers 0-2,4 are sliding windows of 16``."""
    sizes = " or ".join(map(str, sorted(set(windows.values()))))
    if len(windows) == 1:
        return f"layer {ranges(windows)} is a sliding window of {sizes}"
    return f"layers {ranges(windows)} are sliding windows of {sizes}"
