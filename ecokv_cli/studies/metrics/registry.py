"""The metrics by name, with what a reader of their numbers needs to know."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ecokv_cli.errors import UsageError
from ecokv_cli.studies.metrics import cider, texts, vqa
from ecokv_cli.studies.metrics.checks import require_answers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Metric:
    """A metric and how to read it.

    Attributes
    ----------
    name
        Its key in `METRICS`.
    range
        Of a sample's value.
    reading
        How to read the number, in a line.
    function
        Predictions and the answers of every sample to one number per sample; higher is better, and the mean over
        samples is the benchmark's number. A corpus metric needs all samples at once.
    fewest_answers, fewest_samples
        What `function` refuses to go without.
    """

    name: str
    range: str
    reading: str
    function: Callable[[Sequence[str], Sequence[Sequence[str]]], list[float]]
    fewest_answers: int = 1
    fewest_samples: int = 1

    def check(self, answers: Sequence[Sequence[str]], ids: Sequence[str] | None = None) -> None:
        """Refuse samples that the metric cannot score, before a model spends hours on them.

        Parameters
        ----------
        answers
            Accepted answers of every sample.
        ids
            Names of the samples, for the message.

        Raises
        ------
        InputError
            If there are too few samples, or a sample has too few answers; then naming it.
        """
        require_answers(self.name, answers, ids, self.fewest_answers, self.fewest_samples)


METRICS = {
    metric.name: metric
    for metric in (
        Metric("exact", "0 or 1", "share of predictions that equal an answer, white space aside", texts.exact),
        Metric("contains", "0 or 1", "share of predictions that contain an answer, in any case", texts.contains),
        Metric(
            "contains_formula",
            "0 or 1",
            "share of predictions that contain an answer once all blanks are removed",
            texts.contains_formula,
        ),
        Metric("anls", "0 to 1", "likeness to the nearest answer, 0 from half of the characters wrong on", texts.anls),
        Metric("relaxed", "0 or 1", "share of predictions within 5 % of a number, or equal to a text", texts.relaxed),
        Metric(
            "vqa",
            "0 to 1",
            "agreement with the annotators, 1 where three others say the same",
            vqa.vqa,
            fewest_answers=vqa.FEWEST_ANSWERS,
        ),
        Metric(
            "cider",
            "0 to 10",
            "consensus with the reference captions of this set; tables print it times 100",
            cider.cider,
            fewest_samples=cider.FEWEST_SAMPLES,
        ),
    )
}


def find_metric(name: str) -> Metric:
    """The metric of that name.

    Raises
    ------
    UsageError
        If there is none; with the nearest match and the list.
    """
    if name in METRICS:
        return METRICS[name]
    close = difflib.get_close_matches(name, METRICS, n=1)
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    raise UsageError(f"unknown metric '{name}'{hint}; known: {', '.join(METRICS)}")
