"""Ablations: which experiments there are, the methods each compares, and what the answers say about each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ecokv_cli.studies.ablate.factorial import factorial_tables
from ecokv_cli.studies.ablate.grid import grid_tables
from ecokv_cli.studies.ablate.plan import EXPERIMENTS, Experiment, Ranges, Variant, plan
from ecokv_cli.studies.ablate.scores import Scored, scored
from ecokv_cli.studies.ablate.variants import variants_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ecokv_cli.studies.tables import Table

__all__ = ["EXPERIMENTS", "Experiment", "Ranges", "Scored", "Variant", "plan", "scored", "tables_of"]


def tables_of(found: Sequence[Scored], seed: int = 0) -> list[Table]:
    """The tables of one experiment, of which there is one `Scored` per budget."""
    match found[0].experiment.name:
        case "factorial":
            return factorial_tables(found, seed)
        case "grid":
            return grid_tables(found, seed)
    return [variants_table(found, seed)]
