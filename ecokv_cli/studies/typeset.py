"""Summary tables as Markdown and as LaTeX (booktabs), ready to be pasted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ecokv_cli.studies.tables import Table, Value

Cells = frozenset[tuple[int, str]]
"""Cells of a table, by the number of the row and the name of the column."""


class Numbers(str):
    """A text of numbers, such as a mean with its interval; columns of them are set to the right as numbers are."""

    __slots__ = ()


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def markdown(table: Table, columns: Sequence[str], bold: Cells = frozenset()) -> str:
    """A Markdown table of the given columns; numbers to the right, undefined ones as a dash, some cells in bold."""
    numeric = _numeric(table, columns)
    rows = [[_strong(_number(row[c], c), "**{}**", (i, c) in bold) for c in columns] for i, row in enumerate(table)]
    head, *body = ([cell.replace("|", "\\|") for cell in line] for line in (columns, *rows))
    lines = [head, ["---:" if right else ":---" for right in numeric], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def latex(table: Table, columns: Sequence[str], bold: Cells = frozenset(), title: str = "") -> str:
    """A LaTeX tabular of the given columns, for the package booktabs; as `markdown`, with a title as its first line."""
    numeric = _numeric(table, columns)
    spec = "".join("r" if right else "l" for right in numeric)
    head = " & ".join(_escaped(c) for c in columns)
    rows = [
        [_strong(_escaped(_number(row[c], c)), r"\textbf{{{}}}", (i, c) in bold) for c in columns]
        for i, row in enumerate(table)
    ]
    body = [" & ".join(row) + r" \\" for row in rows]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{spec}}}",
            r"\toprule",
            *([rf"\multicolumn{{{len(columns)}}}{{l}}{{{_escaped(title)}}} \\"] if title else []),
            rf"{head} \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def write_typeset(folder: Path, table: Table, columns: Sequence[str], bold: Cells = frozenset()) -> None:
    """Write ``<name>.md`` and ``<name>.tex`` beside the CSV."""
    (folder / f"{table.name}.md").write_text(markdown(table, columns, bold), encoding="utf-8")
    (folder / f"{table.name}.tex").write_text(latex(table, columns, bold), encoding="utf-8")


def rounded(value: float) -> str:
    """A number to three decimals, or to two digits where these would all be zeros."""
    if 0 < abs(value) < 0.0005:
        return f"{value:.1e}"
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"


def _numeric(table: Table, columns: Sequence[str]) -> list[bool]:
    return [all(isinstance(row[c], int | float | Numbers | None) for row in table) for c in columns]


def _number(value: Value, column: str) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float) or column == "budget":  # a share of the prompt is shown as it was asked for
        return str(value)
    return rounded(value)


def _strong(text: str, form: str, wanted: bool) -> str:
    return form.format(text) if wanted else text


def _escaped(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in text)
    # A hyphen before a number is a minus, unless it is within a word or a range.
    return re.sub(r"(?<![\w.)\]])-(?=\d)", "$-$", escaped)
