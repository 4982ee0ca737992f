"""What an evaluation that was written says of one sample."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from ecokv_cli.errors import UsageError
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from pathlib import Path


def with_scores_of(path: Path, answers: Table) -> tuple[Table, bool]:
    """The rows with the scores that an evaluation gave them, and whether it has rows of this sample at all.

    Parameters
    ----------
    path
        Its ``answers.csv``, which may not be there; rows that it lacks stay as they are.
    answers
        Graded rows of one sample.

    Raises
    ------
    UsageError
        If a sample of this name was evaluated there with another question.
    """
    if not path.is_file():
        return answers, False
    sample = answers.rows[0]["sample"]
    with path.open(newline="", encoding="utf-8") as file:
        there = {
            (row["method"], row["budget"], row["window"]): row
            for row in csv.DictReader(file)
            if row["sample"] == sample
        }
    rows = [dict(row) for row in answers]
    for row in rows:
        found = there.get((str(row["method"]), str(row["budget"] or ""), str(row["window"])))
        if found is None:
            continue
        if (found["answers"], found["tokens"]) != (row["answers"], str(row["tokens"])):
            raise UsageError(
                f"{path}: its {sample} has the answer '{found['answers']}' and {found['tokens']} tokens, the one asked "
                f"for '{row['answers']}' and {row['tokens']}; give --samples, --smallest and --manifest as then"
            )
        row["score"] = float(found["score"])
    return Table(answers.name, answers.columns, rows), bool(there)
