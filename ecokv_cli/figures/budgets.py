"""Budgets in figures: in captions and labels, in names of files, and along an axis."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.ticker import NullLocator

from ecokv_cli.eviction.budget import in_short, in_words
from ecokv_cli.figures.parts import evicting, names, spaced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from ecokv_cli.eviction.budget import Budget
    from ecokv_cli.studies.tables import Table, Value

_LABELS = 7
"""Most ticks of an axis."""


def budget_of(row: dict[str, Value]) -> Budget:
    """What a row's `budget` asks for: an int of tokens, or a float, the share of the prompt."""
    return cast("Budget", row["budget"])


def budgets_of(table: Table) -> list[Budget]:
    """The budgets of a table, each once, ascending: shares of the prompt before tokens."""
    return sorted({budget_of(row) for row in table})


def labelled(budget: Budget) -> str:
    """``budget 1,024`` or ``budget 25 %``, for headings and legends."""
    return f"budget {in_short(budget)}"


def in_name(budget: Budget) -> str:
    """``budget_1024`` or ``budget_0_25``, for names of files: without a second dot, which LaTeX stumbles over."""
    return f"budget_{budget}".replace(".", "_")


def at_budget(budget: Budget) -> str:
    """``at a budget of 64 tokens`` or ``at a budget of 25 % of the prompt``."""
    return f"at a budget of {in_words(budget)}"


def at_budgets(budgets: Sequence[Budget], mark: str = "panel") -> str:
    """At which budget, or what tells budgets apart; to follow a first clause."""
    return f", {at_budget(budgets[0])}" if len(budgets) == 1 else f", with one {mark} per budget"


@dataclass(frozen=True)
class BudgetAxis:
    """An axis of budgets: logarithmic where all are tokens or all are shares, and otherwise in even steps.

    Attributes
    ----------
    places
        Where each budget stands on a logarithmic axis, ascending.
    label
        What the axis is called.
    scale
        What a caption says of it.
    """

    places: dict[Budget, float]
    label: str
    scale: str

    @classmethod
    def of(cls, table: Table) -> BudgetAxis:
        """The axis for the budgets of a table with the columns `method`, `budget` and `kept`.

        Where there are tokens and shares, a share stands among the tokens by what methods keep with it: the mean over
        samples, and of the methods the middle one. Steps are even, as both may be almost the same.
        """
        budgets = budgets_of(table)
        kinds = {type(budget) for budget in budgets}
        if len(kinds) == 1:
            label = "budget (share of the prompt)" if float in kinds else "budget (tokens per KV head)"
            return cls({budget: float(budget) for budget in budgets}, label, "log scale")
        kept: dict[Value, list[float]] = {}
        evicted = table.among("method", evicting(names(table, "method")))
        for (budget, _), mean in evicted.aggregate(("budget", "method"), "kept", lambda v: float(np.mean(v))).items():
            kept.setdefault(budget, []).append(mean)
        budgets.sort(key=lambda budget: median(kept[budget]) if isinstance(budget, float) else budget)
        steps = {budget: 2.0**step for step, budget in enumerate(budgets)}
        scale = "in even steps, ordered by the tokens kept; a percentage is a share of each prompt"
        return cls(steps, "budget (in order of tokens kept)", scale)

    @property
    def words(self) -> str:
        """What a figure shows, to follow a first clause: at its only budget, or against all of them."""
        return at_budget(next(iter(self.places))) if len(self.places) == 1 else f"against the budget ({self.scale})"

    @property
    def gap(self) -> float:
        """Octaves between the two nearest budgets; 0 if there is only one."""
        return float(np.diff(np.log2(list(self.places.values()))).min()) if len(self.places) > 1 else 0.0

    def finish(self, ax: Axes) -> None:
        """Make the x axis logarithmic, with budgets as ticks."""
        budgets, octaves = list(self.places), np.log2(list(self.places.values())).tolist()
        shown = [budgets[i] for i in spaced(octaves, octaves[-1] - octaves[0], _LABELS)]
        ax.set_xscale("log", base=2)
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xticks([self.places[budget] for budget in shown], list(map(in_short, shown)))
