"""Scores of an experiment's arms, sample by sample, and the numbers that every table of an ablation gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ecokv_cli.studies.statistics import mean_intervals, paired_p_value

if TYPE_CHECKING:
    import numpy.typing as npt

    from ecokv_cli.studies.ablate.plan import Experiment
    from ecokv_cli.studies.tables import Table, Value

    Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """What one experiment found at one budget, over the samples that every one of its arms answered.

    Attributes
    ----------
    experiment
        Its variants are the rows.
    model, budget
        Where.
    scores, reference
        ``[variants, samples]`` and ``[samples]``.
    changed
        For each variant the number of samples whose answer is not, word for word, that of the reference.
    """

    experiment: Experiment
    model: str
    budget: int
    scores: Array
    reference: Array
    changed: tuple[int, ...]

    @property
    def alike(self) -> bool:
        """Whether all arms have the same score on every sample, so that nothing can be told apart."""
        return bool((self.scores == self.reference).all())


def scored(answers: Table, experiment: Experiment, budget: int) -> Scored:
    """Arrange the graded answers of one experiment at one budget.

    Parameters
    ----------
    answers
        Graded rows; those of other arms are passed over, and so are samples that lack an arm.
    experiment
        What is compared.
    budget
        At which budget.
    """
    names = [method.name for method in experiment.methods]
    rows: dict[str, dict[str, dict[str, Value]]] = {}
    for row in answers.where(budget=budget).among("method", names):
        rows.setdefault(str(row["sample"]), {})[str(row["method"])] = row
    complete = [found for found in rows.values() if len(found) == len(names)]

    def column(name: str) -> list[float]:
        return [float(str(found[name]["score"])) for found in complete]

    against = experiment.reference.name
    changed = [
        sum(found[variant.method.name]["prediction"] != found[against]["prediction"] for found in complete)
        for variant in experiment.variants
    ]
    scores = np.array([column(variant.method.name) for variant in experiment.variants])
    model = str(answers.rows[0]["model"]) if answers.rows else ""
    return Scored(experiment, model, budget, scores, np.array(column(against)), tuple(changed))


def means(values: Array, seed: int) -> list[dict[str, Any]]:
    """`mean`, `low`, `high` and `n` of each row of ``[rows, samples]``."""
    intervals = mean_intervals(values, seed)
    return [
        {"mean": float(row.mean()), "low": float(low), "high": float(high), "n": len(row)}
        for row, (low, high) in zip(values, intervals, strict=True)
    ]


def differences(values: Array, seed: int) -> list[dict[str, Any]]:
    """`difference`, the ends of its paired interval, and `p`, of each row of paired differences ``[rows, samples]``."""
    intervals = mean_intervals(values, seed)
    return [
        {"difference": float(row.mean()), "difference_low": float(low), "difference_high": float(high),
         "p": paired_p_value(row, seed)}
        for row, (low, high) in zip(values, intervals, strict=True)
    ]  # fmt: skip
