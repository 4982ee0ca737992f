"""Summary tables as Markdown and as LaTeX (booktabs), ready to be pasted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ecokv_cli.studies.tables import Table, Value

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip


def markdown(table: Table, columns: Sequence[str]) -> str:
    """A Markdown table of the given columns; numbers to the right, undefined ones as a dash."""
    numeric = _numeric(table, columns)
    rows = [[_number(row[c]) for c in columns] for row in table]
    head, *body = ([cell.replace("|", "\\|") for cell in line] for line in (columns, *rows))
    lines = [head, ["---:" if right else ":---" for right in numeric], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def latex(table: Table, columns: Sequence[str]) -> str:
    """A LaTeX tabular of the given columns, for the package booktabs; numbers to the right, undefined as a dash."""
    numeric = _numeric(table, columns)
    spec = "".join("r" if right else "l" for right in numeric)
    head = " & ".join(_escaped(c) for c in columns)
    body = [" & ".join(_escaped(_number(row[c], minus="$-$")) for c in columns) + r" \\" for row in table]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{spec}}}",
            r"\toprule",
            rf"{head} \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def write_typeset(folder: Path, table: Table, columns: Sequence[str]) -> None:
    """Write ``<name>.md`` and ``<name>.tex`` beside the CSV."""
    (folder / f"{table.name}.md").write_text(markdown(table, columns), encoding="utf-8")
    (folder / f"{table.name}.tex").write_text(latex(table, columns), encoding="utf-8")


def _numeric(table: Table, columns: Sequence[str]) -> list[bool]:
    return [all(isinstance(row[c], int | float | None) for row in table) for c in columns]


def _number(value: Value, minus: str = "-") -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    text = f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"
    return text.replace("-", minus, 1) if text.startswith("-") else text


def _escaped(text: str) -> str:
    return text if text.startswith("$-$") else "".join(_LATEX.get(character, character) for character in text)
